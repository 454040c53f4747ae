//! Protocol core of the device: frames in and datagrams out, and the reverse.
//!
//! The core does no I/O. Its caller passes the time, datagrams, frames and the lengths of the
//! kernel's queues. The caller asks it for datagrams, frames, events and the time of the next call.

mod admission;
mod backpressure;
mod calls;
pub mod direct;
mod introduce;
mod lanes;
mod stations;

use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

use crate::coalesce::coalesce;
pub use crate::event::Event;
use crate::frame::{Frame, FramePool};
use crate::lane::Lane;
pub use crate::link::{
    BACKLOG_MAX_NS, BACKLOG_WORST_NS, DirectLink, LinkConfig, LocalLink, OVERHEAD_BYTES,
};
use crate::peer::{Peer, Shared};
use crate::scatter::scatter;
use crate::secure::{ClusterKey, Seal};
use crate::session::Rejected;
use crate::transmit::Batch;
use crate::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, ControlKind, DATA_HEADER_BYTES, DataHeader, Kind,
    LINKS_MAX, Malformed, kind_of,
};
use stations::Stations;

/// Largest number of peers of an endpoint: a cluster of a thousand nodes. Only holders of the
/// cluster key become peers, so this limits memory and is not a defence. An idle peer takes 25 KB
/// (64 hosts, simulated), one that has sent frames half a megabyte more. A peer that keeps a 10
/// Gb/s link busy takes at most `crate::retain::RETAINED_BYTES_MAX`, and as much again for frames
/// on hold.
pub const PEERS_MAX: usize = 1024;

/// Configuration of an endpoint.
#[derive(Debug, Clone)]
pub struct Config {
    /// Public identity of the device: random, and as long-lived as the device.
    pub node: u64,
    /// Epoch: random at every start.
    pub instance: u64,
    /// Host name, for display.
    pub name: String,
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// Device queue that the endpoint serves.
    pub lane: Lane,
    /// True if the host takes bursts of UDP datagrams (`VIRTIO_NET_HDR_GSO_UDP_L4`). Otherwise the
    /// endpoint splits them.
    pub coalesces_udp: bool,
    /// Protection of packets.
    pub seal: Seal,
    /// Key of the cluster.
    pub key: ClusterKey,
    /// Peers that multicast does not reach: for each a list of (local link, address).
    pub static_peers: Vec<Vec<(u8, SocketAddr)>>,
}

/// Counters of dropped datagrams and frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Datagrams signed or sealed with another key.
    pub wrong_key: u64,
    /// Datagrams that are not of this format.
    pub malformed: u64,
    /// Datagrams whose tag is wrong: forged or damaged.
    pub forged: u64,
    /// Datagrams that were accepted before.
    pub replayed: u64,
    /// Datagrams of an unknown session (after a restart, or garbage).
    pub unknown_session: u64,
    /// Handshakes that were not processed because too many arrived.
    pub handshakes_refused: u64,
    /// Handshakes whose sender was asked to prove its address first.
    pub handshakes_challenged: u64,
    /// Frames for which there was no peer or path.
    pub unroutable: u64,
}

/// Contents of a sealed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Data,
    Control(ControlKind),
}

