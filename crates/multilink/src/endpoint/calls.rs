//! Sessions: the handshake, its renewal, and the treatment of recorded and forged messages.

use core::net::SocketAddr;

use super::admission::{Cookies, Verdict};
use super::introduce::{DIAL_MAX_NS, DIAL_NS, YIELD_NS};
use super::lanes::lane_address;
use super::{Endpoint, shared};
use crate::handshake::{Envelope, Initiator, Refused, Responder};
use crate::peer::{Dial, Next, Peer, Shared};
use crate::secure::Tag;
use crate::session::CONFIRM_NS;
use crate::wire::{ControlKind, CookieReply, Kind, Malformed, Params};

/// Time to wait for the peer's first packet after answering its Init, before this side dials the
/// peer, in ns.
const ANSWERED_NS: u64 = 300_000_000;

impl Endpoint {
    /// Dials a peer: sends an Init.
    pub(super) fn dial(&mut self, number: usize, now_ns: u64) {
        let attempts = self.peers[number].dial_attempts as usize;
        let targets = self.peers[number].dial_targets(&self.links);
        let Some(&(link, to)) = targets.get(attempts % targets.len().max(1)) else {
            self.peers[number].next_dial_at_ns = now_ns + DIAL_NS;
            return;
        };
        let knows = self.peers[number].associated.unwrap_or(0);
        let dial = self.send_init((link, to), knows, now_ns);
        let peer = &mut self.peers[number];
        peer.dial = Some(dial);
        peer.dial_attempts += 1;
        peer.next_dial_at_ns = now_ns + (DIAL_NS << attempts.min(8)).min(DIAL_MAX_NS);
        self.renew_session_index(number);
    }

    fn send_init(&mut self, target: (u8, SocketAddr), knows: u64, now_ns: u64) -> Dial {
        let session = self.allocate_session();
        let params = self.params(target.0, session, knows, now_ns);
        let (initiator, datagram) = Initiator::start(&self.config.key, &params);
        self.send_plain(target.0, target.1, &datagram, now_ns);
        Dial {
            initiator,
            sent_at_ns: now_ns,
            target,
        }
    }

    /// Ends a dial that can no longer be answered.
    pub(super) fn end_dial(&mut self, number: usize, now_ns: u64) {
        let dial = &mut self.peers[number].dial;
        let ended = dial.take_if(|dial| now_ns > dial.sent_at_ns + DIAL_MAX_NS);
        if ended.is_some() {
            self.renew_session_index(number);
        }
    }

    pub(super) fn dial_statics(&mut self, now_ns: u64) {
        for index in 0..self.config.static_peers.len() {
            let addresses = self.config.static_peers[index].clone();
            let peer_address =
                |peer: &Peer, address| lane_address(address, peer.params.lane.number);
            // The peer may answer from another of its addresses than the configured one.
            let answering_node = self.introduction.static_nodes[index];
            let is_known = self.peers.iter().any(|peer| {
                let mut paths = peer.paths.iter();
                peer.current.is_some()
                    && (answering_node == Some(peer.params.node)
                        || paths.any(|p| {
                            addresses
                                .iter()
                                .any(|(_, a)| p.destination == Some(peer_address(peer, *a)))
                        }))
            });
            if is_known {
                continue;
            }
            let lanes = self.config.lane.counterparts();
            let targets: Vec<(u8, SocketAddr)> = lanes
                .flat_map(|lane| {
                    addresses
                        .iter()
                        .map(move |(l, a)| (*l, lane_address(*a, lane)))
                })
                .collect();
            let turn = (now_ns / (2 * DIAL_NS)) as usize % targets.len().max(1);
            let Some(&target) = targets.get(turn) else {
                continue;
            };
            let dial = self.send_init(target, 0, now_ns);
            self.introduction.static_dials[index] = Some(dial);
        }
    }

    pub(super) fn send_plain(&mut self, link: u8, to: SocketAddr, datagram: &[u8], now_ns: u64) {
        let local = self.links[usize::from(link)].as_mut();
        if let Some(local) = local.filter(|local| !local.queue.is_full()) {
            local
                .queue
                .push(to, datagram.len(), |out| out.extend_from_slice(datagram));
            local.note_queued(now_ns, datagram.len() + super::OVERHEAD_BYTES);
        }
    }

    /// Decides whether an Init is processed. Returns `Some` if it is, with whether its sender has
    /// proven its address.
    fn admit(
        &mut self,
        link: u8,
        from: SocketAddr,
        envelope: &Envelope<'_>,
        now_ns: u64,
    ) -> Option<bool> {
        let cookies = Cookies {
            key: &self.config.key,
            instance: self.config.instance,
        };
        let is_proven = cookies.is_valid(envelope.tie, link, from, now_ns);
        let admission = &mut self.introduction.admission;
        match admission.judge(envelope.tag, is_proven, now_ns) {
            Verdict::Admitted { is_proven } => return Some(is_proven),
            Verdict::Replayed => self.counters.replayed += 1,
            Verdict::Refused => self.counters.handshakes_refused += 1,
            Verdict::Challenged => self.challenge(link, from, envelope.tag, now_ns),
        }
        None
    }

