//! State of one peer.

use crate::protocol::credit::{Demand, Rounds};
use crate::protocol::handshake::Initiator;
use crate::protocol::outbox::Outbox;
use crate::protocol::session::Session;
use std::collections::VecDeque;

/// Name of an Init: the tag at its end.
pub type InitName = [u8; 16];

/// A session that its initiator has not proved yet.
pub struct Candidate {
    pub session: Session,
    pub index: u32,
    pub init: InitName,
    pub reply: Vec<u8>,
    pub is_reply_due: bool,
    /// Time at which it is forgotten, because its Init may be a replay.
    pub expires_ns: u64,
}

/// A handshake that this side has begun.
pub struct Dial {
    pub initiator: Initiator,
    pub index: u32,
    /// Credit that the Init gives the peer.
    pub granted_bytes: u64,
    pub interval_ns: u64,
    pub began_ns: u64,
    pub sent_ns: u64,
    pub is_due: bool,
    /// The peer's own Init counts until this time, and Replies are ignored.
    pub yields_until_ns: u64,
}

/// A peer, with or without a session.
pub struct Peer<A> {
    pub address: A,
    pub session: Option<Session>,
    /// Index of this side in the session.
    pub session_index: Option<u32>,
    /// Init that began the session, if the peer began it.
    pub session_init: Option<InitName>,
    pub candidate: Option<Box<Candidate>>,
    pub dial: Option<Box<Dial>>,
    /// Messages and operations before the first session.
    pub waiting: Option<Box<Outbox>>,
    /// Orders of synchronous messages that are not placed.
    pub synchronous: VecDeque<u64>,
    /// Demand at the last grant.
    pub demand: Demand,
    /// Bytes that arrive in a round trip.
    pub rounds: Rounds,
    /// Bytes of delivered messages that the program has not taken.
    pub queued_bytes: u64,
    /// Interval of the losses in which the peer was counted last.
    pub interval: u64,
    /// Bytes of messages that the program has taken since the last grant.
    pub taken_bytes: u64,
    pub timer_ns: Option<u64>,
    pub is_ready: bool,
}

impl<A> Peer<A> {
    /// Appends the next datagram to `out`. Returns false if nothing is to be sent now.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        if let Some(dial) = self.dial.as_mut().filter(|dial| dial.is_due) {
            dial.is_due = false;
            out.extend_from_slice(&dial.initiator.packet);
            return true;
        }
        let candidate = self.candidate.as_mut();
        if let Some(candidate) = candidate.filter(|candidate| candidate.is_reply_due) {
            candidate.is_reply_due = false;
            out.extend_from_slice(&candidate.reply);
            return true;
        }
        let session = self.session.as_mut();
        session.is_some_and(|session| session.poll_transmit(now_ns, out))
    }
}
