//! A local link: its queue towards the kernel, its rate, and its backlog.

use core::net::SocketAddr;

use crate::capacity::Capacity;
use crate::transmit::TransmitQueue;
use crate::wire::{Mac, QuestionKey};

/// Bytes of a datagram on the wire beyond its payload: Ethernet 14 + IPv6 40 + UDP 8.
pub const OVERHEAD_BYTES: usize = 62;

/// Time that a link's backlog may take to drain before frames are left in the host's queue, in ns.
/// It bridges a late wake-up of the daemon and is too short to be noticed.
pub const BACKLOG_MAX_NS: u64 = 2_000_000;

/// Largest backlog of a link whose rate has not been measured, in bytes. A NIC of 100 Mb/s that
/// claims 10 Gb/s would otherwise get 2 ms at its claim: 2.5 MB, a fifth of a second at its real
/// rate.
const BACKLOG_UNMEASURED_BYTES: f64 = 256_000.0;

/// Backlog that changes no split, in bytes: a few datagrams, 32 µs at 1 Gb/s.
const LITTLE_BYTES: f64 = 4_000.0;

/// Time until the next check of a full link of unknown rate, in ns.
const UNMEASURED_CHECK_NS: f64 = 200_000.0;

/// Largest backlog of any link in use, in ns, however idle another link is. A link may be idle
/// because its delay is longer, and it is worth this wait. A link that the frames cannot use is
/// not. The limit is above the longest hold, beyond which a slower link does not help.
pub const BACKLOG_WORST_NS: u64 = 30_000_000;

/// Properties of a link when it is added.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Interface name, for display.
    pub name: String,
    /// Largest UDP payload without fragmentation, in bytes: MTU less IP and UDP headers.
    pub datagram_bytes_max: usize,
    /// Destination of hellos: a multicast group on this link, or `None` where peers are configured.
    pub hello_to: Option<SocketAddr>,
    /// Rate that the NIC claims, in bits per second.
    pub rate_bps: u64,
    /// True if the administrator set the rate, so that it is not measured.
    pub is_rate_fixed: bool,
    /// Addresses of frames that the kernel carries on the link, without the daemon; `None` if it
    /// carries none.
    pub direct: Option<DirectLink>,
}

/// MAC addresses of the frames that the kernel carries on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectLink {
    /// Address of the NIC, to which peers send.
    pub address: Mac,
    /// Source address of the own frames.
    pub alias: Mac,
    /// Key of the own questions on the link.
    pub key: QuestionKey,
}

/// A local link.
#[derive(Debug)]
pub struct LocalLink {
    /// Properties when it was added.
    pub config: LinkConfig,
    /// True if the NIC has its carrier.
    pub has_carrier: bool,
    /// True if anything has been sent on it.
    pub is_used: bool,
    /// Datagrams for the kernel.
    pub queue: TransmitQueue,
    /// Estimate of its rate.
    pub capacity: Capacity,
    backlog_bytes: f64,
    backlog_at_ns: u64,
}

impl LocalLink {
    /// Returns a link that has its carrier.
    pub fn new(config: LinkConfig) -> Self {
        let capacity = Capacity::from_claim(config.rate_bps);
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

    /// Restarts the estimate from the NIC's claim, because the configured rate was not a
    /// measurement.
    pub fn forget_rate(&mut self) {
        self.capacity = Capacity::from_claim(self.config.rate_bps);
    }

    /// Records bytes that were queued, in wire bytes.
    pub fn note_queued(&mut self, now_ns: u64, wire_bytes: usize) {
        self.backlog_bytes = self.backlog_bytes(now_ns) + wire_bytes as f64;
        self.backlog_at_ns = now_ns;
        self.is_used = true;
        if !self.config.is_rate_fixed {
            self.capacity.note_queued(now_ns, wire_bytes);
        }
    }

    /// Records the wire bytes that the kernel still holds for this link. They show the link's rate
    /// only while a peer is reached over it: nothing leaves without a carrier or a known neighbour.
    pub fn observe_unsent(&mut self, now_ns: u64, kernel_bytes: u64, is_in_use: bool) {
        let queued_bytes = self.queue.queued_bytes();
        if !self.config.is_rate_fixed && self.has_carrier && is_in_use {
            self.capacity.observe(now_ns, kernel_bytes, queued_bytes);
        }
        self.backlog_bytes = (kernel_bytes + queued_bytes as u64) as f64;
        self.backlog_at_ns = now_ns;
    }

    /// Returns the estimated backlog in this queue and in the kernel, in bytes.
    pub fn backlog_bytes(&self, now_ns: u64) -> f64 {
        let drained =
            now_ns.saturating_sub(self.backlog_at_ns) as f64 * self.capacity.bytes_per_ns();
        (self.backlog_bytes - drained).max(0.0)
    }

    /// Returns the time that the backlog will take, in ns.
    pub fn backlog_ns(&self, now_ns: u64) -> f64 {
        self.backlog_bytes(now_ns) / self.capacity.bytes_per_ns()
    }

    /// Returns the time until the link accepts more frames, in ns; 0 if it does now.
    pub fn full_for_ns(&self, now_ns: u64) -> f64 {
        let limit_ns = BACKLOG_MAX_NS as f64;
        let waiting_ns = self.backlog_ns(now_ns);
        if waiting_ns > limit_ns {
            waiting_ns - limit_ns / 2.0
        } else if !self.capacity.is_measured() && self.backlog_bytes > BACKLOG_UNMEASURED_BYTES {
            UNMEASURED_CHECK_NS
        } else {
            0.0
        }
    }

    /// Returns whether the link may still be busy with more than a few datagrams. A split then
    /// needs to know what the kernel holds.
    pub fn may_be_busy(&self, now_ns: u64) -> bool {
        self.backlog_bytes(now_ns) > LITTLE_BYTES
    }

    /// Returns whether an observation of the kernel's queue would give information.
    pub fn is_worth_a_look(&self) -> bool {
        self.backlog_bytes > 0.0 || self.capacity.is_busy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link__backlog__is_read_before_a_split_unless_it_is_a_few_datagrams() {
        let mut link = LocalLink::new(LinkConfig {
            name: "eth1".to_owned(),
            datagram_bytes_max: 1452,
            hello_to: None,
            rate_bps: 1_000_000_000,
            is_rate_fixed: false,
            direct: None,
        });
        assert!(!link.may_be_busy(0) && !link.is_worth_a_look());
        link.note_queued(0, 252);
        assert!(!link.may_be_busy(0), "a message changes no split");
        assert!(link.is_worth_a_look(), "the busy period has to end");
        link.note_queued(0, 60_000);
        assert!(link.may_be_busy(0) && !link.may_be_busy(480_000));
        link.observe_unsent(480_000, 0, true);
        assert!(!link.is_worth_a_look());
    }
}