    /// Asks the sender of an Init to send it again with a cookie.
    fn challenge(&mut self, link: u8, from: SocketAddr, init: Tag, now_ns: u64) {
        self.counters.handshakes_challenged += 1;
        let cookies = Cookies {
            key: &self.config.key,
            instance: self.config.instance,
        };
        let reply = CookieReply {
            init,
            cookie: cookies.cookie(link, from, now_ns),
        };
        let datagram = reply.emit(&self.config.key);
        self.send_plain(link, from, &datagram, now_ns);
    }

    /// Returns whether this side is the pair's caller and has a fresh dial open to this sender.
    fn has_dialled(&self, number: usize, from: SocketAddr, params: &Params, now_ns: u64) -> bool {
        let is_fresh = |dial: &Dial| now_ns < dial.sent_at_ns + DIAL_NS;
        let mut statics = self.introduction.static_dials.iter().flatten();
        let has_address_dial = statics.any(|dial| dial.target.1 == from && is_fresh(dial));
        let has_peer_dial = self.peers[number].dial.as_ref().is_some_and(is_fresh);
        self.is_caller(params) && (has_peer_dial || has_address_dial)
    }

    pub(super) fn handle_init(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let envelope = match Envelope::open(Kind::Init, &self.config.key, datagram) {
            Ok(envelope) => envelope,
            Err(reason) => return self.refuse(reason),
        };
        let Some(is_proven) = self.admit(link, from, &envelope, now_ns) else {
            return Ok(());
        };
        let (responder, params) = match Responder::read(&self.config.key, &envelope) {
            Ok(read) => read,
            Err(reason) => return self.refuse(reason),
        };
        let is_for_us = self.may_talk_to(link, from, &params);
        if !is_for_us || !self.agrees_on_seal(&params) {
            return Ok(());
        }
        let Some(number) = self.peer_for(&params, now_ns) else {
            return Ok(());
        };
        if self.peers[number].is_old_init(&params) {
            self.counters.replayed += 1;
            return Ok(());
        }
        if self.has_dialled(number, from, &params, now_ns) {
            return Ok(());
        }
        if !is_proven && self.peers[number].needs_proof(&params) {
            match self.introduction.admission.may_challenge(now_ns) {
                true => self.challenge(link, from, envelope.tag, now_ns),
                false => self.counters.handshakes_refused += 1,
            }
            return Ok(());
        }
        // Both sides count units from 0 again, or neither does. A sender that does not know this
        // epoch gets an answer as if this side did not know the sender's.
        let is_known = params.knows == self.config.instance;
        let associated = self.peers[number].associated.filter(|_| is_known);
        let (local, knows) = (self.allocate_session(), associated.unwrap_or(0));
        let ours = self.params(link, local, knows, now_ns);
        let (reply, keys) = responder.answer(&self.config.key, &ours);
        let peer = &mut self.peers[number];
        // The state of the peer is unchanged until it uses the keys, because the Init may be a
        // recording.
        let has_rested = now_ns >= peer.yields_until_ns + 3 * ANSWERED_NS;
        if has_rested || peer.yields_until_ns == 0 {
            peer.yields_until_ns = now_ns + ANSWERED_NS;
        }
        if peer.dial_targets(&self.links).is_empty() {
            peer.note_heard(link, params.link, from, &self.links, now_ns);
        }
        peer.await_use(Next {
            session: Peer::session(local, &params, &keys, now_ns),
            params,
            is_proven,
        });
        self.renew_session_index(number);
        self.send_plain(link, from, &reply, now_ns);
        Ok(())
    }

    fn refuse(&mut self, reason: Refused) -> Result<(), Malformed> {
        match reason {
            Refused::Key => {
                self.counters.wrong_key += 1;
                Ok(())
            }
            Refused::Malformed => Err(Malformed::Field("handshake")),
        }
    }

    /// Returns the open dials: to peers, and to configured addresses at which no peer is known yet.
    fn open_dials(&mut self) -> impl Iterator<Item = (Option<usize>, &mut Dial)> {
        let peers = self.peers.iter_mut().enumerate();
        let dials = peers.filter_map(|(number, peer)| Some((Some(number), peer.dial.as_mut()?)));
        let statics = self.introduction.static_dials.iter_mut().flatten();
        dials.chain(statics.map(|dial| (None, dial)))
    }

