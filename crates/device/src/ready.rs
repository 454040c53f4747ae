//! Waits for the events of a device's loop: frames from the host, control requests, changes of
//! interfaces, and datagrams of the links.
//!
//! The descriptors are in an epoll set, so a look at it costs the same with one link as with 20.
//! The set is polled for the sake of timeouts of less than a millisecond, which epoll has only
//! since Linux 5.11.

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Longest sleep, in ns. It limits the harm of a clock that jumps.
pub const SLEEP_NS_MAX: u64 = 100_000_000;

/// Positions in the set. The links follow.
const TAP: usize = 0;
const CONTROL: usize = 1;
const MONITOR: usize = 2;
const LINKS: usize = 3;
/// Most events that one look returns: one for each bit of [`Ready::links`], and the three others.
/// Others are returned by the next look.
const EVENTS_MAX: usize = LINKS + u32::BITS as usize;

/// Events that woke a loop.
#[derive(Debug, Default, PartialEq, Eq)]
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

/// Descriptors of a device, other than its links'.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The TAP.
    pub tap: BorrowedFd<'a>,
    /// True if there is room for a frame of the host. Otherwise frames do not wake the loop.
    pub takes_frames: bool,
    /// The eventfd of control requests.
    pub control: BorrowedFd<'a>,
    /// The netlink socket with changes of interfaces.
    pub monitor: BorrowedFd<'a>,
}

/// Socket of a link.
#[derive(Debug, Clone, Copy)]
pub struct Socket<'a> {
    /// Its descriptor.
    pub fd: BorrowedFd<'a>,
    /// Number that no other socket of the device has had. Descriptors are used again.
    pub number: u64,
    /// True if its send buffer was full. It then also wakes the loop when it can send again.
    pub is_blocked: bool,
}

/// Member of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    fd: RawFd,
    number: u64,
    events: EpollFlags,
}

/// The descriptors that wake a loop.
#[derive(Debug)]
pub struct Wakers {
    set: Epoll,
    members: Vec<Member>,
}

