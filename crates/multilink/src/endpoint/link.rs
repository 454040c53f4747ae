//! A local link: its queue towards the kernel, its rate, and how much waits on it.

use core::net::SocketAddr;

use crate::capacity::Capacity;
use crate::transmit::TransmitQueue;

/// What a datagram takes on the wire beyond its payload: Ethernet 14 + IPv6 40 + UDP 8 bytes.
pub const OVERHEAD_BYTES: usize = 62;

/// The time a link's backlog may take to drain before frames are left with the host's queue.
/// Long enough to bridge a late wake-up of this process, short enough not to be felt.
pub const BACKLOG_MAX_NS: u64 = 2_000_000;

/// What may wait on a link whose rate nobody has measured yet: a megabit NIC that claims ten
/// gigabits must not be given a fifth of a second of data to find that out.
const BACKLOG_UNMEASURED_BYTES: f64 = 256_000.0;

/// How soon to look again at a link of unknown rate that is full.
const UNMEASURED_LOOK_NS: f64 = 200_000.0;

/// The most any link in use may be behind, however idle another is: a link that is idle because it
/// is so much slower to arrive is worth this wait, one that the frames cannot use is not. Longer than
/// the longest hold, beyond which a slower link helps nobody.
pub const BACKLOG_WORST_NS: u64 = 30_000_000;

/// What the endpoint is told of a link when it is added.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Interface name, for people.
    pub name: String,
    /// Largest UDP payload that is not fragmented: MTU less IP and UDP headers.
    pub datagram_bytes_max: usize,
    /// Where hellos go: a multicast group on this link. None where peers are configured.
    pub hello_to: Option<SocketAddr>,
    /// What the NIC claims, in bits per second.
    pub rate_bps: u64,
    /// Whether the rate is the administrator's and not to be measured.
    pub is_rate_fixed: bool,
}

/// A local link.
#[derive(Debug)]
pub struct LocalLink {
    /// What it was added with.
    pub config: LinkConfig,
    /// Whether the NIC has its carrier.
    pub has_carrier: bool,
    /// Whether frames have been sent on it.
    pub is_used: bool,
    /// Datagrams for the kernel.
    pub queue: TransmitQueue,
    /// How fast it drains.
    pub capacity: Capacity,
    backlog_bytes: f64,
    backlog_at_ns: u64,
}

impl LocalLink {
    /// A link with its carrier.
    pub fn new(config: LinkConfig) -> Self {
        let capacity = Capacity::claimed(config.rate_bps);
        Self {
            config,
            has_carrier: true,
            is_used: false,
            queue: TransmitQueue::default(),
            capacity,
            backlog_bytes: 0.0,
            backlog_at_ns: 0,
        }
    }

    /// Starts over from the NIC's claim: what was set is no measurement.
    pub fn forget_rate(&mut self) {
        self.capacity = Capacity::claimed(self.config.rate_bps);
    }

    /// Notes bytes that were queued.
    pub fn note_queued(&mut self, now_ns: u64, wire_bytes: usize) {
        self.backlog_bytes = self.backlog_bytes(now_ns) + wire_bytes as f64;
        self.backlog_at_ns = now_ns;
        self.is_used = true;
        if !self.config.is_rate_fixed {
            self.capacity.note_given(now_ns, wire_bytes);
        }
    }

    /// Notes the bytes on the wire that the kernel still holds for this link. They show the link's rate only while a peer is
    /// reached over it: without a carrier or a known neighbour nothing leaves.
    pub fn observe_unsent(&mut self, now_ns: u64, kernel_bytes: u64, is_in_use: bool) {
        let queued_bytes = self.queue.queued_bytes();
        if !self.config.is_rate_fixed && self.has_carrier && is_in_use {
            self.capacity.look(now_ns, kernel_bytes, queued_bytes);
        }
        self.backlog_bytes = (kernel_bytes + queued_bytes as u64) as f64;
        self.backlog_at_ns = now_ns;
    }

    /// What waits here and in the kernel, in bytes.
    pub fn backlog_bytes(&self, now_ns: u64) -> f64 {
        let drained =
            now_ns.saturating_sub(self.backlog_at_ns) as f64 * self.capacity.bytes_per_ns();
        (self.backlog_bytes - drained).max(0.0)
    }

    /// How long what waits will take.
    pub fn backlog_ns(&self, now_ns: u64) -> f64 {
        self.backlog_bytes(now_ns) / self.capacity.bytes_per_ns()
    }

    /// How long until the link takes more; 0 if it does now.
    pub fn full_for_ns(&self, now_ns: u64) -> f64 {
        let limit_ns = BACKLOG_MAX_NS as f64;
        let waiting_ns = self.backlog_ns(now_ns);
        if waiting_ns > limit_ns {
            waiting_ns - limit_ns / 2.0
        } else if !self.capacity.is_measured() && self.backlog_bytes > BACKLOG_UNMEASURED_BYTES {
            UNMEASURED_LOOK_NS
        } else {
            0.0
        }
    }

    /// Whether a look at the kernel's queue would tell anything.
    pub fn is_worth_a_look(&self) -> bool {
        self.backlog_bytes > 0.0 || self.capacity.is_busy()
    }
}
