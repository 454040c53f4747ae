//! RI2N/DRV, the protocol of the RI2N/DRV paper, as a baseline that reproduces the paper's curves.
//!
//! Okamoto, Miura, Boku, Hanawa, Sato: "User-transparent Ethernet Multilink Bonding System for High
//! Performance and Fault-tolerance", IPSJ 2008. Section, table and figure numbers in this module
//! are those of the paper. The parameters keep the names and values of table 2: [`FT_HTHRESH`],
//! [`FT_LTHRESH`], [`SLOW_TOUT_NS`], [`HBSPAN_NS`], [`HBWEIGHT`], [`FAST_TOUT_NS`], [`MAXBUF`].
//!
//! ```text
//! host ─▶ handle_frame ─▶ number, round robin ─▶ queue 0 ─▶ NIC        (§5.3)
//!                             per peer         └▶ queue 1 ─▶ NIC
//! host ◀─ poll_frame ◀─ order per peer ◀─ count per endpoint ◀─ NICs   (§5.4, §5.5)
//! ```
//!
//! An endpoint is a pair of a peer and a link (§4.4). There is no security and no retransmission.
//! All links use one MAC address, so they must not share a switch (§7.3). The carrier of a NIC is
//! ignored: failures are detected only from received frames.
//!
//! # Cases that the paper leaves open
//!
//! - **Broadcast and multicast** (ARP, on which §5.6 relies): frames use the links in turn and have
//!   their own sequence numbers. The receiver recognises them by the destination address and
//!   delivers them without reordering. A link is skipped if its endpoints to all known peers have
//!   failed. Such frames do not make their sender a peer. Otherwise every ARP request would make
//!   the whole cluster exchange heartbeats.
//! - **Counters**: each comparison clears all counters of the peer.
//! - **Recovery**: a heartbeat that recovers an endpoint is answered once, with a heartbeat on the
//!   same endpoint. Without the answer, a peer that has flagged the link too would send nothing on
//!   it for up to `HBSPAN`. This host would flag the link again after `SLOW_TOUT`. The two sides
//!   would then use the link together only if their timers happened to agree. Figure 15 shows a
//!   steady recovery.
//! - **Early loss detection** considers only the NICs whose endpoint has not failed.
//! - **Late frames**, whose successors have been delivered, are delivered at once.
//! - **All queues full**: the frame is returned to the caller and not dropped, so that the host's
//!   own queue overflows first. If all endpoints have failed, the frame is dropped (§5.3).

mod header;
mod node;
mod reorder;
#[cfg(test)]
mod tests;

pub use header::{ETHER_TYPE, HEADER_BYTES, LinkFrame, Mac};
pub use node::{EndpointState, FT_HTHRESH, FT_LTHRESH, HBSPAN_NS, HBWEIGHT, Node, SLOW_TOUT_NS};
pub use reorder::{FAST_TOUT_NS, MAXBUF, ReorderCounts};

use header::{ETHERNET_BYTES, Kind, Repr, is_group, unwrap_into};
use kumi_multilink::frame::{Frame, FramePool, VNET_BYTES};
use node::{Choice, round_robin};
use std::collections::{BTreeMap, VecDeque};

/// Frames in a link's queue at which the queue counts as full: one `sendmmsg` batch. Most of the
/// backlog is in the NIC's own queue behind it.
pub const QUEUE_FRAMES_MAX: usize = 32;

/// Peers that are remembered. Frames from and to further peers are dropped. With this many peers
/// and two links, heartbeats every 2 s take 4 Mb/s (64-byte frames, both directions together).
pub const NODES_MAX: usize = 4096;

/// Links of a device: one bit each in a `u32`.
pub const LINKS_MAX: usize = 32;

/// Frames that the device neither delivered to the host nor sent, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ri2nCounters {
    /// Received frames that are not of this protocol.
    pub malformed: u64,
    /// Received frames that are for another device (promiscuous NICs, flooding switches) or from
    /// this one.
    pub not_ours: u64,
    /// Frames from or to a peer beyond [`NODES_MAX`].
    pub nodes_refused: u64,
    /// Frames from the host that had no link: every link to the peer failed, or the peer was
    /// refused.
    pub unroutable: u64,
    /// Frames from the host that are too short for an Ethernet header.
    pub runts: u64,
}

/// Change of an endpoint's state. §7.2 asks that the user be notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An endpoint failed.
    Failed {
        /// Address of the peer's device.
        peer: Mac,
        /// Index of the link.
        link: usize,
    },
    /// A failed endpoint received a heartbeat.
    Recovered {
        /// Address of the peer's device.
        peer: Mac,
        /// Index of the link.
        link: usize,
    },
}

/// A device that uses RI2N/DRV over several links.
#[derive(Debug)]
pub struct Ri2n {
    mac: Mac,
    first_sequence: u32,
    nodes: BTreeMap<Mac, Node>,
    /// Last link used and next sequence number, for broadcast and multicast frames.
    group: (usize, u32),
    queues: Vec<VecDeque<LinkFrame>>,
    host_frames: VecDeque<Frame>,
    pool: FramePool,
    events: VecDeque<Event>,
    counters: Ri2nCounters,
    heartbeat_at_ns: u64,
    /// Time of the next check of the reorder lists; `None` while all lists are empty.
    timer_at_ns: Option<u64>,
}