/// Protocol core of one device, or of one of its queues.
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
    /// An offer changed since [`Endpoint::take_direct_news`].
    has_direct_news: bool,
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
    /// Returns an endpoint without links.
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
            has_direct_news: false,
        }
    }

    /// Adds a link as `number`, which must be free and below [`LINKS_MAX`].
    pub fn add_link(&mut self, number: u8, config: LinkConfig, now_ns: u64) {
        let slot = &mut self.links[usize::from(number)];
        assert!(slot.is_none(), "link number {number} is taken");
        *slot = Some(LocalLink::new(config));
        self.introduction.hurry(now_ns);
        self.fit_units();
    }

    fn fit_units(&mut self) {
        let own = self.unit_bytes_max();
        for peer in &mut self.peers {
            peer.set_unit_limit(own);
        }
    }

    /// Removes a link. The units in flight on it move to the other links.
    pub fn remove_link(&mut self, number: u8, now_ns: u64) {
        for peer in &mut self.peers {
            peer.handle_link_removed(number, shared!(self, now_ns));
        }
        self.links[usize::from(number)] = None;
        self.fit_units();
    }

    /// Handles a change of the carrier of a link's NIC.
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

    /// Returns link `number`.
    pub fn link(&self, number: u8) -> Option<&LocalLink> {
        self.links[usize::from(number)].as_ref()
    }

    /// Returns link `number`, to set its rate or its segmentation.
    pub fn link_mut(&mut self, number: u8) -> Option<&mut LocalLink> {
        self.links[usize::from(number)].as_mut()
    }

    /// Returns the largest unit payload that fits all links, in bytes.
    pub fn unit_bytes_max(&self) -> usize {
        let framing = DATA_HEADER_BYTES + self.config.seal.tag_bytes();
        let links = self.links.iter().flatten();
        links
            .map(|link| link.config.datagram_bytes_max - framing)
            .min()
            .unwrap_or(0)
    }

    /// Returns a buffer for a frame of up to `len` bytes.
    pub fn take_buffer(&mut self, len: usize) -> Frame {
        self.pool.take(len)
    }

    /// Moves a frame that has to wait into a buffer of its size.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        self.pool.compact(frame)
    }

    /// Takes a buffer back.
    pub fn give_buffer(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    /// Handles a frame from the host.
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

    /// Sends a frame to every peer: broadcast, multicast, and unknown stations.
    fn flood(&mut self, frame: Frame, now_ns: u64) {
        let mut is_sent = false;
        let lane = self.config.lane;
        let peers = self.peers.iter_mut();
        for peer in peers.filter(|peer| lane.sends_to(peer.params.lane)) {
            let mut copy = self.pool.take(frame.as_slice().len());
            copy.buffer()[..frame.as_slice().len()].copy_from_slice(frame.as_slice());
            match peer.send_frame(copy, shared!(self, now_ns)) {
                Ok(()) => is_sent = true,
                Err(copy) => self.pool.give(copy),
            }
        }
        self.counters.unroutable += u64::from(!is_sent);
        self.pool.give(frame);
    }

    /// Handles a datagram that arrived on `link`, and opens it in place. An error states the fault
    /// of a malformed datagram, which is not answered.
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
        let opened = self.open(seal_key, Content::Data, datagram, (link, from), now_ns);
        let Some((number, payload)) = opened else {
            return Ok(());
        };
        header.check_payload(payload.len())?;
        let (frame_count, home) = (self.frames.len(), self.home_peer(number));
        self.peers[number].handle_unit(link, &header, &datagram[payload], shared!(self, now_ns));
        for frame in self.frames.iter().skip(frame_count) {
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
        let seal_key = (header.session, header.link, header.link_seq);
        let content = Content::Control(header.kind);
        let opened = self.open(seal_key, content, datagram, (link, from), now_ns);
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
            ControlKind::Offer => {
                peer.handle_ping(now_ns);
                self.has_direct_news |= peer.handle_offer(link, &datagram[body], now_ns)?;
                Ok(())
            }
        }
    }

    /// Opens a sealed datagram and records its arrival. Returns the peer and the payload's range.
    fn open(
        &mut self,
        (session, remote_link, link_seq): (u16, u8, u32),
        content: Content,
        datagram: &mut [u8],
        (link, from): (u8, SocketAddr),
        now_ns: u64,
    ) -> Option<(usize, std::ops::Range<usize>)> {
        let (header_bytes, eliciting) = match content {
            Content::Data => (DATA_HEADER_BYTES, true),
            Content::Control(kind) => (CONTROL_HEADER_BYTES, kind.is_eliciting()),
        };
        let is_secret = content == Content::Control(ControlKind::Offer);
        let Some(&number) = self.by_session.get(&session) else {
            self.counters.unknown_session += 1;
            self.introduction.hurry(now_ns);
            return None;
        };
        let peer = &mut self.peers[number];
        let keys = peer.session_mut(session)?;
        let opened = keys.open((remote_link, link_seq), header_bytes, is_secret, datagram);
        let (seq, payload) = match opened {
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
        let has_gap = keys.accept(remote_link, seq, now_ns);
        let is_next = peer.next.iter().any(|next| next.session.local == session);
        // If both sides dialled at once, both use the caller's session.
        let prefers_current = peer.has_newer(session) && self.is_caller(&self.peers[number].params);
        let peer = &mut self.peers[number];
        if is_next && !prefers_current {
            peer.confirm_next(session, self.config.instance, &mut self.pool);
            peer.next_dial_at_ns = now_ns + introduce::YIELD_NS;
            self.renew_session_index(number);
            self.settle_lanes(number, now_ns);
        }
        let peer = &mut self.peers[number];
        peer.arrival_session = session;
        peer.reorder.note_heard(remote_link, now_ns);
        peer.note_arrival(link, datagram.len(), eliciting, has_gap, now_ns);
        if peer.paths[usize::from(link)].destination != Some(from) {
            peer.note_sealed_from(link, remote_link, from, &self.links, now_ns);
        }
        Some((number, payload))
    }

    /// Announces to all peers, on all links, that this epoch ends. The endpoint must not be used
    /// after the queued datagrams are sent.
    pub fn say_goodbye(&mut self, now_ns: u64) {
        for peer in &mut self.peers {
            for link in 0..self.links.len() as u8 {
                peer.send_control(link, ControlKind::Goodbye, &[], shared!(self, now_ns));
            }
        }
    }

    /// Records the wire bytes of a link's datagrams that the kernel still holds.
    pub fn observe_unsent(&mut self, number: u8, kernel_bytes: u64, now_ns: u64) {
        let is_in_use = self.is_in_use(usize::from(number));
        if let Some(link) = &mut self.links[usize::from(number)] {
            link.observe_unsent(now_ns, kernel_bytes, is_in_use);
        }
    }

    /// Performs the actions that are due. Call it after all received datagrams were handled, or a
    /// late wake-up would look like a silent peer.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        for number in 0..self.peers.len() {
            let (frame_count, home) = (self.frames.len(), self.home_peer(number));
            self.peers[number].handle_timeout(shared!(self, now_ns));
            for frame in self.frames.iter().skip(frame_count) {
                self.stations.learn(frame.ethernet(), home, now_ns);
            }
            if self.peers[number].expire_sessions(now_ns) {
                self.renew_session_index(number);
            }
            if std::mem::take(&mut self.peers[number].wants_hellos) {
                self.introduction.hurry(now_ns);
            }
        }
        let mut has_new_peer = false;
        for peer in &mut self.peers {
            has_new_peer |= std::mem::take(&mut peer.is_newly_up);
        }
        if has_new_peer {
            self.forget_dead(now_ns);
        }
        self.introduce(now_ns);
    }

    /// Returns the time at which [`Endpoint::handle_timeout`] is due.
    pub fn poll_timeout(&self, now_ns: u64) -> u64 {
        let mut changed = self.peers.iter();
        if changed.any(|peer| peer.is_newly_up || peer.wants_hellos) {
            return now_ns;
        }
        let peer_ns = self
            .peers
            .iter()
            .filter_map(|peer| peer.poll_timeout(&self.links))
            .min();
        let introduction_ns = self.introduction_due_ns(now_ns);
        peer_ns.map_or(introduction_ns, |peer_ns| peer_ns.min(introduction_ns))
    }

    /// Returns the next batch for a link.
    pub fn poll_transmit(&self, number: u8) -> Option<&Batch> {
        self.links[usize::from(number)].as_ref()?.queue.front()
    }

    /// Removes the batch from [`Endpoint::poll_transmit`] after it was sent or dropped.
    pub fn transmitted(&mut self, number: u8) {
        if let Some(link) = &mut self.links[usize::from(number)] {
            link.queue.pop();
        }
    }

    /// Returns the next frame for the host. Return its buffer with [`Endpoint::give_buffer`].
    pub fn poll_frame(&mut self) -> Option<Frame> {
        let first = self.frames.pop_front()?;
        Some(if self.config.coalesces_udp {
            coalesce(first, &mut self.frames, &mut self.pool)
        } else {
            scatter(first, &mut self.frames, &mut self.pool)
        })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the counters of dropped datagrams and frames.
    pub fn counters(&self) -> EndpointCounters {
        self.counters
    }

    /// Returns the peers, for display.
    pub fn peers(&self) -> impl Iterator<Item = crate::view::PeerView<'_>> {
        self.peers.iter().map(crate::view::PeerView::new)
    }
}

#[cfg(test)]
mod distant;
#[cfg(test)]
mod tests;
