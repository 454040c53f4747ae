//! Finding peers and making sessions: hellos by multicast, the handshake, its renewal.

use core::net::SocketAddr;

use super::lanes::of_lane;
use super::{Config, Endpoint, Event, PEERS_MAX, shared};
use crate::handshake::{Initiator, Refused, Responder};
use crate::peer::{Dial, Peer, Shared};
use crate::wire::{ControlKind, Hello, Malformed, Params};

/// Time between hellos, once introductions are made.
const HELLO_NS: u64 = 1_000_000_000;
/// Time between hellos in a hurry: after a start, a new link, or packets of an unknown session.
const HELLO_HURRY_NS: u64 = 100_000_000;
/// Hellos sent in a hurry.
const HELLO_HURRIED: u32 = 5;
/// First wait for an answer to a handshake; doubles to [`DIAL_MAX_NS`].
const DIAL_NS: u64 = 200_000_000;
const DIAL_MAX_NS: u64 = 5_000_000_000;
/// The node with the larger number leaves the first call to the other for this long.
const YIELD_NS: u64 = 1_500_000_000;
/// Handshake messages looked at per second: each costs microseconds until the key is proven.
const HANDSHAKES_PER_S: f64 = 500.0;
/// A peer that has been silent this long and has no session is forgotten.
const FORGET_NS: u64 = 60_000_000_000;

/// The state of introductions.
#[derive(Debug)]
pub(super) struct Introduction {
    hello_at_ns: u64,
    hurried: u32,
    handshake_tokens: f64,
    tokens_at_ns: u64,
    static_at_ns: u64,
    /// Open calls to configured peers, and to which address.
    static_dials: Vec<Option<(Dial, SocketAddr)>>,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dial(session {})", self.initiator.session)
    }
}

impl Introduction {
    pub(super) fn new(config: &Config, now_ns: u64) -> Self {
        let mut static_dials = Vec::new();
        static_dials.resize_with(config.static_peers.len(), || None);
        Self {
            hello_at_ns: now_ns,
            hurried: HELLO_HURRIED,
            handshake_tokens: HANDSHAKES_PER_S,
            tokens_at_ns: now_ns,
            static_at_ns: now_ns,
            static_dials,
        }
    }

    /// Says hello soon and often for a moment.
    pub(super) fn hurry(&mut self, now_ns: u64) {
        if self.hurried == 0 {
            self.hurried = HELLO_HURRIED;
            self.hello_at_ns = self.hello_at_ns.min(now_ns + HELLO_HURRY_NS / 10);
        }
    }

    fn admits_handshake(&mut self, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.tokens_at_ns) as f64 * HANDSHAKES_PER_S / 1e9;
        self.handshake_tokens = (self.handshake_tokens + earned).min(HANDSHAKES_PER_S);
        self.tokens_at_ns = now_ns;
        let admits = self.handshake_tokens >= 1.0;
        self.handshake_tokens -= f64::from(u8::from(admits));
        admits
    }
}

impl Endpoint {
    fn params(&self, link: u8, session: u16, now_ns: u64) -> Params {
        Params {
            node: self.config.node,
            instance: self.config.instance,
            sent_at_ns: now_ns,
            session,
            link,
            seal: self.config.seal,
            unit_bytes_max: self.unit_bytes_max().min(usize::from(u16::MAX)) as u16,
            lane: self.config.lane,
            links: self.links.iter().flatten().count() as u8,
            mac: self.config.mac,
            name: self.config.name.clone(),
        }
    }

    fn allocate_session(&mut self) -> u16 {
        loop {
            self.next_session = self.next_session.wrapping_add(1);
            // At most three sessions a peer and one a static peer: far fewer than 65 536.
            let is_dialled = self
                .dialled_sessions()
                .any(|number| number == self.next_session);
            if !is_dialled && !self.by_session.contains_key(&self.next_session) {
                return self.next_session;
            }
        }
    }

