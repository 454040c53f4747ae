//! Messages and operations that wait to be sent, and the time when they are worth a packet.

use super::Endpoint;
use super::terms::PeerId;
use crate::protocol::session::Session;
use std::hash::Hash;

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    /// Returns whether a message that was just submitted should be sent at once. Otherwise it
    /// shares a datagram with others when an acknowledgement arrives. `is_stream` states that more
    /// follow at once.
    pub fn is_worth_sending(&self, peer: PeerId, is_stream: bool, now_ns: u64) -> bool {
        let session = self.peers.get(&peer).and_then(|peer| peer.session.as_ref());
        session.is_none_or(|session| session.is_worth_sending(is_stream, now_ns))
    }

    /// Returns whether a peer waits for something that is to be sent.
    pub fn is_awaited(&self) -> bool {
        let ready = self.ready.iter().filter_map(|id| self.peers.get(id));
        let mut sessions = ready.filter_map(|peer| peer.session.as_ref());
        !self.responses.is_empty() || sessions.any(Session::is_awaited)
    }

    /// Returns the bytes of messages and operations to a peer that wait or are in flight.
    pub fn unsent_bytes(&self, peer: PeerId) -> u64 {
        let Some(peer) = self.peers.get(&peer) else {
            return 0;
        };
        match (&peer.session, &peer.waiting) {
            (Some(session), _) => session.unsent_bytes(),
            (None, waiting) => waiting.as_ref().map_or(0, |waiting| waiting.held_bytes()),
        }
    }

    /// Asks a peer for the acknowledgement that it may hold. Returns whether there is one.
    pub fn ask_for_held(&mut self, peer: PeerId) -> bool {
        let known = self.peers.get_mut(&peer);
        let session = known.and_then(|peer| peer.session.as_mut());
        let is_held = session.is_some_and(|session| session.ask_for_held());
        if is_held {
            self.mark_ready(peer);
        }
        is_held
    }
}
