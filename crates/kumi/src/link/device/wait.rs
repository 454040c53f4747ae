//! Waiting: awake for what is expected soon, then asleep.

use super::Device;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::os::fd::AsFd;
use std::time::Duration;

/// The longest sleep, so that a clock that jumps does no harm.
const SLEEP_NS_MAX: u64 = 100_000_000;

/// What woke the loop.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) tap: bool,
    pub(super) control: bool,
    pub(super) monitor: bool,
    pub(super) ports: u32,
}

impl Device {
    /// Waits until something is there or due: awake for what is expected soon, then asleep.
    pub(super) fn wait(&mut self) -> anyhow::Result<Ready> {
        let space_ns = self.tempo.space_ns(self.now_ns());
        if space_ns > 0 && !self.config.busy_poll {
            std::thread::sleep(Duration::from_nanos(space_ns));
        }
        let began_ns = self.now_ns();
        self.tempo.adapt(began_ns, &self.config.name);
        let mut due_ns = self.core.poll_timeout(began_ns);
        if !self.inlet.is_empty() && !self.is_blocked() {
            let room_at_ns = self.core.frames_wait_until(began_ns).unwrap_or(began_ns);
            due_ns = due_ns.min(room_at_ns);
        }
        let spin_ns = if self.config.busy_poll {
            u64::MAX
        } else {
            self.tempo.spin_ns(began_ns)
        };
        let takes_frames = self.inlet.has_room();
        let yields = self.tempo.yields() && !self.config.busy_poll;
        let mut now_ns = began_ns;
        loop {
            let mut awake = now_ns - began_ns < spin_ns;
            if awake && now_ns > began_ns && yields {
                let away_from_ns = now_ns;
                std::thread::yield_now();
                now_ns = self.now_ns();
                awake = self.tempo.note_yielded(now_ns, now_ns - away_from_ns);
            }
            let sleep_ns = if awake {
                0
            } else {
                due_ns.saturating_sub(now_ns).min(SLEEP_NS_MAX)
            };
            let ready = self.poll(takes_frames, sleep_ns)?;
            let found = ready.tap || ready.ports != 0;
            let looked_ns = now_ns;
            now_ns = self.now_ns();
            if found || !awake || now_ns >= due_ns || ready.control || ready.monitor {
                // Bulk that was waited for in vain counts as work: the loop then takes priority sooner.
                if awake || yields {
                    self.tempo.note_spun(looked_ns - began_ns);
                }
                if found {
                    self.tempo.note_activity(now_ns);
                }
                return Ok(ready);
            }
        }
    }

    /// Asks the kernel what is there, waiting for `sleep_ns` at most.
    fn poll(&self, takes_frames: bool, sleep_ns: u64) -> anyhow::Result<Ready> {
        let tap_events = if takes_frames {
            PollFlags::POLLIN
        } else {
            PollFlags::empty()
        };
        let mut fds = Vec::with_capacity(3 + self.ports.len());
        fds.push(PollFd::new(self.tap.as_fd(), tap_events));
        fds.push(PollFd::new(self.control.wake.as_fd(), PollFlags::POLLIN));
        fds.push(PollFd::new(self.monitor.as_fd(), PollFlags::POLLIN));
        for port in &self.ports {
            let out = if port.is_blocked {
                PollFlags::POLLOUT
            } else {
                PollFlags::empty()
            };
            fds.push(PollFd::new(port.socket.as_fd(), PollFlags::POLLIN | out));
        }
        let timeout = TimeSpec::from_duration(Duration::from_nanos(sleep_ns));
        match ppoll(&mut fds, Some(timeout), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut ready = Ready {
            tap: is_ready(&fds[0]) && takes_frames,
            control: is_ready(&fds[1]),
            monitor: is_ready(&fds[2]),
            ports: 0,
        };
        for (at, fd) in fds[3..].iter().enumerate() {
            ready.ports |= u32::from(is_ready(fd)) << at;
        }
        Ok(ready)
    }
}
