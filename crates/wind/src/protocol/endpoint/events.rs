//! Events and messages that the caller takes.

use super::terms::{Event, Lost, PeerId};
use super::{Endpoint, cost};
use crate::protocol::inbox::Delivery;
use std::hash::Hash;

/// Bytes of messages that a program takes before their credit is given again: a few datagrams, a
/// small part of any budget.
const TAKEN_BYTES: u64 = 8 << 10;

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    /// Returns the next event. The credit of a message is free when it has been taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        let notice = self.poll_notice();
        notice.or_else(|| {
            let (peer, message) = self.poll_message()?;
            Some(Event::Message(peer, message))
        })
    }

    /// Returns the next event that is not a message.
    pub fn poll_notice(&mut self) -> Option<Event> {
        self.notices.pop_front()
    }

    /// Forgets the session with a peer: what it still sends has no effect.
    pub fn abandon(&mut self, peer: PeerId) {
        self.lose(peer, Lost::Closed);
    }

    /// Returns whether a message waits to be taken.
    pub fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Returns the next message, and frees its credit.
    pub fn poll_message(&mut self) -> Option<(PeerId, Delivery)> {
        let (id, message) = self.messages.pop_front()?;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.queued_bytes -= cost(&message);
            peer.taken_bytes += cost(&message);
            // A grant for each short message would cost more than the message.
            if peer.taken_bytes >= TAKEN_BYTES || self.messages.is_empty() {
                peer.taken_bytes = 0;
                self.regrant(id);
            }
        }
        Some((id, message))
    }

    /// Returns the next message for the node itself.
    pub fn peek_relay(&self) -> Option<(PeerId, &Delivery)> {
        let (peer, message) = self.relays.front()?;
        Some((*peer, message))
    }

    /// Takes the next message for the node itself, and frees its credit.
    pub fn poll_relay(&mut self) -> Option<Delivery> {
        let (id, message) = self.relays.pop_front()?;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.queued_bytes -= cost(&message);
            self.regrant(id);
        }
        Some(message)
    }
}
