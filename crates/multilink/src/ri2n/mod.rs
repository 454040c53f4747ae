//! RI2N/DRV, the protocol of the paper, as the baseline that reproduces its curves.
//!
//! Okamoto, Miura, Boku, Hanawa, Sato: "User-transparent Ethernet Multilink Bonding System for High
//! Performance and Fault-tolerance", IPSJ 2008; the sections cited here are that paper's. Its
//! parameters have their names and values of table 2: [`FT_HTHRESH`], [`FT_LTHRESH`],
//! [`SLOW_TOUT_NS`], [`HBSPAN_NS`], [`HBWEIGHT`], [`FAST_TOUT_NS`], [`MAXBUF`].
//!
//! ```text
//!  host ─▶ handle_frame ─▶ number, round robin ─▶ queue 0 ─▶ NIC        (§5.3)
//!                              per peer         └▶ queue 1 ─▶ NIC
//!  host ◀─ poll_frame ◀─ order per peer ◀─ count per endpoint ◀─ NICs   (§5.4, §5.5)
//! ```
//!
//! There is no security, no retransmission, and one MAC address for all links; so links must not
//! share a switch (§7.3). A NIC's carrier is not consulted: failures are found by what is received.
//!
//! # Where the paper is silent
//!
//! - **Broadcast and multicast** (ARP, which §5.6 relies on): frames take the links in turn, with
//!   numbers of their own, and are handed up as they come; the address they are for tells them from
//!   numbered ones. A link on which every known peer has failed is passed over. They do not make
//!   their sender a peer, or every ARP would have the whole cluster exchange heartbeats.
//! - **Counters** are cleared, all of a peer's, whenever they were judged.
//! - **Recovery is answered** with a heartbeat on the same endpoint, once. A peer that has flagged
//!   the link too would otherwise stay silent on it for up to `HBSPAN`, the link be flagged again
//!   after `SLOW_TOUT`, and the two never meet unless their timers happened to: figure 15's steady
//!   return could not be.
//! - **Early detection** waits for the NICs whose endpoint has not failed.
//! - **Late frames**, whose successors went up, go up at once.
//! - **All queues full**: the frame is given back, rather than dropped, so that the host's queue
//!   is the one that overflows. With all endpoints failed it is dropped (§5.3).

mod header;
mod node;
mod reorder;
#[cfg(test)]
mod tests;

pub use header::{ETHER_TYPE, HEADER_BYTES, LinkFrame, Mac};
pub use node::{EndpointState, FT_HTHRESH, FT_LTHRESH, HBSPAN_NS, HBWEIGHT, Node, SLOW_TOUT_NS};
pub use reorder::{FAST_TOUT_NS, MAXBUF, ReorderCounts};

use crate::frame::{Frame, FramePool, VNET_BYTES};
use header::{ETHERNET_BYTES, Kind, Repr, is_group, unwrap_into};
use node::{Choice, round_robin};
use std::collections::{BTreeMap, VecDeque};

/// Frames a link's queue takes before it counts as full: one `sendmmsg`. Behind it is the NIC's own
/// queue, which is the one that matters.
pub const QUEUE_FRAMES_MAX: usize = 32;

/// Peers that are remembered; frames of further ones are dropped. At 2 s a heartbeat on two links
/// that many cost 4 Mb/s.
pub const NODES_MAX: usize = 4096;

/// Links of a device: a bit each in a `u32`.
pub const LINKS_MAX: usize = 32;

/// What the device did with frames that went neither up nor out, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ri2nCounters {
    /// Received, and not a frame of this protocol.
    pub malformed: u64,
    /// Received, and for another device (promiscuous NICs, flooding switches) or from this one.
    pub not_ours: u64,
    /// Of or to a peer beyond [`NODES_MAX`].
    pub nodes_refused: u64,
    /// From the host, with every link to the peer failed.
    pub unroutable: u64,
    /// From the host, and too short for an Ethernet header.
    pub runts: u64,
}

/// Something worth telling (§7.2 wants the user told).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An endpoint failed.
    Failed {
        /// The peer.
        peer: Mac,
        /// The link.
        link: usize,
    },
    /// An endpoint works again.
    Recovered {
        /// The peer.
        peer: Mac,
        /// The link.
        link: usize,
    },
}

