//! The device's protocol core: frames in, datagrams out, and back.
//!
//! Sans-IO: it is given the time, datagrams, frames and what the kernel says of its queues, and is
//! asked for datagrams, frames, events and the next time it wants to be called.

mod admission;
mod calls;
mod introduce;
mod lanes;
mod link;
mod stations;

use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

use crate::frame::{Frame, FramePool};
use crate::gather::gather;
use crate::lane::Lane;
use crate::liveness::Change;
use crate::peer::{Peer, Shared};
use crate::scatter::scatter;
use crate::secure::{ClusterKey, Seal};
use crate::session::Rejected;
use crate::transmit::Batch;
use crate::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, ControlKind, DATA_HEADER_BYTES, DataHeader, Kind,
    LINKS_MAX, Malformed, kind_of,
};
pub use link::{BACKLOG_MAX_NS, BACKLOG_WORST_NS, LinkConfig, LocalLink, OVERHEAD_BYTES};
use stations::Stations;

/// Peers an endpoint keeps: a cluster of a thousand nodes. Only holders of the cluster key become
/// peers, so this is a limit of memory, not of defence: 25 KB for one that is idle (64 hosts,
/// simulated), half a megabyte more for one that has sent frames, and at most [`crate::retain::RETAINED_BYTES_MAX`] and as much again held
/// for one that keeps a 10 Gb/s link busy.
pub const PEERS_MAX: usize = 1024;

/// What an endpoint is made with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Identity of the device, random, as long-lived as the device.
    pub node: u64,
    /// Random at every start.
    pub instance: u64,
    /// Host name, for people.
    pub name: String,
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// Which of the device's queues this is.
    pub lane: Lane,
    /// Whether the host takes bursts of UDP datagrams (`VIRTIO_NET_HDR_GSO_UDP_L4`). If not, they are
    /// taken apart for it.
    pub gathers_udp: bool,
    /// How packets are sealed.
    pub seal: Seal,
    /// The cluster's key.
    pub key: ClusterKey,
    /// Peers that multicast does not reach: each a list of (own link, address).
    pub static_peers: Vec<Vec<(u8, SocketAddr)>>,
}

/// What happened, for `kumi link events` and the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A peer became reachable, or stopped being so.
    Peer {
        /// The peer's identity.
        node: u64,
        /// Its host name.
        name: String,
        /// Whether it is reachable.
        is_up: bool,
    },
    /// A path changed its state.
    Path {
        /// The peer's identity.
        node: u64,
        /// Its host name.
        name: String,
        /// The local link.
        link: u8,
        /// From what to what, and why.
        change: Change,
        /// Share of packets lost lately.
        loss: f64,
    },
    /// A path began, or ceased, to lose packets while staying in use.
    Lossy {
        /// The peer's identity.
        node: u64,
        /// Its host name.
        name: String,
        /// The local link.
        link: u8,
        /// Share of packets lost lately.
        share: f64,
        /// Whether it began.
        is_lossy: bool,
    },
    /// A peer wants its packets sealed otherwise.
    SealMismatch {
        /// Its host name.
        name: String,
        /// What it wants.
        theirs: Seal,
    },
}

/// Counters of datagrams that led to nothing, and of frames that found no way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Signed or sealed with another key.
    pub wrong_key: u64,
    /// Not of this format.
    pub malformed: u64,
    /// Tag did not fit: forged or damaged.
    pub forged: u64,
    /// Accepted before.
    pub replayed: u64,
    /// Of a session that does not exist (a restart, or garbage).
    pub unknown_session: u64,
    /// Handshakes not looked at because too many came.
    pub handshakes_refused: u64,
    /// Handshakes whose sender was asked to prove its address first.
    pub handshakes_challenged: u64,
    /// Frames for which no peer or path was there.
    pub unroutable: u64,
}

/// The protocol core of one device (or of one of its queues).
pub struct Endpoint {
    config: Config,
    links: Vec<Option<LocalLink>>,
    peers: Vec<Peer>,
    by_node: HashMap<(u64, u8), usize>,
    by_session: HashMap<u16, usize>,
    next_session: u16,
    stations: Stations,
    pool: FramePool,
    frames: VecDeque<Frame>,
    events: VecDeque<Event>,
    counters: EndpointCounters,
    introduction: introduce::Introduction,
}

