//! Connections between peers. The sender makes a connection. If a firewall or an address translator
//! blocks it, the receiver makes a reverse connection instead.
//!
//! ```text
//!  rank 1 ──── control: hello ─────────────────► rank 0      blocked: rank 0 cannot be reached
//!  rank 1 ◄─── control: hello (reverse) ──────── rank 0      rank 1's hello has not arrived
//!  rank 1 ──── control: call for chunks ───────► rank 0      when rank 1 has chunks to send
//!  rank 1 ◄─── chunks: hello (reverse) ───────── rank 0
//! ```

use super::{Progress, Ready};
use crate::group::card::reach;
use crate::group::frame::{Hello, Kind, Lane};
use crate::group::lane::{In, Out, Stream};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::io;
use std::time::{Duration, Instant};

/// Time to wait for a rank's control connection before a reverse one is made. A connection that is
/// not blocked normally takes less.
const CALL_AFTER: Duration = Duration::from_millis(500);

impl Progress {
    /// Returns the connection of a kind to a peer, and makes it if necessary. Returns `None` if the
    /// peer cannot be reached. Its loss is detected soon after.
    pub(super) fn lane(&mut self, peer: usize, lane: Lane) -> Option<&mut Out> {
        if self.out(peer, lane).is_none() {
            if self.peers[peer].calls && lane != Lane::Words {
                self.say(peer, Kind::Call, 0, lane as u64, &[]);
                *self.out(peer, lane) = Some(Out::awaited());
                return self.out(peer, lane).as_mut();
            }
            match self.connect(peer, lane, false) {
                Ok(out) => self.send_on(out, peer, lane),
                Err(_) => {
                    self.broke(peer, lane);
                    return None;
                }
            }
        }
        self.out(peer, lane).as_mut()
    }

    /// Installs a connection to send on. It is already registered with epoll.
    fn send_on(&mut self, mut out: Out, peer: usize, lane: Lane) {
        out.is_watched = true;
        if let (Some(pace), Lane::Pieces) = (self.settings.pace[peer], lane) {
            out.set_pace(pace);
        }
        *self.out(peer, lane) = Some(out);
    }

    /// Starts to connect: to send, or in a reverse connection to receive.
    fn connect(&self, peer: usize, lane: Lane, is_call: bool) -> io::Result<Out> {
        let card = &self.settings.cards[peer];
        let hello = Hello {
            lane,
            is_call,
            from: self.settings.rank as u32,
            term: self.membership.term(),
            key: self.settings.secret.hello(&card.key),
        };
        let to = reach(card, &self.settings.own).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let out = Out::connect(to, lane, &hello.bytes())?;
        let ready = match is_call {
            true => Ready::Call(peer, lane),
            false => Ready::Out(peer, lane),
        };
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        if let Some(stream) = out.stream() {
            self.epoll
                .add(stream, EpollEvent::new(flags, ready.token()))?;
        }
        Ok(out)
    }

    /// Makes reverse connections to ranks whose control connection is missing, while ranks find
    /// each other.
    pub(super) fn call_the_silent(&mut self, now: Instant) {
        if now.saturating_duration_since(self.began_at) < CALL_AFTER {
            return;
        }
        for peer in self.others() {
            let is_called = self.calls.contains_key(&(peer, Lane::Words));
            if self.peers[peer].words_in.is_none() && !is_called {
                self.call(peer, Lane::Words);
            }
        }
    }

    /// Makes a reverse connection, on which a peer may send to this rank.
    pub(super) fn call(&mut self, peer: usize, lane: Lane) {
        // After a failure, the call is repeated, or the rank is reported as not found.
        if let Ok(out) = self.connect(peer, lane, true) {
            self.calls.insert((peer, lane), out);
        }
    }

    /// Handles a peer's request for a reverse connection. Returns false if its kind is invalid.
    pub(super) fn hear_call(&mut self, peer: usize, number: u64) -> bool {
        match Lane::of_number(number) {
            None | Some(Lane::Words) => false,
            Some(lane) => {
                self.call(peer, lane);
                true
            }
        }
    }

    /// Continues a reverse connection. When its hello has been written, the peer sends on it.
    pub(super) fn go_on_calling(&mut self, peer: usize, lane: Lane) {
        let Some(mut call) = self.calls.remove(&(peer, lane)) else {
            return;
        };
        if call.flush(|_| None).is_err() {
            return;
        }
        if !call.is_idle() {
            self.calls.insert((peer, lane), call);
            return;
        }
        let Some(stream) = call.into_stream() else {
            return;
        };
        let _ = self.epoll.delete(&stream);
        // If the peer's own control connection has been made meanwhile, that one remains in use.
        if lane != Lane::Words || self.peers[peer].words_in.is_none() {
            self.come_by(stream, peer, lane, self.membership.term());
        }
    }

    /// Installs a connection on which a peer sends.
    pub(super) fn come_by(&mut self, stream: Stream, peer: usize, lane: Lane, term: u32) {
        let come = In::new(stream, lane, term);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Ready::In(peer, lane).token());
        if self.epoll.add(&come, event).is_ok() {
            self.peers[peer].heard_at = Instant::now();
            *self.come(peer, lane) = Some(come);
        }
        self.is_joined();
    }

    /// Handles a reverse connection, which a peer made for this rank to send on.
    pub(super) fn is_called(&mut self, stream: Stream, peer: usize, lane: Lane) {
        let own = self.out(peer, lane).as_ref();
        if own.is_some_and(Out::has_begun) {
            // The peer soon receives data on this rank's own connection. Until then it knows only
            // this one.
            self.spare.insert((peer, lane), stream);
            return;
        }
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        let event = EpollEvent::new(flags, Ready::Out(peer, lane).token());
        if self.epoll.add(&stream, event).is_err() {
            return;
        }
        let mut out = self.out(peer, lane).take().unwrap_or_else(Out::awaited);
        out.adopt(stream, lane);
        self.send_on(out, peer, lane);
        let of = &mut self.peers[peer];
        (of.calls, of.broken_at) = (true, None);
        self.is_joined();
    }
}