    pub(super) fn handle_cookie(&mut self, datagram: &[u8], now_ns: u64) -> Result<(), Malformed> {
        let Some(reply) = CookieReply::parse(datagram, &self.config.key)? else {
            self.counters.wrong_key += 1;
            return Ok(());
        };
        let key = self.config.key.clone();
        let mut dials = self.open_dials();
        let repeat = dials.find_map(|(_, dial)| {
            (dial.initiator.tag == reply.init).then(|| {
                let init = dial.initiator.with_cookie(&key, reply.cookie).to_vec();
                (dial.target, init)
            })
        });
        drop(dials);
        match repeat {
            Some(((link, to), init)) => self.send_plain(link, to, &init, now_ns),
            None => self.counters.replayed += 1,
        }
        Ok(())
    }

    pub(super) fn handle_reply(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let key = self.config.key.clone();
        let envelope = match Envelope::open(Kind::Reply, &key, datagram) {
            Ok(envelope) => envelope,
            Err(reason) => return self.refuse(reason),
        };
        let mut dials = self.open_dials();
        let answer = dials
            .find(|(_, dial)| dial.initiator.tag == envelope.tie)
            .map(|(number, dial)| {
                let dialled = (dial.initiator.session, dial.sent_at_ns);
                (number, dialled, dial.initiator.finish(&envelope))
            });
        drop(dials);
        let (number, (local, dialled_ns), params, keys) = match answer {
            Some((number, dialled, Ok((params, keys)))) => (number, dialled, params, keys),
            Some((.., Err(reason))) => return self.refuse(reason),
            None => {
                self.counters.replayed += 1;
                return Ok(());
            }
        };
        if !self.may_talk_to(link, from, &params) || !self.agrees_on_seal(&params) {
            return Ok(());
        }
        let Some(number) = self.answering_peer(number, local, &params, now_ns) else {
            return Ok(());
        };
        let peer = &mut self.peers[number];
        peer.next_dial_at_ns = now_ns + YIELD_NS;
        peer.await_use(Next {
            session: Peer::session(local, &params, &keys, now_ns),
            params: params.clone(),
            is_proven: true,
        });
        peer.confirm_next(local, self.config.instance, &mut self.pool);
        peer.settle_doubt(dialled_ns);
        self.settle_lanes(number, now_ns);
        self.peers[number].note_heard(link, params.link, from, &self.links, now_ns);
        self.renew_session_index(number);
        self.adopt_static_addresses(number, from, now_ns);
        // The responder uses the keys once it sees them used.
        for link in 0..self.links.len() as u8 {
            self.peers[number].send_control(link, ControlKind::Ping, &[], shared!(self, now_ns));
        }
        Ok(())
    }

    /// Returns the peer that answered the Init for the session `local`. It is the peer that was
    /// dialled, if the Reply is its own, or the peer at the configured address.
    fn answering_peer(
        &mut self,
        dialled: Option<usize>,
        local: u16,
        params: &Params,
        now_ns: u64,
    ) -> Option<usize> {
        if let Some(number) = dialled {
            return self.is_sender(number, params).then_some(number);
        }
        let introduction = &mut self.introduction;
        for (index, dial) in introduction.static_dials.iter_mut().enumerate() {
            if dial.take_if(|d| d.initiator.session == local).is_some() {
                introduction.static_nodes[index] = Some(params.node);
            }
        }
        self.peer_for(params, now_ns)
    }

    /// Returns the time at which a session is to be replaced because the peer has not been heard to
    /// use it. The side that is not the caller waits longer; otherwise both would dial at once each
    /// time.
    pub(super) fn unused_at_ns(&self, number: usize) -> Option<u64> {
        let peer = &self.peers[number];
        let session = peer
            .current
            .as_ref()
            .filter(|current| !current.is_confirmed)?;
        let yield_ns = if self.is_caller(&peer.params) {
            0
        } else {
            YIELD_NS
        };
        Some(session.made_at_ns + CONFIRM_NS + yield_ns + 1)
    }

    pub(super) fn wants_dial(&self, number: usize, now_ns: u64) -> bool {
        let peer = &self.peers[number];
        let is_gone = peer.params.lane.is_gone() && !peer.wants_session;
        if is_gone || now_ns < peer.next_dial_at_ns {
            return false;
        }
        let is_caller = self.is_caller(&peer.params);
        match &peer.current {
            None if now_ns < peer.yields_until_ns => false,
            // The peer sent a goodbye. Its next epoch introduces itself or dials.
            None if peer.is_retired(peer.params.instance) => false,
            // The side that is not the caller waits longer, so the two seldom dial at once.
            None => is_caller || now_ns > peer.created_at_ns + YIELD_NS,
            Some(session) => {
                let is_unused = self
                    .unused_at_ns(number)
                    .is_some_and(|at_ns| now_ns >= at_ns);
                let is_due = peer.wants_session || session.is_old(now_ns) || peer.is_key_worn();
                is_unused || is_caller && is_due
            }
        }
    }
}