macro_rules! shared {
    ($self:ident, $now_ns:expr) => {
        &mut Shared {
            now_ns: $now_ns,
            links: &mut $self.links,
            pool: &mut $self.pool,
            frames: &mut $self.frames,
            events: &mut $self.events,
        }
    };
}
use shared;

impl Endpoint {
    /// An endpoint without links.
    pub fn new(config: Config, now_ns: u64) -> Self {
        let mut links = Vec::new();
        links.resize_with(LINKS_MAX, || None);
        let introduction = introduce::Introduction::new(&config, now_ns);
        Self {
            next_session: config.instance as u16,
            config,
            links,
            peers: Vec::new(),
            by_node: HashMap::new(),
            by_session: HashMap::new(),
            stations: Stations::default(),
            pool: FramePool::default(),
            frames: VecDeque::new(),
            events: VecDeque::new(),
            counters: EndpointCounters::default(),
            introduction,
        }
    }

    /// Adds a link under `number`, which must be free and below [`LINKS_MAX`].
    pub fn add_link(&mut self, number: u8, config: LinkConfig, now_ns: u64) {
        let slot = &mut self.links[usize::from(number)];
        assert!(slot.is_none(), "link number {number} is taken");
        *slot = Some(LocalLink::new(config));
        self.introduction.hurry(now_ns);
        self.fit_units();
    }

    /// Cuts units so that they fit the links there are.
    fn fit_units(&mut self) {
        let own = self.unit_bytes_max();
        for peer in &mut self.peers {
            peer.set_unit_limit(own);
        }
    }

    /// Removes a link; what was open on it goes to the others.
    pub fn remove_link(&mut self, number: u8, now_ns: u64) {
        for peer in &mut self.peers {
            peer.handle_link_removed(number, shared!(self, now_ns));
        }
        self.links[usize::from(number)] = None;
        self.fit_units();
    }

    /// The NIC under a link gained or lost its carrier.
    pub fn handle_carrier(&mut self, number: u8, has_carrier: bool, now_ns: u64) {
        let Some(link) = &mut self.links[usize::from(number)] else {
            return;
        };
        if std::mem::replace(&mut link.has_carrier, has_carrier) == has_carrier {
            return;
        }
        self.introduction.hurry(now_ns);
        for peer in &mut self.peers {
            if has_carrier {
                peer.paths[usize::from(number)].pinged_at_ns = 0; // probe at once
            } else {
                peer.handle_carrier_loss(number, shared!(self, now_ns));
            }
        }
    }

    /// A link.
    pub fn link(&self, number: u8) -> Option<&LocalLink> {
        self.links[usize::from(number)].as_ref()
    }

    /// A link, to set its rate or its segmentation.
    pub fn link_mut(&mut self, number: u8) -> Option<&mut LocalLink> {
        self.links[usize::from(number)].as_mut()
    }

    /// Largest payload of a unit that fits all links.
    pub fn unit_bytes_max(&self) -> usize {
        let framing = DATA_HEADER_BYTES + self.config.seal.tag_bytes();
        let links = self.links.iter().flatten();
        links
            .map(|link| link.config.datagram_bytes_max - framing)
            .min()
            .unwrap_or(0)
    }

    /// A buffer for a frame of up to `len` bytes.
    pub fn take_buffer(&mut self, len: usize) -> Frame {
        self.pool.take(len)
    }