impl Wakers {
    /// Returns wakers that watch nothing yet.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn new() -> anyhow::Result<Self> {
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        Ok(Self {
            set: set.context("cannot create an epoll set")?,
            members: Vec::new(),
        })
    }

    /// Waits at most `sleep_ns` until a descriptor of `host` or of `links` is ready.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn poll<'a>(
        &mut self,
        host: Host<'a>,
        links: impl Iterator<Item = Socket<'a>> + Clone,
        sleep_ns: u64,
    ) -> anyhow::Result<Ready> {
        let select = |is_wanted, events| {
            if is_wanted {
                events
            } else {
                EpollFlags::empty()
            }
        };
        let input = EpollFlags::EPOLLIN;
        let others = [
            (host.tap, select(host.takes_frames, input)),
            (host.control, input),
            (host.monitor, input),
        ];
        let sockets = links.map(|socket| {
            let output = select(socket.is_blocked, EpollFlags::EPOLLOUT);
            (socket.fd, socket.number, input | output)
        });
        let others = others.into_iter().map(|(fd, events)| (fd, 0, events));
        self.follow(others.chain(sockets))?;
        if sleep_ns > 0 {
            let timeout = TimeSpec::from_duration(Duration::from_nanos(sleep_ns));
            let set = &mut [PollFd::new(self.set.0.as_fd(), PollFlags::POLLIN)];
            match ppoll(set, Some(timeout), None) {
                Ok(_) => {}
                Err(Errno::EINTR) => return Ok(Ready::default()),
                Err(error) => return Err(error.into()),
            }
        }
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let count = self.set.wait(&mut events, EpollTimeout::ZERO)?;
        let mut ready = Ready::default();
        for event in &events[..count] {
            match event.data() as usize {
                TAP => ready.tap = host.takes_frames,
                CONTROL => ready.control = true,
                MONITOR => ready.monitor = true,
                link => ready.links |= 1 << (link - LINKS),
            }
        }
        Ok(ready)
    }

    /// Makes the set watch these descriptors, each with its number and its events.
    fn follow<'a>(
        &mut self,
        wanted: impl Iterator<Item = (BorrowedFd<'a>, u64, EpollFlags)> + Clone,
    ) -> anyhow::Result<()> {
        let mut count = 0;
        for (index, (fd, number, events)) in wanted.clone().enumerate() {
            let is_member =
                |member: &&mut Member| (member.fd, member.number) == (fd.as_raw_fd(), number);
            let Some(member) = self.members.get_mut(index).filter(is_member) else {
                return self.rebuild(wanted);
            };
            if member.events != events {
                let mut event = EpollEvent::new(events, index as u64);
                self.set.modify(fd, &mut event)?;
                member.events = events;
            }
            count += 1;
        }
        if count < self.members.len() {
            return self.rebuild(wanted);
        }
        Ok(())
    }

    fn rebuild<'a>(
        &mut self,
        wanted: impl Iterator<Item = (BorrowedFd<'a>, u64, EpollFlags)>,
    ) -> anyhow::Result<()> {
        *self = Self::new()?;
        for (index, (fd, number, events)) in wanted.enumerate() {
            let added = self.set.add(fd, EpollEvent::new(events, index as u64));
            added.context("cannot watch a descriptor")?;
            let fd = fd.as_raw_fd();
            self.members.push(Member { fd, number, events });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// A device whose descriptors are halves of socket pairs.
    struct Ends {
        host: [UnixDatagram; 3],
        far: [UnixDatagram; 3],
    }

    impl Ends {
        fn new() -> Self {
            let pairs = [(); 3].map(|()| UnixDatagram::pair().unwrap());
            let [a, b, c] = pairs;
            Self {
                host: [a.0, b.0, c.0],
                far: [a.1, b.1, c.1],
            }
        }

        fn host(&self, takes_frames: bool) -> Host<'_> {
            Host {
                tap: self.host[TAP].as_fd(),
                takes_frames,
                control: self.host[CONTROL].as_fd(),
                monitor: self.host[MONITOR].as_fd(),
            }
        }
    }

    fn socket(link: &UnixDatagram, number: u64, is_blocked: bool) -> Socket<'_> {
        Socket {
            fd: link.as_fd(),
            number,
            is_blocked,
        }
    }

    fn look(wakers: &mut Wakers, host: Host<'_>, links: &[Socket<'_>]) -> Ready {
        wakers.poll(host, links.iter().copied(), 0).unwrap()
    }

    #[test]
    fn wakers__each_descriptor__is_reported_until_it_is_read() {
        let (ends, link) = (Ends::new(), UnixDatagram::pair().unwrap());
        let mut wakers = Wakers::new().unwrap();
        let links = [socket(&link.0, 1, false)];
        assert_eq!(look(&mut wakers, ends.host(true), &links), Ready::default());
        for end in ends.far.iter().chain([&link.1]) {
            end.send(b"x").unwrap();
        }
        let all = Ready {
            tap: true,
            control: true,
            monitor: true,
            links: 1,
        };
        for _ in 0..2 {
            assert_eq!(look(&mut wakers, ends.host(true), &links), all);
        }
        let without_frames = look(&mut wakers, ends.host(false), &links);
        assert_eq!(without_frames, Ready { tap: false, ..all });
        assert_eq!(look(&mut wakers, ends.host(true), &links), all);
        link.0.recv(&mut [0; 8]).unwrap();
        let rest = look(&mut wakers, ends.host(true), &links);
        assert_eq!(rest, Ready { links: 0, ..all });
    }

    #[test]
    fn wakers__blocked_socket__is_ready_when_it_can_send() {
        let (ends, link) = (Ends::new(), UnixDatagram::pair().unwrap());
        let mut wakers = Wakers::new().unwrap();
        for (is_blocked, links) in [(false, 0), (true, 1), (false, 0)] {
            let ready = look(
                &mut wakers,
                ends.host(true),
                &[socket(&link.0, 1, is_blocked)],
            );
            assert_eq!(ready.links, links);
        }
    }

    #[test]
    fn wakers__sockets_that_come_and_go__are_followed_though_descriptors_are_used_again() {
        let ends = Ends::new();
        let mut wakers = Wakers::new().unwrap();
        let first = UnixDatagram::pair().unwrap();
        let second = UnixDatagram::pair().unwrap();
        let both = [socket(&first.0, 1, false), socket(&second.0, 2, false)];
        assert_eq!(look(&mut wakers, ends.host(true), &both).links, 0);
        second.1.send(b"x").unwrap();
        assert_eq!(look(&mut wakers, ends.host(true), &both).links, 0b10);
        drop(first);
        let alone = look(&mut wakers, ends.host(true), &[socket(&second.0, 2, false)]);
        assert_eq!(alone.links, 0b1);
        let third = UnixDatagram::pair().unwrap();
        let pair = [socket(&third.0, 3, false), socket(&second.0, 2, false)];
        assert_eq!(look(&mut wakers, ends.host(true), &pair).links, 0b10);
        let fourth = UnixDatagram::pair().unwrap();
        fourth.1.send(b"x").unwrap();
        let mut again = OwnedFd::from(third.0);
        nix::unistd::dup2(&fourth.0, &mut again).unwrap();
        let again = UnixDatagram::from(again);
        let pair = [socket(&again, 4, false), socket(&second.0, 2, false)];
        assert_eq!(look(&mut wakers, ends.host(true), &pair).links, 0b11);
    }

    #[test]
    fn wakers__event_during_the_sleep__ends_it() {
        let ends = Ends::new();
        let mut wakers = Wakers::new().unwrap();
        let start = std::time::Instant::now();
        let waker = std::thread::spawn({
            let far = ends.far[TAP].try_clone().unwrap();
            move || {
                std::thread::sleep(Duration::from_millis(20));
                far.send(b"x").unwrap();
            }
        });
        let ready = wakers.poll(ends.host(true), [].into_iter(), 60_000_000_000);
        assert!(ready.unwrap().tap && start.elapsed() < Duration::from_secs(30));
        waker.join().unwrap();
        ends.host[TAP].recv(&mut [0; 8]).unwrap();
        let ready = wakers.poll(ends.host(true), [].into_iter(), 1_000).unwrap();
        assert_eq!(ready, Ready::default(), "the time is over");
    }
}
