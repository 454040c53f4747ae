//! Discovery of peers, by multicast hellos or by configured addresses.

use core::net::SocketAddr;

use super::admission::Admission;
use super::lanes::lane_address;
use super::{Config, Endpoint, Event, PEERS_MAX};
use crate::peer::{Dial, Peer};
use crate::wire::{Hello, Malformed, Params};

/// Interval between hellos in the normal state, in ns.
const HELLO_NS: u64 = 1_000_000_000;
/// Interval between hellos after a start, a new link, or packets of an unknown session, in ns.
const HELLO_HURRY_NS: u64 = 100_000_000;
/// Number of hellos at the short interval.
const HELLO_HURRY_COUNT: u32 = 5;
/// First wait for an answer to an Init, in ns. It doubles up to [`DIAL_MAX_NS`].
pub(super) const DIAL_NS: u64 = 200_000_000;
/// Longest wait for an answer to an Init, in ns. A dial without an answer ends after it.
pub(super) const DIAL_MAX_NS: u64 = 5_000_000_000;
/// Time for which the side that is not the caller leaves the first dial to the caller, in ns.
pub(super) const YIELD_NS: u64 = 1_500_000_000;
/// Time of silence after which a peer without a path that is up is forgotten, in ns.
const FORGET_NS: u64 = 60_000_000_000;

/// State of discovery.
#[derive(Debug)]
pub(super) struct Introduction {
    hello_at_ns: u64,
    hurried_hellos: u32,
    pub(super) admission: Admission,
    static_at_ns: u64,
    /// Open dials to configured peers.
    pub(super) static_dials: Vec<Option<Dial>>,
    /// Node that last answered at the addresses of each configured peer.
    pub(super) static_nodes: Vec<Option<u64>>,
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
            hurried_hellos: HELLO_HURRY_COUNT,
            admission: Admission::new(now_ns),
            static_at_ns: now_ns,
            static_dials,
            static_nodes: vec![None; config.static_peers.len()],
        }
    }

    /// Sends the next hellos at the short interval.
    pub(super) fn hurry(&mut self, now_ns: u64) {
        if self.hurried_hellos == 0 {
            self.hurried_hellos = HELLO_HURRY_COUNT;
            self.hello_at_ns = self.hello_at_ns.min(now_ns + HELLO_HURRY_NS / 10);
        }
    }
}