    fn dialled_sessions(&self) -> impl Iterator<Item = u16> + '_ {
        let statics = self.introduction.static_dials.iter().flatten();
        statics.map(|(dial, _)| dial.initiator.session)
    }

    /// Brings `by_session` up to date with a peer's sessions.
    pub(super) fn renew_session_index(&mut self, number: usize) {
        self.by_session.retain(|_, peer| *peer != number);
        let peer = &self.peers[number];
        let dial = peer.dial.as_ref().map(|dial| dial.initiator.session);
        for session in peer.session_numbers().chain(dial) {
            self.by_session.insert(session, number);
        }
        self.peers[number].unit_bytes_max =
            usize::from(self.peers[number].params.unit_bytes_max).min(self.unit_bytes_max());
    }

    fn peer_for(&mut self, params: &Params, now_ns: u64) -> Option<usize> {
        let key = (params.node, params.lane.number);
        if let Some(number) = self.by_node.get(&key) {
            return Some(*number);
        }
        if params.node == self.config.node || !self.has_room(now_ns) {
            return None;
        }
        // A place is taken only when there is no other: whoever had it may come back, and still knows
        // how far our sequence of units had come.
        let number = match self.peers.len() {
            PEERS_MAX => self.forgotten(now_ns)?,
            free => free,
        };
        let peer = Peer::new(params.clone(), now_ns);
        if number == self.peers.len() {
            self.peers.push(peer);
        } else {
            let old = std::mem::replace(&mut self.peers[number], peer);
            self.by_node
                .remove(&(old.params.node, old.params.lane.number));
            self.by_session.retain(|_, peer| *peer != number);
        }
        self.by_node.insert(key, number);
        self.introduce_station(number, now_ns);
        Some(number)
    }

    fn has_room(&self, now_ns: u64) -> bool {
        self.peers.len() < PEERS_MAX || self.forgotten(now_ns).is_some()
    }

    /// A peer whose place may be taken.
    fn forgotten(&self, now_ns: u64) -> Option<usize> {
        self.peers
            .iter()
            .position(|peer| !peer.is_up && now_ns.saturating_sub(peer.heard_at_ns) > FORGET_NS)
    }

    /// Whether the peer's seal is ours; says so once a handshake if not.
    fn agrees_on_seal(&mut self, params: &Params) -> bool {
        let agrees = params.seal == self.config.seal;
        if !agrees {
            let event = Event::SealMismatch {
                name: params.name.clone(),
                theirs: params.seal,
            };
            if self.events.back() != Some(&event) {
                self.events.push_back(event);
            }
        }
        agrees
    }

    pub(super) fn handle_hello(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let Some(Hello { params }) = Hello::parse(datagram, &self.config.key)? else {
            self.counters.wrong_key += 1;
            return Ok(());
        };
        let is_for_us = self.may_talk_to(link, from, &params);
        if !is_for_us || !self.agrees_on_seal(&params) {
            return Ok(());
        }
        let Some(number) = self.peer_for(&params, now_ns) else {
            return Ok(());
        };
        let peer = &mut self.peers[number];
        if peer.current.is_none() {
            peer.heard_at_ns = now_ns;
        }
        peer.note_heard(link, params.link, from, &self.links, now_ns);
        let peer = &mut self.peers[number];
        let is_new_instance = peer.params.instance != params.instance;
        if is_new_instance && peer.current.is_none() {
            peer.params = params;
        } else if is_new_instance {
            peer.dial_again_at_ns = peer.dial_again_at_ns.min(now_ns);
            peer.wants_session = true;
        }
        Ok(())
    }

    /// Calls a peer.
    fn dial(&mut self, number: usize, now_ns: u64) {
        let attempts = self.peers[number].dial_attempts as usize;
        let ways = self.peers[number].ways(&self.links);
        let Some(&(link, to)) = ways.get(attempts % ways.len().max(1)) else {
            return;
        };
        let session = self.allocate_session();
        let params = self.params(link, session, now_ns);
        let (initiator, datagram) = Initiator::start(&self.config.key, &params);
        let peer = &mut self.peers[number];
        peer.dial = Some(Dial {
            initiator,
            at_ns: now_ns,
        });
        peer.dial_attempts += 1;
        peer.dial_again_at_ns = now_ns + (DIAL_NS << attempts.min(8)).min(DIAL_MAX_NS);
        self.renew_session_index(number);
        self.send_plain(link, to, &datagram, now_ns);
    }

    fn send_plain(&mut self, link: u8, to: SocketAddr, datagram: &[u8], now_ns: u64) {
        if let Some(local) = &mut self.links[usize::from(link)] {
            local
                .queue
                .push(to, datagram.len(), |out| out.extend_from_slice(datagram));
            local.note_queued(now_ns, datagram.len() + super::OVERHEAD_BYTES);
        }
    }

    pub(super) fn handle_init(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        if !self.introduction.admits_handshake(now_ns) {
            self.counters.handshakes_refused += 1;
            return Ok(());
        }
        let (responder, params) = match Responder::read(&self.config.key, datagram) {
            Ok(read) => read,
            Err(Refused::Key) => {
                self.counters.wrong_key += 1;
                return Ok(());
            }
            Err(Refused::Malformed) => return Err(Malformed::Field("handshake")),
        };
        let is_for_us = self.may_talk_to(link, from, &params);
        if !is_for_us || !self.agrees_on_seal(&params) {
            return Ok(());
        }
        let Some(number) = self.peer_for(&params, now_ns) else {
            return Ok(());
        };
        let is_our_call = self.calls(&params);
        let mut statics = self.introduction.static_dials.iter().flatten();
        let calls_its_address =
            statics.any(|(dial, to)| *to == from && now_ns < dial.at_ns + DIAL_NS);
        let peer = &mut self.peers[number];
        let is_replay =
            peer.params.instance == params.instance && params.sent_at_ns <= peer.handshake_seen_ns;
        let calls_it = peer
            .dial
            .as_ref()
            .is_some_and(|dial| now_ns < dial.at_ns + DIAL_NS);
        let we_called_first = is_our_call && (calls_it || calls_its_address);
        if is_replay || we_called_first {
            return Ok(());
        }
        if peer.params.instance == params.instance {
            peer.handshake_seen_ns = params.sent_at_ns;
        }
        peer.dial = None;
        peer.dial_again_at_ns = now_ns + YIELD_NS;
        peer.heard_at_ns = now_ns;
        let local = self.allocate_session();
        let (reply, keys) = responder.answer(&self.params(link, local, now_ns));
        let peer = &mut self.peers[number];
        peer.next = Some((Peer::session(local, &params, &keys, now_ns), params.clone()));
        peer.note_heard(link, params.link, from, &self.links, now_ns);
        self.renew_session_index(number);
        self.send_plain(link, from, &reply, now_ns);
        Ok(())
    }

    pub(super) fn handle_reply(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        // Whom the reply is for is inside the encryption: ask each open call (few at any time).
        let mut open: Vec<(Option<usize>, &mut Dial)> = self
            .peers
            .iter_mut()
            .enumerate()
            .filter_map(|(number, peer)| Some((Some(number), peer.dial.as_mut()?)))
            .chain(
                self.introduction
                    .static_dials
                    .iter_mut()
                    .flatten()
                    .map(|(dial, _)| (None, dial)),
            )
            .collect();
        let answered = open.iter_mut().find_map(|(number, dial)| {
            let (params, keys) = dial.initiator.finish(datagram).ok()?;
            Some((*number, dial.initiator.session, params, keys))
        });
        let Some((number, local, params, keys)) = answered else {
            self.counters.wrong_key += 1;
            return Ok(());
        };
        if !self.may_talk_to(link, from, &params) || !self.agrees_on_seal(&params) {
            return Ok(());
        }
        let number = match number {
            Some(number) if self.is_of(number, &params) => number,
            Some(_) => return Ok(()),
            None => {
                for dial in &mut self.introduction.static_dials {
                    dial.take_if(|(dial, _)| dial.initiator.session == local);
                }
                let Some(number) = self.peer_for(&params, now_ns) else {
                    return Ok(());
                };
                number
            }
        };
        let peer = &mut self.peers[number];
        peer.dial = None;
        peer.wants_session = false;
        peer.dial_again_at_ns = now_ns + YIELD_NS;
        let session = Peer::session(local, &params, &keys, now_ns);
        peer.next = Some((session, params.clone()));
        peer.confirm_next(&mut self.pool);
        self.settle_lanes(number, now_ns);
        self.peers[number].note_heard(link, params.link, from, &self.links, now_ns);
        self.renew_session_index(number);
        self.adopt_static_addresses(number, from, now_ns);
        // The responder uses the keys when it sees them used.
        for link in 0..self.links.len() as u8 {
            self.peers[number].send_control(link, ControlKind::Ping, &[], shared!(self, now_ns));
        }
        Ok(())
    }

    /// A peer reached at one of its configured addresses has the others too.
    fn adopt_static_addresses(&mut self, number: usize, from: SocketAddr, now_ns: u64) {
        let lane = self.peers[number].params.lane.number;
        let mut known = self.config.static_peers.iter();
        let Some(addresses) = known
            .find(|addresses| addresses.iter().any(|(_, a)| of_lane(*a, lane) == from))
            .cloned()
        else {
            return;
        };
        for (link, address) in addresses {
            if self.links[usize::from(link)].is_some() {
                let address = of_lane(address, lane);
                let peer = &mut self.peers[number];
                peer.note_heard(link, link, address, &self.links, now_ns);
                peer.paths[usize::from(link)]
                    .partners
                    .note_configured(address);
            }
        }
    }

    /// Hellos, calls and renewals that are due.
    pub(super) fn introduce(&mut self, now_ns: u64) {
        if now_ns >= self.introduction.hello_at_ns {
            let hurried = self.introduction.hurried > 0;
            self.introduction.hurried = self.introduction.hurried.saturating_sub(1);
            self.introduction.hello_at_ns =
                now_ns + if hurried { HELLO_HURRY_NS } else { HELLO_NS };
            self.send_hellos(now_ns);
        }
        if now_ns >= self.introduction.static_at_ns {
            self.introduction.static_at_ns = now_ns + 2 * DIAL_NS;
            self.dial_statics(now_ns);
        }
        for number in 0..self.peers.len() {
            if self.wants_dial(number, now_ns) {
                self.dial(number, now_ns);
            }
        }
    }

    fn wants_dial(&self, number: usize, now_ns: u64) -> bool {
        let peer = &self.peers[number];
        let is_gone = peer.params.lane.is_gone() && !peer.wants_session;
        if is_gone || now_ns < peer.dial_again_at_ns {
            return false;
        }
        let is_ours = self.calls(&peer.params);
        match &peer.current {
            // The peer has been answered and is to speak next. It does at once or not at all: the
            // question may have been an old one, sent again by somebody else.
            None if peer
                .next
                .as_ref()
                .is_some_and(|(next, _)| now_ns < next.made_at_ns + YIELD_NS) =>
            {
                false
            }
            // The other side's patience is longer, so the two seldom call at once.
            None => is_ours || now_ns > peer.created_at_ns + YIELD_NS,
            Some(session) => {
                is_ours && (peer.wants_session || session.is_old(now_ns) || peer.is_key_worn())
            }
        }
    }

    fn send_hellos(&mut self, now_ns: u64) {
        for number in 0..self.links.len() as u8 {
            let Some(link) = &self.links[usize::from(number)] else {
                continue;
            };
            let Some(to) = link.config.hello_to.filter(|_| link.has_carrier) else {
                continue;
            };
            let hello = Hello {
                params: self.params(number, 0, now_ns),
            }
            .emit(&self.config.key);
            for lane in self.config.lane.counterparts() {
                self.send_plain(number, of_lane(to, lane), &hello, now_ns);
            }
        }
    }

    fn dial_statics(&mut self, now_ns: u64) {
        for at in 0..self.config.static_peers.len() {
            let addresses = self.config.static_peers[at].clone();
            let its = |peer: &Peer, address| of_lane(address, peer.params.lane.number);
            let is_known = self.peers.iter().any(|peer| {
                peer.current.is_some()
                    && peer
                        .paths
                        .iter()
                        .any(|p| addresses.iter().any(|(_, a)| p.to == Some(its(peer, *a))))
            });
            if is_known {
                continue;
            }
            let lanes = self.config.lane.counterparts();
            let ways: Vec<(u8, SocketAddr)> = lanes
                .flat_map(|lane| addresses.iter().map(move |(l, a)| (*l, of_lane(*a, lane))))
                .collect();
            let turn = (now_ns / (2 * DIAL_NS)) as usize % ways.len().max(1);
            let Some(&(link, to)) = ways.get(turn) else {
                continue;
            };
            let session = self.allocate_session();
            let params = self.params(link, session, now_ns);
            let (initiator, datagram) = Initiator::start(&self.config.key, &params);
            let dial = Dial {
                initiator,
                at_ns: now_ns,
            };
            self.introduction.static_dials[at] = Some((dial, to));
            self.send_plain(link, to, &datagram, now_ns);
        }
    }

    pub(super) fn introduction_due_ns(&self, now_ns: u64) -> u64 {
        let mut due_ns = self.introduction.hello_at_ns;
        if !self.config.static_peers.is_empty() {
            due_ns = due_ns.min(self.introduction.static_at_ns);
        }
        let calls = self.peers.iter().enumerate().filter_map(|(number, peer)| {
            let at_ns = peer.dial_again_at_ns.max(now_ns + 1_000_000);
            self.wants_dial(number, at_ns).then_some(at_ns)
        });
        calls.min().map_or(due_ns, |call| call.min(due_ns))
    }
}
