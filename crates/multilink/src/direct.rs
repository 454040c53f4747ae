//! Frames that the kernels of both sides carry on a path, without the daemons.
//!
//! ```text
//!   this side                                    peer
//!       │ offer: my address A, my alias a          │
//!       │ ───────────────────────────────────────▶ │  its kernel takes frames from a
//!       │     offer: its address B, accepted = a   │
//!       │ ◀─────────────────────────────────────── │
//!   its kernel sends frames to B, from a
//! ```
//!
//! When a side has read its own alias in an offer, its daemon asks the peer's kernel again and
//! again on the path. The first answer shows that nothing on the way drops such frames, and the
//! direction begins. From then on, the silence of the peer's kernel counts, and that of its daemon
//! does not. The frames stop when the path is not up, and begin again with an answer. They also
//! stop when the path loses too many of them, because only the daemon repairs losses.

use crate::link::DirectLink;
use crate::wire::{Mac, Offer};
use std::collections::VecDeque;

/// Interval of offers on a path, in ns.
const OFFER_NS: u64 = 1_000_000_000;
/// Time without an offer after which the peer's last one is void, in ns: three offers.
const VOID_NS: u64 = 3 * OFFER_NS;
/// Time after the last question for which the kernel's silence counts, in ns. The longest interval
/// of questions is 100 ms.
const ASKED_NS: u64 = 250_000_000;
/// Most questions without an answer that are remembered: the oldest ones tell the silence.
const OPEN_MAX: usize = 64;

/// Offers and questions on one path.
#[derive(Debug, Default)]
pub struct Direct {
    /// The peer's last offer, with the time of its arrival.
    theirs: Option<(Offer, u64)>,
    /// Alias of the peer whose frames this side's kernel takes; 0 for none.
    accepted: Mac,
    /// Time at which the last offer was sent.
    offered_at_ns: u64,
    /// The peer must be told something new.
    has_news: bool,
    /// The peer's kernel has answered since its addresses changed or the path was down.
    is_answered: bool,
    /// Times of the questions without an answer, and of the last question.
    open: VecDeque<u64>,
    asked_at_ns: u64,
    /// Smoothed round trip of questions and its deviation, in ns; `None` before the first answer.
    trip_ns: Option<(u64, u64)>,
    /// The path lost too many of the kernel's frames, and the daemon has not found it clean since.
    pub is_lossy: bool,
}

impl Direct {
    /// Records an offer of the peer. Returns whether it differs from the last one.
    pub fn note(&mut self, offer: Offer, now_ns: u64) -> bool {
        let is_new = self.theirs.is_none_or(|(known, _)| known != offer);
        // The peer may have lost what this side accepted, or not have heard it yet.
        self.has_news |= is_new;
        self.theirs = Some((offer, now_ns));
        if is_new {
            self.note_down();
        }
        is_new
    }

    /// Returns the peer's offer, if it is valid. While the peer's kernel answers, it stays so,
    /// because the kernel does without its daemon.
    pub fn theirs(&self, now_ns: u64) -> Option<Offer> {
        let (offer, at_ns) = self.theirs?;
        (now_ns < at_ns + VOID_NS || self.is_asked(now_ns)).then_some(offer)
    }

    /// Records that this side's kernel takes frames from an alias of the peer.
    pub fn accept(&mut self, alias: Mac) {
        self.has_news |= self.accepted != alias;
        self.accepted = alias;
    }

    /// Records a question to the peer's kernel.
    pub fn note_question(&mut self, now_ns: u64) {
        self.asked_at_ns = now_ns;
        if self.is_answered && self.open.len() < OPEN_MAX {
            self.open.push_back(now_ns);
        }
    }

    /// Records that the peer's kernel answered the question of this time after `trip_ns`. It forgot
    /// none before. Returns whether it is the first answer.
    pub fn note_answer(&mut self, asked_at_ns: u64, trip_ns: u64) -> bool {
        let smoothed = self.trip_ns.map(|(known, deviation)| {
            let apart_ns = known.abs_diff(trip_ns);
            let deviation_ns = deviation - deviation / 4 + apart_ns / 4;
            (known - known / 8 + trip_ns / 8, deviation_ns)
        });
        self.trip_ns = smoothed.or(Some((trip_ns, trip_ns / 2)));
        let is_first = !std::mem::replace(&mut self.is_answered, true);
        while self
            .oldest_question_ns()
            .is_some_and(|at| at <= asked_at_ns)
        {
            self.open.pop_front();
        }
        is_first
    }

    /// Returns whether the peer's kernel has answered since the path was down last.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Records that the path went down. Its next frame leaves after an answer.
    pub fn note_down(&mut self) {
        self.is_answered = false;
        self.open.clear();
        self.trip_ns = None;
    }

    /// Returns whether the silence of the peer's kernel counts.
    pub fn is_asked(&self, now_ns: u64) -> bool {
        self.is_answered && now_ns < self.asked_at_ns + ASKED_NS
    }

    /// Returns the time within which an answer is due, in ns: as TCP's timeout without its floor
    /// (RFC 6298). No daemon's delay is in it.
    pub fn due_after_ns(&self) -> Option<u64> {
        self.trip_ns
            .map(|(trip_ns, deviation_ns)| trip_ns + 4 * deviation_ns)
    }

    /// Returns the time of the oldest question without an answer.
    pub fn oldest_question_ns(&self) -> Option<u64> {
        self.open.front().copied()
    }

    /// Returns the time at which the next offer is due.
    pub fn due_ns(&self) -> u64 {
        match self.has_news {
            true => 0,
            false => self.offered_at_ns + OFFER_NS,
        }
    }

    /// Returns the next offer, which is sent at once, with this side's addresses.
    pub fn offer(&mut self, own: DirectLink, now_ns: u64) -> Offer {
        self.offered_at_ns = now_ns;
        self.has_news = false;
        Offer {
            address: own.address,
            alias: own.alias,
            accepted: self.accepted,
            key: own.key,
        }
    }
}
