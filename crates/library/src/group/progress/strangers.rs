//! Connections whose maker is not identified yet.

use super::{EventSource, Progress};
use crate::group::channel::{ReadOutcome, Stream, read_available};
use crate::group::frame::{Channel, HELLO_BYTES, Hello};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Maximum number of unidentified connections, per rank of the group. Each rank makes three at
/// most.
const STRANGERS_PER_RANK_MAX: usize = 4;

/// Maximum number of connections accepted from a listener in one turn. A flood of strangers thus
/// cannot keep the thread from the group.
const ACCEPTS_MAX: usize = 16;

/// Time limit for the hello of a connection.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Pause in accepting connections after `accept` has failed, for instance because the process has
/// no free descriptor. The listener stays readable then, so each turn would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepted connection that is not identified yet.
pub(super) struct Stranger {
    stream: Stream,
    hello: [u8; HELLO_BYTES],
    hello_bytes: usize,
    accepted_at: Instant,
}

impl Progress {
    pub(super) fn accept(&mut self) {
        let mut streams = Vec::new();
        for listener in &self.listeners {
            for _ in 0..ACCEPTS_MAX {
                match listener.accept() {
                    Ok((stream, _)) => streams.push(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        self.accept_pause_end = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
        for stream in streams {
            self.add_stranger(stream);
        }
        if self.accept_pause_end.is_some() {
            self.watch_listeners(EpollFlags::empty());
        }
    }

    fn add_stranger(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.strangers.len() >= STRANGERS_PER_RANK_MAX * self.peers.len() {
            self.strangers.pop_first();
        }
        self.last_stranger_name += 1;
        let name = self.last_stranger_name;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, EventSource::Stranger(name).token());
        if self.epoll.add(&stream, event).is_err() {
            return;
        }
        let stranger = Stranger {
            stream: Stream::new(stream),
            hello: [0; HELLO_BYTES],
            hello_bytes: 0,
            accepted_at: Instant::now(),
        };
        self.strangers.insert(name, stranger);
        // A rank sends its hello at once. It is read now, so that the next connection does not
        // evict this one.
        self.read_hello(name);
    }

    /// Sets the events for which the listeners are polled.
    fn watch_listeners(&self, flags: EpollFlags) {
        for listener in &self.listeners {
            let mut event = EpollEvent::new(flags, EventSource::Listener.token());
            // This cannot fail: the listener was added earlier, and a change allocates nothing.
            let _ = self.epoll.modify(listener, &mut event);
        }
    }

    /// Reads the hello of a connection. A maker that does not know this rank's key is not in the
    /// group.
    pub(super) fn read_hello(&mut self, name: u64) {
        let Some(stranger) = self.strangers.get_mut(&name) else {
            return;
        };
        match read_available(
            &mut stranger.stream,
            &mut stranger.hello[stranger.hello_bytes..],
        ) {
            ReadOutcome::WouldBlock => return,
            ReadOutcome::Bytes(bytes) => stranger.hello_bytes += bytes,
            ReadOutcome::End => {
                self.strangers.remove(&name);
                return;
            }
        }
        if stranger.hello_bytes < HELLO_BYTES {
            return;
        }
        let Some(stranger) = self.strangers.remove(&name) else {
            return;
        };
        let _ = self.epoll.delete(&stranger.stream);
        let own = self.settings.rank;
        let Some(hello) = Hello::parse(&stranger.hello) else {
            return;
        };
        let peer = hello.from as usize;
        let own_key = &self.settings.cards[own].key;
        let is_member =
            self.settings.secret.is_hello(own_key, &hello.key) && peer < self.peers.len();
        if !is_member || peer == own || self.membership.is_lost(peer) {
            return;
        }
        // A data connection of an earlier term is useless.
        if hello.channel != Channel::Control && hello.term < self.membership.term() {
            return;
        }
        match hello.is_call {
            true => self.accept_call(stranger.stream, peer, hello.channel),
            false => self.install_in(stranger.stream, peer, hello.channel, hello.term),
        }
    }

    /// Closes connections whose hello is late. Accepts connections again after a pause.
    pub(super) fn expire_strangers(&mut self, now: Instant) {
        self.strangers.retain(|_, stranger| {
            now.saturating_duration_since(stranger.accepted_at) < HELLO_LIMIT
        });
        if self.accept_pause_end.take_if(|end| now >= *end).is_some() {
            self.watch_listeners(EpollFlags::EPOLLIN);
        }
    }
}
