//! Waits for the events of a device's loop: frames from the host, control requests, changes of
//! interfaces, and datagrams of the links.

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Longest sleep, in ns. It limits the harm of a clock that jumps.
pub const SLEEP_NS_MAX: u64 = 100_000_000;

/// Events that woke a loop.
#[derive(Debug, Default)]
pub struct Ready {
    /// A frame of the host can be read.
    pub tap: bool,
    /// A control request arrived.
    pub control: bool,
    /// An interface changed.
    pub monitor: bool,
    /// One bit per link, by its index.
    pub links: u32,
}

/// Descriptors that wake a loop.
#[derive(Debug)]
pub struct Wakers<'a> {
    /// The TAP.
    pub tap: BorrowedFd<'a>,
    /// True if there is room for a frame of the host. Otherwise frames do not wake the loop.
    pub takes_frames: bool,
    /// The eventfd of control requests.
    pub control: BorrowedFd<'a>,
    /// The netlink socket with changes of interfaces.
    pub monitor: BorrowedFd<'a>,
}

impl Wakers<'_> {
    /// Waits at most `sleep_ns` until a descriptor is ready. Each socket comes with a flag that its
    /// send buffer was full. Such a socket also wakes the loop when it can send again.
    ///
    /// # Errors
    /// `ppoll` fails.
    pub fn poll<'b>(
        &self,
        sockets: impl Iterator<Item = (BorrowedFd<'b>, bool)>,
        sleep_ns: u64,
    ) -> anyhow::Result<Ready> {
        let select = |is_wanted, events| {
            if is_wanted {
                events
            } else {
                PollFlags::empty()
            }
        };
        let tap_events = select(self.takes_frames, PollFlags::POLLIN);
        let mut fds = vec![
            PollFd::new(self.tap, tap_events),
            PollFd::new(self.control, PollFlags::POLLIN),
            PollFd::new(self.monitor, PollFlags::POLLIN),
        ];
        let links = fds.len();
        fds.extend(sockets.map(|(socket, is_blocked)| {
            let write_events = select(is_blocked, PollFlags::POLLOUT);
            PollFd::new(socket, PollFlags::POLLIN | write_events)
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
            links: links.fold(0, |set, (link, fd)| set | u32::from(is_ready(fd)) << link),
        })
    }
}
