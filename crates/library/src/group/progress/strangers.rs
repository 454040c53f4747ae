//! Connections whose maker is not identified yet.

use super::{Progress, Ready};
use crate::group::frame::{HELLO_BYTES, Hello, Lane};
use crate::group::lane::{Stream, Took, take};
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
    have: usize,
    since: Instant,
}

impl Progress {
    pub(super) fn accept(&mut self) {
        let mut accepted = Vec::new();
        for listener in &self.listeners {
            for _ in 0..ACCEPTS_MAX {
                match listener.accept() {
                    Ok((stream, _)) => accepted.push(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        self.accepts_from = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
        for stream in accepted {
            self.meet(stream);
        }
        if self.accepts_from.is_some() {
            self.watch_listeners(EpollFlags::empty());
        }
    }

    fn meet(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.strangers.len() >= STRANGERS_PER_RANK_MAX * self.peers.len() {
            self.strangers.pop_first();
        }
        self.strangers_named += 1;
        let name = self.strangers_named;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Ready::Stranger(name).token());
        if self.epoll.add(&stream, event).is_err() {
            return;
        }
        let stranger = Stranger {
            stream: Stream::new(stream),
            hello: [0; HELLO_BYTES],
            have: 0,
            since: Instant::now(),
        };
        self.strangers.insert(name, stranger);
        // A rank sends its hello at once. It is read now, so that the next connection does not
        // evict this one.
        self.greet(name);
    }

    /// Sets the events for which the listeners are polled.
    fn watch_listeners(&self, flags: EpollFlags) {
        for listener in &self.listeners {
            let mut event = EpollEvent::new(flags, Ready::Listener.token());
            // This cannot fail: the listener was added earlier, and a change allocates nothing.
            let _ = self.epoll.modify(listener, &mut event);
        }
    }

    /// Reads the hello of a connection. A maker that does not know this rank's key is not in the
    /// group.
    pub(super) fn greet(&mut self, name: u64) {
        let Some(stranger) = self.strangers.get_mut(&name) else {
            return;
        };
        match take(&mut stranger.stream, &mut stranger.hello[stranger.have..]) {
            Took::Nothing => return,
            Took::Bytes(bytes) => stranger.have += bytes,
            Took::End => {
                self.strangers.remove(&name);
                return;
            }
        }
        if stranger.have < HELLO_BYTES {
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
        let is_one = self.settings.secret.is_hello(own_key, &hello.key) && peer < self.peers.len();
        if !is_one || peer == own || self.membership.is_lost(peer) {
            return;
        }
        // A data connection of an earlier term is useless.
        if hello.lane != Lane::Words && hello.term < self.membership.term() {
            return;
        }
        match hello.is_call {
            true => self.is_called(stranger.stream, peer, hello.lane),
            false => self.come_by(stranger.stream, peer, hello.lane, hello.term),
        }
    }

    /// Closes connections whose hello is late. Accepts connections again after a pause.
    pub(super) fn dismiss(&mut self, now: Instant) {
        self.strangers
            .retain(|_, stranger| now.saturating_duration_since(stranger.since) < HELLO_LIMIT);
        if self.accepts_from.take_if(|from| now >= *from).is_some() {
            self.watch_listeners(EpollFlags::EPOLLIN);
        }
    }
}
