//! Connections between peers. The sender makes a connection. If a firewall or an address translator
//! blocks it, the receiver makes a reverse connection instead.
//!
//! ```text
//!  rank 1 ──── control: hello ─────────────────► rank 0      blocked: rank 0 cannot be reached
//!  rank 1 ◄─── control: hello (reverse) ──────── rank 0      rank 1's hello has not arrived
//!  rank 1 ──── control: call for chunks ───────► rank 0      when rank 1 has chunks to send
//!  rank 1 ◄─── chunks: hello (reverse) ───────── rank 0
//! ```

use super::{EventSource, Progress};
use crate::group::card::reach;
use crate::group::channel::{InConnection, OutConnection, Stream};
use crate::group::frame::{Channel, Hello, Kind};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::io;
use std::time::{Duration, Instant};

/// Time to wait for a rank's control connection before a reverse one is made. A connection that is
/// not blocked normally takes less.
const CALL_AFTER: Duration = Duration::from_millis(500);

impl Progress {
    /// Returns the connection of a kind to a peer, and makes it if necessary. Returns `None` if the
    /// peer cannot be reached. Its loss is detected soon after.
    pub(super) fn open_connection(
        &mut self,
        peer: usize,
        channel: Channel,
    ) -> Option<&mut OutConnection> {
        if self.out_connection(peer, channel).is_none() {
            if self.peers[peer].is_caller && channel != Channel::Control {
                self.queue_control(peer, Kind::Call, 0, channel as u64, &[]);
                *self.out_connection(peer, channel) = Some(OutConnection::pending());
                return self.out_connection(peer, channel).as_mut();
            }
            match self.connect(peer, channel, false) {
                Ok(connection) => self.install_out(connection, peer, channel),
                Err(_) => {
                    self.handle_broken_connection(peer, channel);
                    return None;
                }
            }
        }
        self.out_connection(peer, channel).as_mut()
    }

    /// Installs a connection to send on. It is already registered with epoll.
    fn install_out(&mut self, mut connection: OutConnection, peer: usize, channel: Channel) {
        connection.is_watched = true;
        if let (Some(pace), Channel::Chunks) = (self.settings.pace_bytes_per_s[peer], channel) {
            connection.set_pace(pace);
        }
        *self.out_connection(peer, channel) = Some(connection);
    }

    /// Starts to connect: to send, or in a reverse connection to receive.
    fn connect(&self, peer: usize, channel: Channel, is_call: bool) -> io::Result<OutConnection> {
        let card = &self.settings.cards[peer];
        let hello = Hello {
            channel,
            is_call,
            from: self.settings.rank as u32,
            term: self.membership.term(),
            key: self.settings.secret.hello(&card.key),
        };
        let address =
            reach(card, &self.settings.local_addresses).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let connection = OutConnection::connect(address, channel, &hello.bytes())?;
        let source = match is_call {
            true => EventSource::Call(peer, channel),
            false => EventSource::Out(peer, channel),
        };
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        if let Some(stream) = connection.stream() {
            self.epoll
                .add(stream, EpollEvent::new(flags, source.token()))?;
        }
        Ok(connection)
    }

    /// Makes reverse connections to ranks whose control connection is missing, while ranks find
    /// each other.
    pub(super) fn call_missing_peers(&mut self, now: Instant) {
        if now.saturating_duration_since(self.began_at) < CALL_AFTER {
            return;
        }
        for peer in self.live_peers() {
            let is_called = self.calls.contains_key(&(peer, Channel::Control));
            if self.peers[peer].control_in.is_none() && !is_called {
                self.call(peer, Channel::Control);
            }
        }
    }

    /// Makes a reverse connection, on which a peer may send to this rank.
    pub(super) fn call(&mut self, peer: usize, channel: Channel) {
        // After a failure, the call is repeated, or the rank is reported as not found.
        if let Ok(connection) = self.connect(peer, channel, true) {
            self.calls.insert((peer, channel), connection);
        }
    }

    /// Handles a peer's request for a reverse connection. Returns false if its kind is invalid.
    pub(super) fn handle_call(&mut self, peer: usize, number: u64) -> bool {
        match Channel::from_number(number) {
            None | Some(Channel::Control) => false,
            Some(channel) => {
                self.call(peer, channel);
                true
            }
        }
    }

    /// Continues a reverse connection. When its hello has been written, the peer sends on it.
    pub(super) fn continue_call(&mut self, peer: usize, channel: Channel) {
        let Some(mut call) = self.calls.remove(&(peer, channel)) else {
            return;
        };
        if call.flush(|_| None).is_err() {
            return;
        }
        if !call.is_idle() {
            self.calls.insert((peer, channel), call);
            return;
        }
        let Some(stream) = call.into_stream() else {
            return;
        };
        let _ = self.epoll.delete(&stream);
        // If the peer's own control connection has been made meanwhile, that one remains in use.
        if channel != Channel::Control || self.peers[peer].control_in.is_none() {
            self.install_in(stream, peer, channel, self.membership.term());
        }
    }

    /// Installs a connection on which a peer sends.
    pub(super) fn install_in(&mut self, stream: Stream, peer: usize, channel: Channel, term: u32) {
        let connection = InConnection::new(stream, channel, term);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, EventSource::In(peer, channel).token());
        if self.epoll.add(&connection, event).is_ok() {
            self.peers[peer].received_at = Instant::now();
            *self.in_connection(peer, channel) = Some(connection);
        }
        self.settle_join();
    }

    /// Handles a reverse connection, which a peer made for this rank to send on.
    pub(super) fn accept_call(&mut self, stream: Stream, peer: usize, channel: Channel) {
        let own = self.out_connection(peer, channel).as_ref();
        if own.is_some_and(OutConnection::is_established) {
            // The peer soon receives data on this rank's own connection. Until then it knows only
            // this one.
            self.spare_calls.insert((peer, channel), stream);
            return;
        }
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        let event = EpollEvent::new(flags, EventSource::Out(peer, channel).token());
        if self.epoll.add(&stream, event).is_err() {
            return;
        }
        let mut connection = self
            .out_connection(peer, channel)
            .take()
            .unwrap_or_else(OutConnection::pending);
        connection.adopt(stream, channel);
        self.install_out(connection, peer, channel);
        let state = &mut self.peers[peer];
        (state.is_caller, state.broken_at) = (true, None);
        self.settle_join();
    }
}
