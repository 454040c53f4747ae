//! How peers are reached: each lane is made by who sends on it, or, where a firewall or an address translator lets nobody
//! in, by who is sent to.
//!
//! ```text
//!   rank 1 ──── words: hello ───────────────────► rank 0      (rank 0 cannot be reached)
//!   rank 1 ◄─── words: hello, a call ──────────── rank 0      when it has waited for rank 1's in vain
//!   rank 1 ──── call: pieces ───────────────────► rank 0      when rank 1 has pieces to send
//!   rank 1 ◄─── pieces: hello, a call ─────────── rank 0
//! ```

use super::{Progress, Ready};
use crate::group::card::reach;
use crate::group::frame::{Hello, Kind, Lane};
use crate::group::lane::{In, Out, Stream};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::io;
use std::time::{Duration, Instant};

/// Words of a rank that have not come by then will not: it is called.
const CALL_AFTER: Duration = Duration::from_millis(500);

impl Progress {
    /// A lane to a peer, made if there is none. `None` if the peer cannot be reached, which is found out soon.
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

    /// Takes a connection that is polled for a lane.
    fn send_on(&mut self, mut out: Out, peer: usize, lane: Lane) {
        out.is_watched = true;
        if let (Some(pace), Lane::Pieces) = (self.settings.pace[peer], lane) {
            out.set_pace(pace);
        }
        *self.out(peer, lane) = Some(out);
    }

    /// Begins to connect, to send or to be sent to.
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

    /// Calls those of whom no word has come, while ranks find each other.
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

    /// Makes a lane on which a peer may send to this rank.
    pub(super) fn call(&mut self, peer: usize, lane: Lane) {
        // Who cannot be reached either is called again, or not found.
        if let Ok(out) = self.connect(peer, lane, true) {
            self.calls.insert((peer, lane), out);
        }
    }

    /// A peer that cannot connect wants a lane.
    pub(super) fn hear_call(&mut self, peer: usize, number: u64) -> bool {
        match Lane::of_number(number) {
            None | Some(Lane::Words) => false,
            Some(lane) => {
                self.call(peer, lane);
                true
            }
        }
    }

    /// A call goes on: when it has been said, the lane is the peer's to send on.
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
        // Words that have come by the peer's own connection since go on doing so.
        if lane != Lane::Words || self.peers[peer].words_in.is_none() {
            self.come_by(stream, peer, lane, self.membership.term());
        }
    }

    /// A connection is there by which a peer sends.
    pub(super) fn come_by(&mut self, stream: Stream, peer: usize, lane: Lane, term: u32) {
        let come = In::new(stream, lane, term);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Ready::In(peer, lane).token());
        if self.epoll.add(&come, event).is_ok() {
            self.peers[peer].heard_at = Instant::now();
            *self.come(peer, lane) = Some(come);
        }
        self.is_joined();
    }

    /// A peer has made a connection for this rank to send on.
    pub(super) fn is_called(&mut self, stream: Stream, peer: usize, lane: Lane) {
        let own = self.out(peer, lane).as_ref();
        if own.is_some_and(Out::has_begun) {
            // The peer hears on its own connection soon; until then it knows of this one only.
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
