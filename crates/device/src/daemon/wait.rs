//! Waiting of the loop: it spins while an event is expected soon, then sleeps.

use super::Device;
use super::tempo::Source;
use crate::ready::{Host, Ready, SLEEP_NS_MAX, Socket};
use std::os::fd::AsFd;
use std::time::Duration;

impl Device {
    /// Waits until an event occurs or a timeout is due.
    pub(super) fn wait(&mut self) -> anyhow::Result<Ready> {
        let space_ns = self.tempo.space_ns(self.now_ns());
        if space_ns > 0 && !self.config.busy_poll {
            std::thread::sleep(Duration::from_nanos(space_ns));
        }
        let start_ns = self.now_ns();
        self.tempo.adapt(start_ns, &self.config.name);
        let mut due_ns = self.core.poll_timeout(start_ns);
        if !self.inlet.is_empty() && !self.is_blocked() {
            let room_at_ns = self.core.frames_wait_until(start_ns).unwrap_or(start_ns);
            due_ns = due_ns.min(room_at_ns);
        }
        if let Some(datapath) = &self.datapath {
            due_ns = due_ns.min(datapath.due_ns());
        }
        let spin_ns = if self.config.busy_poll {
            u64::MAX
        } else {
            self.tempo.spin_ns(start_ns)
        };
        let takes_frames = self.inlet.has_room();
        let yields = self.tempo.yields() && !self.config.busy_poll;
        let mut now_ns = start_ns;
        // A program that has just received a frame may need this processor.
        let gives_way = std::mem::take(&mut self.has_delivered);
        loop {
            let mut awake = now_ns - start_ns < spin_ns;
            if awake && yields && (gives_way || now_ns > start_ns) {
                let yield_start_ns = now_ns;
                std::thread::yield_now();
                now_ns = self.now_ns();
                awake = self.tempo.note_yielded(now_ns, now_ns - yield_start_ns);
            }
            let sleep_ns = if awake {
                0
            } else {
                due_ns.saturating_sub(now_ns).min(SLEEP_NS_MAX)
            };
            let ready = self.poll(takes_frames, sleep_ns)?;
            let has_event = ready.tap || ready.links != 0;
            let poll_start_ns = now_ns;
            now_ns = self.now_ns();
            if has_event || !awake || now_ns >= due_ns || ready.control || ready.monitor {
                // In bulk traffic, spinning without success is not recorded, so it counts as work.
                // The loop then takes priority sooner.
                if awake || yields {
                    self.tempo.note_spun(poll_start_ns - start_ns);
                }
                if has_event {
                    let source = Source {
                        host: ready.tap,
                        links: ready.links != 0,
                    };
                    self.tempo.note_activity(now_ns, source);
                }
                return Ok(ready);
            }
        }
    }

    fn poll(&mut self, takes_frames: bool, sleep_ns: u64) -> anyhow::Result<Ready> {
        let host = Host {
            tap: self.tap.as_fd(),
            takes_frames,
            control: self.control.wake.as_fd(),
            monitor: self.monitor.as_fd(),
        };
        let links = self.ports.iter().map(|port| Socket {
            fd: port.socket.as_fd(),
            number: port.socket.number(),
            is_blocked: port.is_blocked,
        });
        self.wakers.poll(host, links, sleep_ns)
    }
}
