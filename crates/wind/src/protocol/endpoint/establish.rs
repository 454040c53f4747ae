//! Begins sessions: handshakes from both sides, and restarted peers.

use super::Endpoint;
use super::peer::{Candidate, Dial, InitName};
use super::terms::{Config, Event, Lost, PeerId};
use crate::protocol::handshake::{self, Initiator, Params};
use crate::protocol::session::{ACK_DELAY_STATED_NS, Session, Terms};
use crate::protocol::wire::Header;
use std::hash::Hash;

/// Share of time of one answer, in ns: 5000 a second. A Diffie-Hellman takes about 100 µs.
const INIT_NS: u64 = 200_000;
/// Time whose Inits may come together, in ns: all 4096 ranks of a job begin at once.
const INIT_BURST_NS: u64 = 1_000_000_000;

/// First interval between two Inits, in ns. It doubles up to [`DIAL_MAX_NS`].
const DIAL_NS: u64 = 10_000_000;
pub(super) const DIAL_MAX_NS: u64 = 1_000_000_000;

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    pub(super) fn dial(&mut self, id: PeerId, now_ns: u64) {
        let own = self.own_params();
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        self.indices.insert(own.index, id);
        peer.dial = Some(Box::new(Dial {
            initiator: Initiator::new(&self.config.secret, &own),
            index: own.index,
            granted_bytes: own.granted_bytes,
            interval_ns: DIAL_NS,
            began_ns: now_ns,
            sent_ns: now_ns,
            is_due: true,
            yields_until_ns: 0,
        }));
        self.touch(id);
    }

    pub(super) fn own_params(&mut self) -> Params {
        while self.indices.contains_key(&self.next_index) {
            self.next_index = self.next_index.wrapping_add(1);
        }
        let index = self.next_index;
        self.next_index = self.next_index.wrapping_add(1);
        Params {
            epoch: self.config.epoch,
            index,
            datagram_bytes_max: self.config.datagram_bytes_max,
            granted_bytes: self.first_grant_bytes(),
            ack_delay_us: (ACK_DELAY_STATED_NS / 1000) as u32,
            seal: self.config.seal,
        }
    }

    /// Returns the credit of a new session. The first packets of many peers that begin together
    /// would overflow the port. A peer gets the rest when its first packet arrives.
    fn first_grant_bytes(&self) -> u64 {
        let peers = self.peers.len().max(1) as u64;
        let least = u64::from(self.config.datagram_bytes);
        let share = self.config.budget_bytes / (64 * peers);
        share.max(least).min(self.config.first_bytes)
    }

    pub(super) fn handle_init(&mut self, from: A, init: &[u8], now_ns: u64) {
        let known = self.addresses.get(&from).copied();
        let Some(name) = init.last_chunk().copied() else {
            return;
        };
        if known.is_some_and(|id| self.is_repeated(id, &name)) {
            return;
        }
        let own = self.own_params();
        let secret = self.config.secret;
        // Those of strangers have been dropped before. Replayed ones must not take the processor.
        let paid_ns = self.inits_paid_ns.max(now_ns);
        let is_paid = paid_ns + INIT_NS <= now_ns + INIT_BURST_NS;
        let Some((remote, keys, reply)) =
            handshake::answer(&secret, init, |_| is_paid.then_some(own))
        else {
            return;
        };
        self.inits_paid_ns = paid_ns + INIT_NS;
        let id = match self.addresses.get(&from) {
            Some(id) => *id,
            None => match self.add_peer(from) {
                Ok(id) => id,
                Err(_) => return,
            },
        };
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if !is_usable(&self.config, &remote) {
            return;
        }
        // Both sides dial at the same time: the Init of the lower epoch counts, and the other side
        // waits for the proof of that session.
        if let Some(dial) = &mut peer.dial {
            if self.config.epoch < remote.epoch {
                return;
            }
            dial.yields_until_ns = now_ns + DIAL_MAX_NS;
        }
        let session = Session::new(
            remote,
            &keys,
            terms(&self.config),
            own.granted_bytes,
            DIAL_NS,
            now_ns,
        );
        let candidate = Candidate {
            session,
            index: own.index,
            init: name,
            reply,
            is_reply_due: true,
            expires_ns: now_ns + self.config.lost_after_ns,
        };
        self.indices.insert(own.index, id);
        if let Some(replaced) = peer.candidate.replace(Box::new(candidate)) {
            self.indices.remove(&replaced.index);
        }
        self.touch(id);
    }

    /// Handles an Init that arrived before: the same Reply answers it. Returns false for a new one.
    fn is_repeated(&mut self, id: PeerId, init: &InitName) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else {
            return false;
        };
        let candidate = peer.candidate.as_mut();
        if let Some(candidate) = candidate.filter(|candidate| candidate.init == *init) {
            candidate.is_reply_due = true;
            self.touch(id);
            return true;
        }
        peer.session.is_some() && peer.session_init == Some(*init)
    }

    pub(super) fn handle_reply(&mut self, header: &Header, reply: &[u8], now_ns: u64) {
        let Some(id) = self.indices.get(&header.receiver).copied() else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let dial = peer.dial.as_mut();
        let Some(dial) = dial.filter(|dial| now_ns >= dial.yields_until_ns) else {
            return;
        };
        let Some((remote, keys)) = dial.initiator.finish(reply) else {
            return;
        };
        if !is_usable(&self.config, &remote) {
            return;
        }
        // A Reply does not say which Init it answers. The path's first sample replaces this guess.
        let is_repeated = dial.interval_ns > DIAL_NS;
        let least_ns = if is_repeated { DIAL_NS } else { 0 };
        let rtt_ns = now_ns.saturating_sub(dial.sent_ns).max(least_ns);
        let mut session = Session::new(
            remote,
            &keys,
            terms(&self.config),
            dial.granted_bytes,
            rtt_ns,
            now_ns,
        );
        session.prove();
        let index = dial.index;
        self.establish(id, session, index, None);
    }

    /// Makes `session` the session of a peer. `index` is this side's index in it, and `init` the
    /// Init of a peer that began it. Returns the peer: a new one if the old one had a session.
    pub(super) fn establish(
        &mut self,
        id: PeerId,
        mut session: Session,
        index: u32,
        init: Option<InitName>,
    ) -> Option<PeerId> {
        let peer = self.peers.get_mut(&id)?;
        let id = match &peer.session {
            None => id,
            // The process at the address is another one, or has forgotten this one.
            Some(_) => {
                let address = peer.address;
                self.lose(id, Lost::Restarted);
                self.add_peer(address).ok()?
            }
        };
        let peer = self.peers.get_mut(&id)?;
        peer.session_init = init;
        let others = [
            peer.session_index.replace(index),
            peer.dial.take().map(|dial| dial.index),
            peer.candidate.take().map(|candidate| candidate.index),
        ];
        for other in others.into_iter().flatten() {
            self.indices.remove(&other);
        }
        self.indices.insert(index, id);
        session.outbox = *peer.waiting.take().unwrap_or_default();
        peer.session = Some(session);
        self.notices.push_back(Event::Connected(id));
        self.touch(id);
        Some(id)
    }

    /// A peer that does not know the session may have been restarted. The session stays until the
    /// silence shows that it is lost, because anybody can send this answer; a new Init finds out.
    pub(super) fn handle_unknown(&mut self, from: A, header: &Header, now_ns: u64) {
        let Some(id) = self.addresses.get(&from).copied() else {
            return;
        };
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let session = peer.session.as_ref();
        let is_own = session.is_some_and(|session| session.remote.index == header.receiver);
        if is_own && peer.dial.is_none() {
            self.dial(id, now_ns);
        }
    }
}

/// Returns whether a session with these parameters of a peer works: its packets are sealed as those
/// of this side, and it receives the operations of this side, which are not cut.
fn is_usable(config: &Config, remote: &Params) -> bool {
    remote.seal == config.seal && remote.datagram_bytes_max >= config.datagram_bytes
}

fn terms(config: &Config) -> Terms {
    Terms {
        seal: config.seal,
        message_bytes_max: config.message_bytes_max,
        datagram_bytes: config.datagram_bytes,
        datagram_bytes_max: config.datagram_bytes_max,
    }
}
