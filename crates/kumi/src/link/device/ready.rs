//! What a device's loop waits for: frames of the host, calls, changes of interfaces, datagrams of the links.

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The longest sleep, so that a clock that jumps does no harm.
pub(super) const SLEEP_NS_MAX: u64 = 100_000_000;

/// What woke a loop.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) tap: bool,
    pub(super) control: bool,
    pub(super) monitor: bool,
    /// A bit for each link, by its place.
    pub(super) links: u32,
}

/// Descriptors that wake a loop.
pub(super) struct Wakers<'a> {
    pub(super) tap: BorrowedFd<'a>,
    /// Whether there is room for a frame of the host; if not, none wakes the loop.
    pub(super) takes_frames: bool,
    pub(super) control: BorrowedFd<'a>,
    pub(super) monitor: BorrowedFd<'a>,
}

impl Wakers<'_> {
    /// Waits at most `sleep_ns` for a descriptor to become ready. A socket whose buffer was full also wakes the loop when it
    /// can send again.
    pub(super) fn poll<'b>(
        &self,
        sockets: impl Iterator<Item = (BorrowedFd<'b>, bool)>,
        sleep_ns: u64,
    ) -> anyhow::Result<Ready> {
        let wanted = |is_wanted, events| {
            if is_wanted {
                events
            } else {
                PollFlags::empty()
            }
        };
        let tap_events = wanted(self.takes_frames, PollFlags::POLLIN);
        let mut fds = vec![
            PollFd::new(self.tap, tap_events),
            PollFd::new(self.control, PollFlags::POLLIN),
            PollFd::new(self.monitor, PollFlags::POLLIN),
        ];
        let links = fds.len();
        fds.extend(sockets.map(|(socket, is_blocked)| {
            let out = wanted(is_blocked, PollFlags::POLLOUT);
            PollFd::new(socket, PollFlags::POLLIN | out)
        }));
        let timeout = TimeSpec::from_duration(Duration::from_nanos(sleep_ns));
        match ppoll(&mut fds, Some(timeout), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let links = fds[links..].iter().enumerate();
        Ok(Ready {
            tap: is_ready(&fds[0]) && self.takes_frames,
            control: is_ready(&fds[1]),
            monitor: is_ready(&fds[2]),
            links: links.fold(0, |links, (at, fd)| links | u32::from(is_ready(fd)) << at),
        })
    }
}