/// A device.
#[derive(Debug)]
pub struct Ri2n {
    mac: Mac,
    first_sequence: u32,
    nodes: BTreeMap<Mac, Node>,
    /// Last link and next number of broadcast and multicast frames.
    group: (usize, u32),
    queues: Vec<VecDeque<LinkFrame>>,
    up: VecDeque<Frame>,
    pool: FramePool,
    events: VecDeque<Event>,
    counters: Ri2nCounters,
    heartbeat_at_ns: u64,
    /// When the lists are looked at next; absent while all are empty.
    timer_at_ns: Option<u64>,
}

impl Ri2n {
    /// A device with address `mac` over `links` links. Numbers start at `first_sequence`, which is
    /// to be random: it lets peers notice a restart.
    pub fn new(mac: Mac, links: usize, first_sequence: u32, now_ns: u64) -> Self {
        assert!((1..=LINKS_MAX).contains(&links), "{links} links");
        Self {
            mac,
            first_sequence,
            nodes: BTreeMap::new(),
            group: (links - 1, first_sequence),
            queues: (0..links).map(|_| VecDeque::new()).collect(),
            up: VecDeque::new(),
            pool: FramePool::default(),
            events: VecDeque::new(),
            counters: Ri2nCounters::default(),
            heartbeat_at_ns: now_ns + HBSPAN_NS,
            timer_at_ns: None,
        }
    }

    /// A buffer for a frame of the host, of `bytes` bytes.
    pub fn take_buffer(&mut self, bytes: usize) -> Frame {
        self.pool.take(bytes)
    }

    /// Takes a frame's buffer back.
    pub fn give_buffer(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    /// The device has another address from now on.
    pub fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Takes a frame of the host.
    ///
    /// # Errors
    /// The frame itself, if it has to wait for room in a queue.
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

    /// Makes `mac` a peer, if it is none. False if there are too many.
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

    /// Takes what NIC `link` received, from the Ethernet header on (§5.4).
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
                    self.up.push_back(frame);
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
        let heard = &mut node.endpoints[link].rx;
        heard.0 += 1;
        heard.1 += (frame.ethernet().len() + HEADER_BYTES) as u64;
        let endpoints = &node.endpoints;
        let works = |link: usize| !endpoints[link].is_failed;
        let up = &mut self.up;
        node.reorder
            .arrive(sequence, link, frame, works, now_ns, up);
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

    /// Queues a heartbeat, even when the queue is full for data: without it a link could not
    /// recover. Not more than one a peer are ever waiting then.
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

    /// Does what is due: heartbeats every `HBSPAN` to all endpoints of all peers (§5.7), and the
    /// look at the lists every `FAST_TOUT` (§5.5).
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns >= self.heartbeat_at_ns {
            // Beats that were missed are not made up for.
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
                node.reorder.release_expired(now_ns, &mut self.up);
            }
            let waits = self.nodes.values().any(|node| node.reorder.waiting() > 0);
            self.timer_at_ns = waits.then(|| next_tick(now_ns));
        }
    }

    /// When [`Ri2n::handle_timeout`] is to be called next, at the latest.
    pub fn poll_timeout(&self) -> u64 {
        self.timer_at_ns.map_or(self.heartbeat_at_ns, |at_ns| {
            at_ns.min(self.heartbeat_at_ns)
        })
    }

    /// The next frame for the host.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.up.pop_front()
    }

    /// What is to be sent on `link`, in order; follow with [`Ri2n::transmitted`].
    pub fn poll_transmit(&self, link: usize) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.queues[link].iter().map(LinkFrame::as_slice)
    }

    /// The first `frames` of `link`'s queue are with the kernel, or refused by it.
    pub fn transmitted(&mut self, link: usize, frames: usize) {
        for frame in self.queues[link].drain(..frames) {
            self.pool.give(frame.into_frame());
        }
    }

    /// The next thing worth telling.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// All peers, by address.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// What became of frames that went nowhere.
    pub fn counters(&self) -> Ri2nCounters {
        self.counters
    }
}

fn is_full(queues: &[VecDeque<LinkFrame>]) -> impl Fn(usize) -> bool {
    move |link| queues[link].len() >= QUEUE_FRAMES_MAX
}

/// The timer of the lists runs every `FAST_TOUT` whatever arrives; it is only not heard while
/// nothing waits.
fn next_tick(now_ns: u64) -> u64 {
    (now_ns / FAST_TOUT_NS + 1) * FAST_TOUT_NS
}
