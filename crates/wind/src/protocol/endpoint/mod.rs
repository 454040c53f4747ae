//! An endpoint: one socket, many peers.
//!
//! ```text
//!             connect                Reply             silence, Close, violation
//!   (none) ───────────► dialing ───────────► established ─────────────────► (none)
//!      │                                        ▲   │ Init of another epoch, and a
//!      └──── Init, and a sealed packet ─────────┘   ▼ sealed packet: a new session
//! ```
//!
//! The core has no clock, socket or thread. Its caller passes datagrams in and takes datagrams and
//! events out.

mod establish;
mod events;
mod grants;
mod peer;
mod requests;
mod sending;
mod terms;

pub use requests::RequestKeys;
pub use terms::{
    Config, Event, Lost, MessageId, Multicast, PathStatus, PeerId, Rejected, Rung, Status, Waiting,
};

use crate::protocol::credit::{Budget, Demand, Rounds};
use crate::protocol::diff;
use crate::protocol::inbox::Delivery;
use crate::protocol::model::{Class, Mode, Operation, Place, Regions};
use crate::protocol::outgoing::{ITEM_COST_BYTES, Message};
use crate::protocol::pressure::Pressure;
use crate::protocol::session::{Happening, STATE_BYTES, Session, Unusable, operation_name};
use crate::protocol::wire::{Flags, HEADER_BYTES, Header, Kind, OPERATION_HEAD_BYTES, Segment};
use establish::DIAL_MAX_NS;
use peer::{Candidate, Peer};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

/// An endpoint. `A` is the type of addresses.
pub struct Endpoint<A> {
    config: Config,
    /// A node of the map is at least half full, so the peers themselves are not in it.
    peers: BTreeMap<PeerId, Box<Peer<A>>>,
    addresses: HashMap<A, PeerId>,
    /// Peers by the index under which this side receives their packets.
    indices: HashMap<u32, PeerId>,
    next_peer: u32,
    next_index: u32,
    budget: Budget,
    pressure: Pressure,
    wanting: BTreeSet<PeerId>,
    ready: VecDeque<PeerId>,
    /// Datagrams of the peer whose turn it is.
    turn_datagrams: u32,
    timers: BTreeSet<(u64, PeerId)>,
    /// Events other than messages.
    notices: VecDeque<Event>,
    messages: VecDeque<(PeerId, Delivery)>,
    /// Messages for the node itself.
    relays: VecDeque<(PeerId, Delivery)>,
    /// Answers to packets of unknown sessions.
    unknown: VecDeque<(A, Header)>,
    /// Responses to requests.
    responses: VecDeque<(A, Vec<u8>)>,
    /// Time up to which Inits have used their share of the processor, in ns.
    inits_paid_ns: u64,
}

/// Most datagrams of a peer before it is the turn of the next one.
const TURN_DATAGRAMS_MAX: u32 = 16;