impl Ri2n {
    /// Creates a device with address `mac` over `links` links. Sequence numbers start at
    /// `first_sequence`, which should be random so that peers notice a restart.
    pub fn new(mac: Mac, links: usize, first_sequence: u32, now_ns: u64) -> Self {
        assert!((1..=LINKS_MAX).contains(&links), "{links} links");
        Self {
            mac,
            first_sequence,
            nodes: BTreeMap::new(),
            group: (links - 1, first_sequence),
            queues: (0..links).map(|_| VecDeque::new()).collect(),
            host_frames: VecDeque::new(),
            pool: FramePool::default(),
            events: VecDeque::new(),
            counters: Ri2nCounters::default(),
            heartbeat_at_ns: now_ns + HBSPAN_NS,
            timer_at_ns: None,
        }
    }

    /// Returns a buffer for a frame of the host of `bytes` bytes.
    pub fn take_buffer(&mut self, bytes: usize) -> Frame {
        self.pool.take(bytes)
    }

    /// Returns a frame's buffer to the pool.
    pub fn give_buffer(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    /// Sets the address of the device.
    pub fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Queues a frame of the host for a link, or drops it if no link to its destination works.
    ///
    /// # Errors
    /// The frame itself, if all working links have full queues. The caller retries it later.
    pub fn handle_frame(&mut self, frame: Frame, now_ns: u64) -> Result<(), Frame> {
        if frame.ethernet().len() < ETHERNET_BYTES {
            self.counters.runts += 1;
            self.pool.give(frame);
            return Ok(());
        }
        let to: Mac = *frame.ethernet().first_chunk().expect("a whole header");
        let (choice, sequence) = if is_group(to) {
            self.route_to_group()
        } else {
            let bytes = frame.ethernet().len() + HEADER_BYTES;
            self.route_to_node(to, bytes as u64, now_ns)
        };
        match choice {
            Choice::Link(link) => {
                self.queues[link].push_back(LinkFrame::wrap(frame, self.mac, sequence));
                Ok(())
            }
            Choice::Full => Err(frame),
            Choice::Failed => {
                self.counters.unroutable += 1;
                self.pool.give(frame);
                Ok(())
            }
        }
    }

    fn route_to_node(&mut self, to: Mac, bytes: u64, now_ns: u64) -> (Choice, u32) {
        if !self.remember(to, now_ns) {
            return (Choice::Failed, 0);
        }
        let node = self.nodes.get_mut(&to).expect("just remembered");
        let choice = node.choose(is_full(&self.queues));
        let sequence = node.next_sequence;
        if let Choice::Link(link) = choice {
            node.next_sequence = sequence.wrapping_add(1);
            let (frames, total) = &mut node.endpoints[link].tx;
            *frames += 1;
            *total += bytes;
        }
        (choice, sequence)
    }

    fn route_to_group(&mut self) -> (Choice, u32) {
        let nodes = &self.nodes;
        let is_failed = |link: usize| {
            !nodes.is_empty() && nodes.values().all(|node| node.endpoints[link].is_failed)
        };
        let (last_used, next_sequence) = &mut self.group;
        let full = is_full(&self.queues);
        let choice = round_robin(self.queues.len(), last_used, is_failed, full);
        let sequence = *next_sequence;
        if let Choice::Link(_) = choice {
            *next_sequence = sequence.wrapping_add(1);
        }
        (choice, sequence)
    }

    /// Makes `mac` a peer if it is not yet one. Returns false if there are too many peers.
    fn remember(&mut self, mac: Mac, now_ns: u64) -> bool {
        if self.nodes.contains_key(&mac) {
            return true;
        }
        if self.nodes.len() >= NODES_MAX {
            self.counters.nodes_refused += 1;
            return false;
        }
        let node = Node::new(mac, self.queues.len(), self.first_sequence, now_ns);
        self.nodes.insert(mac, node);
        true
    }

    /// Processes a frame that NIC `link` received. `bytes` starts with the Ethernet header (§5.4).
    pub fn handle_datagram(&mut self, link: usize, bytes: &[u8], now_ns: u64) {
        let Some(repr) = Repr::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let is_for_us = repr.to == self.mac || is_group(repr.to);
        if !is_for_us || repr.from == self.mac || is_group(repr.from) {
            self.counters.not_ours += 1;
            return;
        }
        match repr.kind {
            Kind::Heartbeat => self.handle_heartbeat(repr.from, link, now_ns),
            Kind::Data { protocol, sequence } => {
                let payload_bytes = bytes.len() - ETHERNET_BYTES - HEADER_BYTES;
                let mut frame = self.pool.take(VNET_BYTES + ETHERNET_BYTES + payload_bytes);
                unwrap_into(bytes, protocol, &mut frame);
                if is_group(repr.to) {
                    self.host_frames.push_back(frame);
                    if self.nodes.contains_key(&repr.from) {
                        self.count(repr.from, link, 1, now_ns);
                    }
                } else if self.remember(repr.from, now_ns) {
                    self.handle_data(repr.from, link, (sequence, frame), now_ns);
                }
            }
        }
    }

    fn handle_data(&mut self, from: Mac, link: usize, data: (u32, Frame), now_ns: u64) {
        self.count(from, link, 1, now_ns);
        let node = self.nodes.get_mut(&from).expect("remembered");
        let (sequence, frame) = data;
        let rx = &mut node.endpoints[link].rx;
        rx.0 += 1;
        rx.1 += (frame.ethernet().len() + HEADER_BYTES) as u64;
        let endpoints = &node.endpoints;
        let is_working = |link: usize| !endpoints[link].is_failed;
        let out = &mut self.host_frames;
        node.reorder
            .arrive(sequence, link, frame, is_working, now_ns, out);
        if node.reorder.waiting() > 0 && self.timer_at_ns.is_none() {
            self.timer_at_ns = Some(next_tick(now_ns));
        }
    }

    fn handle_heartbeat(&mut self, from: Mac, link: usize, now_ns: u64) {
        if !self.remember(from, now_ns) {
            return;
        }
        let node = self.nodes.get_mut(&from).expect("remembered");
        node.endpoints[link].heartbeats.1 += 1;
        if node.recover(link, now_ns) {
            self.events.push_back(Event::Recovered { peer: from, link });
            self.send_heartbeat(from, link);
        } else {
            self.count(from, link, HBWEIGHT, now_ns);
        }
    }

    fn count(&mut self, peer: Mac, link: usize, weight: u32, now_ns: u64) {
        let node = self.nodes.get_mut(&peer).expect("remembered");
        for link in node.count(link, weight, now_ns) {
            self.events.push_back(Event::Failed { peer, link });
        }
    }

    /// Queues a heartbeat, even if the queue is full for data. Without heartbeats a link could not
    /// recover. The limit leaves room for one heartbeat per peer behind the data frames.
    fn send_heartbeat(&mut self, to: Mac, link: usize) {
        if self.queues[link].len() >= QUEUE_FRAMES_MAX + NODES_MAX {
            return;
        }
        let Some(node) = self.nodes.get_mut(&to) else {
            return;
        };
        node.endpoints[link].heartbeats.0 += 1;
        let buffer = self.pool.take(VNET_BYTES + ETHERNET_BYTES);
        self.queues[link].push_back(LinkFrame::heartbeat(buffer, self.mac, to));
    }

    /// Performs the periodic work that is due. It sends heartbeats to all endpoints of all peers
    /// every `HBSPAN` (§5.7) and checks the reorder lists every `FAST_TOUT` (§5.5).
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns >= self.heartbeat_at_ns {
            // Skips heartbeats that were missed.
            self.heartbeat_at_ns += HBSPAN_NS * ((now_ns - self.heartbeat_at_ns) / HBSPAN_NS + 1);
            let peers: Vec<Mac> = self.nodes.keys().copied().collect();
            for link in 0..self.queues.len() {
                peers
                    .iter()
                    .for_each(|peer| self.send_heartbeat(*peer, link));
            }
        }
        if self.timer_at_ns.is_some_and(|at_ns| now_ns >= at_ns) {
            for node in self.nodes.values_mut() {
                node.reorder.release_expired(now_ns, &mut self.host_frames);
            }
            let has_waiting = self.nodes.values().any(|node| node.reorder.waiting() > 0);
            self.timer_at_ns = has_waiting.then(|| next_tick(now_ns));
        }
    }