    /// A frame that is to wait, in a buffer of its size.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        self.pool.compact(frame)
    }

    /// Takes a buffer back.
    pub fn give_buffer(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    /// When the links will take frames again; `None` if they do now. Frames are better left with
    /// the host, whose queue TCP feels, than piled up here.
    pub fn frames_wait_until(&self, now_ns: u64) -> Option<u64> {
        let (mut least_ns, mut most_ns, mut most_usable_ns) = (f64::INFINITY, 0f64, 0f64);
        for (number, link) in self.links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| link.has_carrier) else {
                continue;
            };
            let backlog_ns = link.backlog_ns(now_ns);
            most_ns = most_ns.max(backlog_ns);
            if self.is_in_use(number) {
                least_ns = least_ns.min(link.full_for_ns(now_ns));
                most_usable_ns = most_usable_ns.max(backlog_ns);
            }
        }
        // A NIC may hold probes for as long as its neighbours are unknown, as after a plug. No frame goes there
        // while another link is usable, so its backlog bounds nothing.
        if least_ns.is_finite() {
            most_ns = most_usable_ns;
        }
        let worst_ns = BACKLOG_WORST_NS as f64;
        if least_ns.is_finite() && least_ns > 0.0 {
            Some(now_ns + least_ns as u64)
        } else if most_ns > worst_ns {
            Some(now_ns + (most_ns - worst_ns) as u64 + BACKLOG_MAX_NS / 2)
        } else {
            None
        }
    }

    /// Returns whether a peer is reached over a link.
    fn is_in_use(&self, number: usize) -> bool {
        self.peers.iter().any(|peer| peer.paths[number].is_usable())
    }

    /// What the links can carry together, in bits per second (infinite before any was ever kept busy:
    /// claims are not relied on), and the time that what waits on them takes, with `waiting_bytes`
    /// that wait elsewhere.
    pub fn load(&self, now_ns: u64, waiting_bytes: usize) -> (f64, f64) {
        let (mut capacity_bps, mut backlog_bytes) = (0.0, waiting_bytes as f64);
        let mut is_measured = false;
        for (number, link) in self.links.iter().enumerate() {
            let Some(link) = link
                .as_ref()
                .filter(|link| link.has_carrier && link.is_used)
            else {
                continue;
            };
            // A link that arrives later than anything is held is not waited for.
            let mut peers = self.peers.iter();
            if !peers.any(|peer| peer.is_worth_waiting_for(number)) {
                continue;
            }
            let link_bps = link.capacity.rate_bps();
            let active = self
                .peers
                .iter()
                .filter(|peer| peer.is_active_on(number, now_ns));
            let reach_bps: f64 = active
                .map(|peer| {
                    peer.paths[number]
                        .bottleneck
                        .limit_bps()
                        .unwrap_or(link_bps)
                })
                .sum();
            capacity_bps += if reach_bps > 0.0 {
                reach_bps.min(link_bps)
            } else {
                link_bps
            };
            backlog_bytes += link.backlog_bytes(now_ns);
            is_measured |= link.capacity.is_measured() || reach_bps > 0.0 && reach_bps < link_bps;
        }
        if is_measured && capacity_bps > 0.0 {
            (capacity_bps, backlog_bytes * 8e9 / capacity_bps)
        } else {
            (f64::INFINITY, 0.0)
        }
    }

    /// A frame from the host.
    pub fn handle_frame(&mut self, frame: Frame, now_ns: u64) {
        let Some(destination) = frame.ethernet().first_chunk::<6>().copied() else {
            self.pool.give(frame);
            return;
        };
        match self.stations.find(&destination) {
            Some(peer) => {
                if let Err(frame) = self.peers[peer].send_frame(frame, shared!(self, now_ns)) {
                    self.counters.unroutable += 1;
                    self.pool.give(frame);
                }
            }
            None => self.flood(frame, now_ns),
        }
    }

    /// Broadcast, multicast and stations not heard of go to every peer.
    fn flood(&mut self, frame: Frame, now_ns: u64) {
        let mut found_a_way = false;
        let lane = self.config.lane;
        let reached = self.peers.iter_mut();
        for peer in reached.filter(|peer| lane.sends_to(peer.params.lane)) {
            let mut copy = self.pool.take(frame.as_slice().len());
            copy.buffer()[..frame.as_slice().len()].copy_from_slice(frame.as_slice());
            match peer.send_frame(copy, shared!(self, now_ns)) {
                Ok(()) => found_a_way = true,
                Err(copy) => self.pool.give(copy),
            }
        }
        self.counters.unroutable += u64::from(!found_a_way);
        self.pool.give(frame);
    }

    /// A datagram that came in on `link`; it is opened in place. Returns what was wrong with it,
    /// if anything was: nothing is answered then.
    pub fn handle_datagram(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &mut [u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let outcome = match kind_of(datagram) {
            Ok(Kind::Data) => self.handle_data(link, from, datagram, now_ns),
            Ok(Kind::Control) => self.handle_control(link, from, datagram, now_ns),
            Ok(Kind::Hello) => self.handle_hello(link, from, datagram, now_ns),
            Ok(Kind::Init) => self.handle_init(link, from, datagram, now_ns),
            Ok(Kind::Reply) => self.handle_reply(link, from, datagram, now_ns),
            Ok(Kind::Cookie) => self.handle_cookie(datagram, now_ns),
            Err(malformed) => Err(malformed),
        };
        self.counters.malformed += u64::from(outcome.is_err());
        outcome
    }

    fn handle_data(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &mut [u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let header = DataHeader::parse(datagram)?;
        let seal_key = (header.session, header.link, header.link_seq);
        let opened = self.open(
            seal_key,
            DATA_HEADER_BYTES,
            datagram,
            (link, from),
            true,
            now_ns,
        );
        let Some((number, payload)) = opened else {
            return Ok(());
        };
        header.check_payload(payload.len())?;
        let (before, home) = (self.frames.len(), self.home_of(number));
        self.peers[number].handle_unit(link, &header, &datagram[payload], shared!(self, now_ns));
        for frame in self.frames.iter().skip(before) {
            self.stations.learn(frame.ethernet(), home, now_ns);
        }
        Ok(())
    }

    fn handle_control(
        &mut self,
        link: u8,
        from: SocketAddr,
        datagram: &mut [u8],
        now_ns: u64,
    ) -> Result<(), Malformed> {
        let header = ControlHeader::parse(datagram)?;
        let is_ping = header.kind == ControlKind::Ping;
        let seal_key = (header.session, header.link, header.link_seq);
        let opened = self.open(
            seal_key,
            CONTROL_HEADER_BYTES,
            datagram,
            (link, from),
            is_ping,
            now_ns,
        );
        let Some((number, body)) = opened else {
            return Ok(());
        };
        let peer = &mut self.peers[number];
        match header.kind {
            ControlKind::Ping => {
                peer.handle_ping(now_ns);
                Ok(())
            }
            ControlKind::Report => peer.handle_report(&datagram[body], shared!(self, now_ns)),
            ControlKind::Goodbye => {
                peer.handle_goodbye(shared!(self, now_ns));
                self.renew_session_index(number);
                Ok(())
            }
        }
    }

    /// Opens a sealed datagram and notes its arrival; gives the peer and the payload's range.
    fn open(
        &mut self,
        (session, remote_link, link_seq): (u16, u8, u32),
        header_bytes: usize,
        datagram: &mut [u8],
        (link, from): (u8, SocketAddr),
        eliciting: bool,
        now_ns: u64,
    ) -> Option<(usize, std::ops::Range<usize>)> {
        let Some(&number) = self.by_session.get(&session) else {
            self.counters.unknown_session += 1;
            self.introduction.hurry(now_ns);
            return None;
        };
        let peer = &mut self.peers[number];
        let keys = peer.session_mut(session)?;
        let (seq, payload) = match keys.open(remote_link, link_seq, header_bytes, datagram) {
            Ok(opened) => opened,
            Err(Rejected::Replayed) => {
                self.counters.replayed += 1;
                return None;
            }
            Err(Rejected::Forged) => {
                self.counters.forged += 1;
                return None;
            }
        };
        let left_a_gap = keys.accept(remote_link, seq, now_ns);
        let is_next = peer.next.iter().any(|next| next.session.local == session);
        // If both sides dialled at once, both settle for the caller's session.
        let keeps_own = peer.has_newer(session) && self.is_caller(&self.peers[number].params);
        let peer = &mut self.peers[number];
        if is_next && !keeps_own {
            peer.confirm_next(session, self.config.instance, &mut self.pool);
            peer.dial_again_at_ns = now_ns + introduce::YIELD_NS;
            self.renew_session_index(number);
            self.settle_lanes(number, now_ns);
        }
        let peer = &mut self.peers[number];
        peer.arrival_session = session;
        peer.reorder.note_heard(remote_link, now_ns);
        peer.note_arrival(link, datagram.len(), eliciting, left_a_gap, now_ns);
        if peer.paths[usize::from(link)].to != Some(from) {
            peer.note_sealed_from(link, remote_link, from, &self.links, now_ns);
        }
        Some((number, payload))
    }

    /// Tells all peers on all links that this instance ends. The endpoint is not to be used after
    /// what this queued is sent.
    pub fn say_goodbye(&mut self, now_ns: u64) {
        for peer in &mut self.peers {
            for link in 0..self.links.len() as u8 {
                peer.send_control(link, ControlKind::Goodbye, &[], shared!(self, now_ns));
            }
        }
    }

    /// What the kernel still holds of a link's datagrams, in wire bytes.
    pub fn observe_unsent(&mut self, number: u8, kernel_bytes: u64, now_ns: u64) {
        let is_in_use = self.is_in_use(usize::from(number));
        if let Some(link) = &mut self.links[usize::from(number)] {
            link.observe_unsent(now_ns, kernel_bytes, is_in_use);
        }
    }

    /// Does what is due by the clock. To be called after the datagrams that have come were
    /// handled: a late wake-up must not be taken for a silent peer.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        for number in 0..self.peers.len() {
            let (before, home) = (self.frames.len(), self.home_of(number));
            self.peers[number].handle_timeout(shared!(self, now_ns));
            for frame in self.frames.iter().skip(before) {
                self.stations.learn(frame.ethernet(), home, now_ns);
            }
            if self.peers[number].expire_sessions(now_ns) {
                self.renew_session_index(number);
            }
            if std::mem::take(&mut self.peers[number].wants_hellos) {
                self.introduction.hurry(now_ns);
            }
        }
        let mut came_up = false;
        for peer in &mut self.peers {
            came_up |= std::mem::take(&mut peer.came_up);
        }
        if came_up {
            self.forget_dead(now_ns);
        }
        self.introduce(now_ns);
    }

    /// When [`Endpoint::handle_timeout`] is next to be called.
    pub fn poll_timeout(&self, now_ns: u64) -> u64 {
        let mut changed = self.peers.iter();
        if changed.any(|peer| peer.came_up || peer.wants_hellos) {
            return now_ns;
        }
        let peers = self
            .peers
            .iter()
            .filter_map(|peer| peer.poll_timeout(&self.links))
            .min();
        let introduction = self.introduction_due_ns(now_ns);
        peers.map_or(introduction, |peers| peers.min(introduction))
    }

    /// The next batch for a link.
    pub fn poll_transmit(&self, number: u8) -> Option<&Batch> {
        self.links[usize::from(number)].as_ref()?.queue.front()
    }

    /// The batch [`Endpoint::poll_transmit`] gave is with the kernel, or was dropped.
    pub fn transmitted(&mut self, number: u8) {
        if let Some(link) = &mut self.links[usize::from(number)] {
            link.queue.pop();
        }
    }

    /// The next frame for the host; give its buffer back with [`Endpoint::give_buffer`].
    pub fn poll_frame(&mut self) -> Option<Frame> {
        let first = self.frames.pop_front()?;
        Some(if self.config.gathers_udp {
            gather(first, &mut self.frames, &mut self.pool)
        } else {
            scatter(first, &mut self.frames, &mut self.pool)
        })
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counters.
    pub fn counters(&self) -> EndpointCounters {
        self.counters
    }

    /// The peers, for showing.
    pub fn peers(&self) -> impl Iterator<Item = crate::view::PeerView<'_>> {
        self.peers.iter().map(crate::view::PeerView::new)
    }
}

#[cfg(test)]
mod far;
#[cfg(test)]
mod tests;