/// Most answers to unknown packets that wait.
const UNKNOWN_MAX: usize = 64;

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    /// Creates an endpoint without peers.
    pub fn new(config: Config) -> Self {
        let budget = Budget::new(
            config.budget_bytes,
            config.first_bytes,
            config.datagram_bytes,
        );
        Self {
            next_index: config.epoch as u32,
            pressure: Pressure::new(config.budget_bytes, config.datagram_bytes),
            config,
            peers: BTreeMap::new(),
            addresses: HashMap::new(),
            indices: HashMap::new(),
            next_peer: 0,
            budget,
            wanting: BTreeSet::new(),
            ready: VecDeque::new(),
            turn_datagrams: 0,
            timers: BTreeSet::new(),
            notices: VecDeque::new(),
            messages: VecDeque::new(),
            relays: VecDeque::new(),
            unknown: VecDeque::new(),
            responses: VecDeque::new(),
            inits_paid_ns: 0,
        }
    }

    /// Returns the number of peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Returns the address of a peer.
    pub fn address(&self, peer: PeerId) -> Option<A> {
        self.peers.get(&peer).map(|peer| peer.address)
    }

    /// Returns the state of the session with a peer, if there is one.
    pub fn status(&self, peer: PeerId) -> Option<Status> {
        Some(self.peers.get(&peer)?.session.as_ref()?.status())
    }

    /// Returns the names of all peers.
    pub fn peer_ids(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Returns the peer at `address`, and begins a session with it unless there is one.
    pub fn connect(&mut self, address: A, now_ns: u64) -> Result<PeerId, Rejected> {
        if let Some(peer) = self.addresses.get(&address) {
            return Ok(*peer);
        }
        let id = self.add_peer(address)?;
        self.dial(id, now_ns);
        Ok(id)
    }

    fn add_peer(&mut self, address: A) -> Result<PeerId, Rejected> {
        if self.peers.len() >= self.config.peers_max {
            return Err(Rejected::Peers(self.config.peers_max));
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let demand = Demand {
            granted: self.config.first_bytes,
            used: 0,
            held: 0,
            wanted: 0,
            per_round: 0,
        };
        let peer = Peer {
            address,
            session: None,
            session_index: None,
            session_init: None,
            candidate: None,
            dial: None,
            waiting: None,
            synchronous: VecDeque::new(),
            demand,
            rounds: Rounds::default(),
            queued_bytes: 0,
            taken_bytes: 0,
            interval: 0,
            timer_ns: None,
            is_ready: false,
        };
        self.peers.insert(id, Box::new(peer));
        self.addresses.insert(address, id);
        Ok(id)
    }

    /// Returns the bytes of a datagram that a record may have.
    fn room_bytes(&self) -> usize {
        usize::from(self.config.datagram_bytes)
            - HEADER_BYTES
            - self.config.seal.tag_bytes()
            - STATE_BYTES
    }

    /// Returns the changes of `now` relative to `twin`, which has the same length, as the data of a
    /// message of a diff mode.
    pub fn diff_parts(&self, twin: &[u8], now: &[u8], class: Class, mode: Mode) -> Vec<Vec<u8>> {
        let room = self.room_bytes() - Segment::head_bytes(class, mode, 0);
        diff::encode(twin, now, room)
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the longest payload of a put, a get or a diff, in bytes.
    pub fn operation_bytes_max(&self) -> usize {
        self.room_bytes() - OPERATION_HEAD_BYTES
    }

    /// Sends a message. A synchronous one is followed by [`Event::Placed`].
    pub fn send(&mut self, peer: PeerId, message: Message) -> Result<MessageId, Rejected> {
        let part_bytes_max =
            self.room_bytes() - Segment::head_bytes(message.class, message.mode, 0);
        let bytes =
            (message.header.len() + message.data.iter().map(Vec::len).sum::<usize>()) as u64;
        let max = u64::from(self.config.message_bytes_max);
        if bytes > max || message.header.len() > usize::from(u16::MAX) {
            return Err(Rejected::Length { bytes, max });
        }
        if message.mode.is_direct() != message.place.is_some() {
            return Err(Rejected::Place);
        }
        let header = std::iter::once(message.header.len());
        let parts = header.chain(message.data.iter().map(Vec::len));
        let longest = parts.max().unwrap_or_default();
        if message.mode.is_diff() && longest > part_bytes_max {
            return Err(Rejected::Part {
                bytes: longest,
                max: part_bytes_max,
            });
        }
        let is_ordered = message.class.is_ordered();
        let is_synchronous = message.class == Class::Synchronous;
        let state = self.peers.get_mut(&peer).ok_or(Rejected::Peer)?;
        let number = match &mut state.session {
            Some(session) => session.submit(message),
            None => state.waiting.get_or_insert_default().submit(message, 0),
        };
        if is_synchronous {
            state.synchronous.push_back(number);
        }
        self.mark_ready(peer);
        Ok(MessageId { is_ordered, number })
    }

    /// Starts a one-sided operation. Its name is in the [`Event::Answered`] that follows.
    pub fn operate(
        &mut self,
        peer: PeerId,
        place: Place,
        operation: Operation,
    ) -> Result<u64, Rejected> {
        let bytes = match &operation {
            Operation::Put(bytes) | Operation::PutDiff(bytes) => bytes.len(),
            Operation::Get(bytes) => usize::from(*bytes),
            Operation::Atomic(_) => 0,
        };
        let max = self.operation_bytes_max();
        if bytes > max {
            return Err(Rejected::Part { bytes, max });
        }
        let state = self.peers.get_mut(&peer).ok_or(Rejected::Peer)?;
        let name = match &mut state.session {
            Some(session) => session.operate(place, operation),
            None => {
                let waiting = state.waiting.get_or_insert_default();
                operation_name(waiting.submit_operation(place, operation))
            }
        };
        self.mark_ready(peer);
        Ok(name)
    }

    /// Ends the session with a peer.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(session) = self
            .peers
            .get_mut(&peer)
            .and_then(|peer| peer.session.as_mut())
        {
            session.close();
            self.touch(peer);
        }
    }

    /// Returns the peer at `address`.
    pub fn find(&self, address: A) -> Option<PeerId> {
        self.addresses.get(&address).copied()
    }

    /// Handles a datagram, which may be changed in place.
    pub fn handle_datagram(
        &mut self,
        from: A,
        datagram: &mut [u8],
        regions: &mut dyn Regions,
        now_ns: u64,
    ) {
        let Ok(header) = Header::parse(datagram) else {
            return;
        };
        match header.kind {
            Kind::Init => self.handle_init(from, datagram, now_ns),
            Kind::Reply => self.handle_reply(&header, datagram, now_ns),
            Kind::Data => self.handle_data(from, &header, datagram, regions, now_ns),
            Kind::Unknown => self.handle_unknown(from, &header, now_ns),
            Kind::Request => self.handle_request(from, &header, datagram, regions, now_ns),
            Kind::Response => self.handle_response(&header, datagram, now_ns),
            Kind::PathProbe | Kind::PathReply => self.handle_path(&header, datagram),
        }
    }

    fn handle_data(
        &mut self,
        from: A,
        header: &Header,
        packet: &mut [u8],
        regions: &mut dyn Regions,
        now_ns: u64,
    ) {
        let known = self.indices.get(&header.receiver).copied();
        let Some(id) = known.filter(|id| self.peers.contains_key(id)) else {
            self.note_unknown(from, header, packet);
            return;
        };
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let mut happenings = Vec::new();
        let candidate = peer.candidate.as_mut();
        let candidate = candidate.filter(|candidate| candidate.index == header.receiver);
        let is_candidate = candidate.is_some();
        let session = match candidate {
            Some(candidate) => Some(&mut candidate.session),
            None => peer.session.as_mut(),
        };
        let Some(session) = session else { return };
        let result = session.handle(header, packet, regions, now_ns, &mut happenings);
        if result == Err(Unusable::Forged) {
            return;
        }
        let mut id = id;
        if let Some(candidate) = peer.candidate.take_if(|_| is_candidate) {
            let Candidate {
                session,
                index,
                init,
                ..
            } = *candidate;
            let Some(established) = self.establish(id, session, index, Some(init)) else {
                return;
            };
            id = established;
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            if let Some(session) = &mut peer.session {
                let missing = std::mem::take(&mut session.missing);
                let rtt_ns = session.rtt().smoothed_ns();
                let (used_bytes, _) = session.used_and_held_bytes();
                peer.rounds.note(used_bytes, session.rtt().min_ns(), now_ns);
                let counted = peer.interval;
                peer.interval = self.pressure.note(counted, missing, rtt_ns, now_ns);
                self.budget.factor = self.pressure.factor();
                self.budget.senders = self.pressure.senders();
            }
        }
        if let Some(session) = self.peers.get_mut(&id).and_then(|p| p.session.as_mut()) {
            session.look(regions, now_ns, &mut happenings);
        }
        for happening in happenings {
            self.note(id, happening);
        }
        match result {
            Ok(()) => self.regrant(id),
            Err(reason) => self.lose(id, Lost::Faulty(reason)),
        }
    }

    fn note(&mut self, id: PeerId, happening: Happening) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        match happening {
            Happening::Delivered(delivered) => {
                if let Some(message) = delivered.message {
                    peer.queued_bytes += cost(&message);
                    match message.mode {
                        Mode::Relay => self.relays.push_back((id, message)),
                        _ => self.messages.push_back((id, message)),
                    }
                }
            }
            Happening::Answered { operation, result } => {
                self.notices
                    .push_back(Event::Answered(id, operation, result));
            }
            Happening::Placed(count) => {
                while let Some(number) = peer.synchronous.front().copied() {
                    if number >= count {
                        break;
                    }
                    peer.synchronous.pop_front();
                    let name = MessageId {
                        is_ordered: true,
                        number,
                    };
                    self.notices.push_back(Event::Placed(id, name));
                }
            }
            Happening::Rejected {
                is_ordered,
                message,
                reason,
            } => {
                if is_ordered {
                    peer.synchronous.retain(|number| *number != message);
                }
                let name = MessageId {
                    is_ordered,
                    number: message,
                };
                self.notices.push_back(Event::Rejected(id, name, reason));
            }
            Happening::Closed => self.lose(id, Lost::Closed),
        }
    }

    pub(super) fn lose(&mut self, id: PeerId, reason: Lost) {
        if self.forget(id) {
            self.notices.push_back(Event::Lost(id, reason));
        }
    }

    /// Removes a peer. Returns false if it is unknown.
    fn forget(&mut self, id: PeerId) -> bool {
        let Some(peer) = self.peers.remove(&id) else {
            return false;
        };
        let nothing = Demand {
            granted: 0,
            used: 0,
            held: 0,
            wanted: 0,
            per_round: 0,
        };
        self.budget.record(peer.demand, nothing);
        self.addresses.remove(&peer.address);
        let indices = [
            peer.session_index,
            peer.dial.map(|dial| dial.index),
            peer.candidate.map(|candidate| candidate.index),
        ];
        for index in indices.into_iter().flatten() {
            self.indices.remove(&index);
        }
        self.wanting.remove(&id);
        if let Some(at_ns) = peer.timer_ns {
            self.timers.remove(&(at_ns, id));
        }
        true
    }

    /// Puts a peer in the queue of those that may have something to send, and sets its timer.
    fn touch(&mut self, id: PeerId) {
        self.mark_ready(id);
        self.set_timer(id);
    }

    /// Puts a peer in the queue of those that may have something to send. What is submitted
    /// changes no timer before it is sent.
    fn mark_ready(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            if !peer.is_ready {
                peer.is_ready = true;
                self.ready.push_back(id);
            }
        }
    }

    /// Lets the peer that was just served send more before the others, so that its datagrams share
    /// system calls, up to a number of them.
    fn keep_turn(&mut self, id: PeerId) {
        self.turn_datagrams += 1;
        if self.turn_datagrams % TURN_DATAGRAMS_MAX != 0 && self.ready.back() == Some(&id) {
            self.ready.rotate_right(1);
        }
    }

    fn set_timer(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let session = peer.session.as_ref().and_then(Session::timeout_ns);
        let dial = peer.dial.as_ref();
        let dial = dial.map(|dial| dial.sent_ns + dial.interval_ns);
        let candidate = peer.candidate.as_ref();
        let candidate = candidate.map(|candidate| candidate.expires_ns);
        let at_ns = [session, dial, candidate].into_iter().flatten().min();
        if at_ns == peer.timer_ns {
            return;
        }
        if let Some(session) = peer.session.as_mut().filter(|session| session.is_idle()) {
            session.release();
        }
        if let Some(earlier) = peer.timer_ns {
            self.timers.remove(&(earlier, id));
        }
        if let Some(at_ns) = at_ns {
            self.timers.insert((at_ns, id));
        }
        peer.timer_ns = at_ns;
    }

    /// Returns the time of the next timeout; `None` if nothing waits for one.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.timers.first().map(|(at_ns, _)| *at_ns)
    }

    /// Handles all timeouts up to `now_ns`.
    pub fn handle_timeout(&mut self, regions: &mut dyn Regions, now_ns: u64) {
        // An acknowledgement that is due stays due until it is sent, so each timer is taken once.
        let later = self.timers.split_off(&(now_ns + 1, PeerId(0)));
        let due = std::mem::replace(&mut self.timers, later);
        for (_, id) in due {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            peer.timer_ns = None;
            let lost_after_ns = self.config.lost_after_ns;
            let mut happenings = Vec::new();
            if let Some(session) = &mut peer.session {
                session.handle_timeout(now_ns);
                if session.is_silent(now_ns, lost_after_ns) {
                    self.lose(id, Lost::Silent);
                    continue;
                }
                session.look(regions, now_ns, &mut happenings);
            }
            for happening in happenings {
                self.note(id, happening);
            }
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            let expired = |candidate: &mut Box<Candidate>| candidate.expires_ns <= now_ns;
            if let Some(candidate) = peer.candidate.take_if(expired) {
                self.indices.remove(&candidate.index);
                if peer.session.is_none() && peer.dial.is_none() {
                    self.forget(id);
                    continue;
                }
            }
            if let Some(dial) = &mut peer.dial {
                if now_ns >= dial.began_ns + lost_after_ns && peer.session.is_none() {
                    self.lose(id, Lost::Silent);
                    continue;
                }
                if now_ns >= dial.sent_ns + dial.interval_ns {
                    dial.is_due = now_ns >= dial.yields_until_ns;
                    dial.sent_ns = now_ns;
                    dial.interval_ns = (dial.interval_ns * 2).min(DIAL_MAX_NS);
                }
            }
            self.touch(id);
        }
    }

    /// Appends the next datagram to `out`. Returns its destination; `None` if
    /// there is nothing to send now.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<A> {
        if let Some((address, unknown)) = self.unknown.pop_front() {
            let header = Header {
                kind: Kind::Unknown,
                flags: Flags::default(),
                ..unknown
            };
            out.extend_from_slice(&header.to_bytes());
            return Some(address);
        }
        if let Some((address, response)) = self.responses.pop_front() {
            out.extend_from_slice(&response);
            return Some(address);
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            peer.is_ready = false;
            let address = peer.address;
            if peer.poll_transmit(now_ns, out) {
                self.touch(id);
                self.keep_turn(id);
                return Some(address);
            }
            self.turn_datagrams = 0;
            self.set_timer(id);
        }
        None
    }
}

/// Returns the credit that a delivered message occupies until the program takes it.
fn cost(message: &Delivery) -> u64 {
    ITEM_COST_BYTES + (message.header.len() + message.data.len()) as u64
}