    /// Returns the latest time at which [`Ri2n::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> u64 {
        self.timer_at_ns.map_or(self.heartbeat_at_ns, |at_ns| {
            at_ns.min(self.heartbeat_at_ns)
        })
    }

    /// Returns the next frame for the host.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.host_frames.pop_front()
    }

    /// Returns the frames to send on `link`, in order. Call [`Ri2n::transmitted`] afterwards.
    pub fn poll_transmit(&self, link: usize) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.queues[link].iter().map(LinkFrame::as_slice)
    }

    /// Removes the first `frames` frames from `link`'s queue. The kernel has accepted or refused
    /// them.
    pub fn transmitted(&mut self, link: usize, frames: usize) {
        for frame in self.queues[link].drain(..frames) {
            self.pool.give(frame.into_frame());
        }
    }

    /// Returns the next state change of an endpoint.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns all peers, ordered by address.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Returns the counts of discarded frames.
    pub fn counters(&self) -> Ri2nCounters {
        self.counters
    }
}

fn is_full(queues: &[VecDeque<LinkFrame>]) -> impl Fn(usize) -> bool {
    move |link| queues[link].len() >= QUEUE_FRAMES_MAX
}

/// Returns the next tick of the reorder lists' timer: the next multiple of `FAST_TOUT`. The ticks
/// do not depend on arrivals; they are skipped while all lists are empty.
fn next_tick(now_ns: u64) -> u64 {
    (now_ns / FAST_TOUT_NS + 1) * FAST_TOUT_NS
}
