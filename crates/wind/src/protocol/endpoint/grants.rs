//! Gives credit to the peers of an endpoint.

use super::Endpoint;
use super::terms::PeerId;
use crate::protocol::credit::Demand;
use std::hash::Hash;

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    /// Gives a peer, and those that wait for credit, what is free.
    pub(super) fn regrant(&mut self, id: PeerId) {
        self.regrant_one(id);
        let waiting: Vec<PeerId> = self.wanting.iter().copied().collect();
        for other in waiting {
            if !self.budget.has_free() {
                break;
            }
            if other != id {
                self.regrant_one(other);
            }
        }
        self.touch(id);
    }

    fn regrant_one(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(session) = &mut peer.session else {
            return;
        };
        let (used, held) = session.used_and_held_bytes();
        // A message may be longer than the budget, so its parts are not counted until it is
        // complete. A peer with more of them than one message can have gets no more credit.
        let held = held.saturating_sub(self.config.message_bytes_max.into());
        let now = Demand {
            granted: session.granted_bytes(),
            used,
            held: held + peer.queued_bytes,
            wanted: session.wanted_bytes(),
            per_round: peer.rounds.most(),
        };
        let is_wanting = now.wanted > now.granted;
        let wanting = self.wanting.len() + usize::from(is_wanting && !self.wanting.contains(&id));
        let offer = self.budget.offer(peer.demand, now, wanting);
        // A grant is sent when it is worth a packet: the peer waits for it, or has used half of
        // its credit.
        let is_short = now.granted - used < self.config.first_bytes / 2;
        let granted = if is_wanting || is_short {
            offer
        } else {
            now.granted
        };
        session.grant(granted);
        let demand = Demand { granted, ..now };
        self.budget.record(peer.demand, demand);
        peer.demand = demand;
        if now.wanted > session.granted_bytes() {
            self.wanting.insert(id);
        } else {
            self.wanting.remove(&id);
        }
        self.touch(id);
    }
}