impl Endpoint {
    /// Returns this node's parameters for a message on `link`. `knows` is the receiver's epoch that
    /// this side knows (0: unknown).
    pub(super) fn params(&self, link: u8, session: u16, knows: u64, now_ns: u64) -> Params {
        Params {
            node: self.config.node,
            instance: self.config.instance,
            sent_at_ns: now_ns,
            knows,
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

    pub(super) fn allocate_session(&mut self) -> u16 {
        loop {
            self.next_session = self.next_session.wrapping_add(1);
            // A peer has at most seven sessions and a configured peer one: far fewer than 65 536.
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
        statics.map(|dial| dial.initiator.session)
    }

    /// Updates `by_session` for the sessions of a peer.
    pub(super) fn renew_session_index(&mut self, number: usize) {
        self.by_session.retain(|_, peer| *peer != number);
        let peer = &self.peers[number];
        let dial = peer.dial.as_ref().map(|dial| dial.initiator.session);
        for session in peer.session_numbers().chain(dial) {
            self.by_session.insert(session, number);
        }
        let own = self.unit_bytes_max();
        self.peers[number].set_unit_limit(own);
    }

    pub(super) fn peer_for(&mut self, params: &Params, now_ns: u64) -> Option<usize> {
        let key = (params.node, params.lane.number);
        if let Some(number) = self.by_node.get(&key) {
            return Some(*number);
        }
        if params.node == self.config.node || !self.has_room(now_ns) {
            return None;
        }
        if self.peers.len() == PEERS_MAX {
            self.forget_dead(now_ns);
        }
        let number = self.peers.len();
        self.peers.push(Peer::new(params.clone(), now_ns));
        self.by_node.insert(key, number);
        self.introduce_station(number, now_ns);
        Some(number)
    }

    fn has_room(&self, now_ns: u64) -> bool {
        let mut numbers = 0..self.peers.len();
        self.peers.len() < PEERS_MAX || numbers.any(|number| self.is_dead(number, now_ns))
    }

    /// Returns whether a peer may be forgotten. Either it has been silent for long, or another peer
    /// that is up has its address: the same host came back with a new identity.
    fn is_dead(&self, number: usize, now_ns: u64) -> bool {
        let peer = &self.peers[number];
        let silent_ns = now_ns.saturating_sub(peer.heard_at_ns);
        let is_silent = !peer.is_up && silent_ns > FORGET_NS;
        is_silent || self.peers.iter().any(|rival| rival.supersedes(peer))
    }

    pub(super) fn forget_dead(&mut self, now_ns: u64) {
        for number in (0..self.peers.len()).rev() {
            if self.is_dead(number, now_ns) {
                self.forget(number);
            }
        }
    }

    /// Forgets a peer. If it comes back with the same epoch, both sides count from 0 again.
    fn forget(&mut self, number: usize) {
        let dead_peer = self.peers.swap_remove(number);
        if dead_peer.is_up {
            self.events.push_back(Event::Peer {
                node: dead_peer.params.node,
                name: dead_peer.params.name.clone(),
                is_up: false,
            });
        }
        let last = self.peers.len();
        let key = (dead_peer.params.node, dead_peer.params.lane.number);
        self.by_node.remove(&key);
        self.by_session.retain(|_, peer| *peer != number);
        let numbers = self.by_node.values_mut();
        for peer in numbers.chain(self.by_session.values_mut()) {
            if *peer == last {
                *peer = number;
            }
        }
        self.stations.forget(number, last);
    }

    /// Returns whether the peer's seal is the same as this side's. A difference raises an event,
    /// unless the newest queued event is the same.
    pub(super) fn agrees_on_seal(&mut self, params: &Params) -> bool {
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
        if !peer.note_hello(&params) {
            self.counters.replayed += 1;
            return Ok(());
        }
        if peer.current.is_none() {
            peer.heard_at_ns = now_ns;
        }
        peer.note_heard(link, params.link, from, &self.links, now_ns);
        let is_new_instance = peer.params.instance != params.instance;
        if !is_new_instance && peer.params.unit_bytes_max != params.unit_bytes_max {
            peer.params.unit_bytes_max = params.unit_bytes_max; // the peer's links have changed
            let own = self.unit_bytes_max();
            self.peers[number].set_unit_limit(own);
            return Ok(());
        }
        if is_new_instance && peer.current.is_none() {
            peer.newest_hello_sent_ns = params.sent_at_ns;
            peer.params = params;
        } else if is_new_instance {
            peer.note_doubt(params.instance, now_ns);
        }
        Ok(())
    }

    /// Adds the other configured addresses of a peer that is reached at one of them.
    pub(super) fn adopt_static_addresses(&mut self, number: usize, from: SocketAddr, now_ns: u64) {
        let lane = self.peers[number].params.lane.number;
        let mut known = self.config.static_peers.iter();
        let Some(addresses) = known
            .find(|addresses| {
                addresses
                    .iter()
                    .any(|(_, a)| lane_address(*a, lane) == from)
            })
            .cloned()
        else {
            return;
        };
        for (link, address) in addresses {
            if self.links[usize::from(link)].is_some() {
                let address = lane_address(address, lane);
                let peer = &mut self.peers[number];
                peer.note_heard(link, link, address, &self.links, now_ns);
                peer.paths[usize::from(link)]
                    .partners
                    .note_configured(address);
            }
        }
    }

    /// Sends the hellos and starts the dials that are due.
    pub(super) fn introduce(&mut self, now_ns: u64) {
        if now_ns >= self.introduction.hello_at_ns {
            let is_hurried = self.introduction.hurried_hellos > 0;
            self.introduction.hurried_hellos = self.introduction.hurried_hellos.saturating_sub(1);
            self.introduction.hello_at_ns =
                now_ns + if is_hurried { HELLO_HURRY_NS } else { HELLO_NS };
            self.forget_dead(now_ns);
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
            self.end_dial(number, now_ns);
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
                params: self.params(number, 0, 0, now_ns),
            }
            .emit(&self.config.key);
            for lane in self.config.lane.counterparts() {
                self.send_plain(number, lane_address(to, lane), &hello, now_ns);
            }
        }
    }

    pub(super) fn introduction_due_ns(&self, now_ns: u64) -> u64 {
        let mut due_ns = self.introduction.hello_at_ns;
        if !self.config.static_peers.is_empty() {
            due_ns = due_ns.min(self.introduction.static_at_ns);
        }
        let dials = self.peers.iter().enumerate().flat_map(|(number, peer)| {
            let dial_ns = peer.next_dial_at_ns.max(peer.yields_until_ns);
            let patient_ns = peer.created_at_ns + YIELD_NS + 1;
            [Some(dial_ns), Some(patient_ns), self.unused_at_ns(number)]
                .into_iter()
                .flatten()
                .map(move |at_ns| at_ns.max(dial_ns).max(now_ns))
                .filter(move |at_ns| self.wants_dial(number, *at_ns))
        });
        dials.min().map_or(due_ns, |dial_ns| dial_ns.min(due_ns))
    }
}
