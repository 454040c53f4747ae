//! One link as a way to one peer: where it leads, how long it takes, what it loses.

use core::net::SocketAddr;

use crate::bottleneck::Bottleneck;
use crate::ledger::Ledger;
use crate::liveness::{Liveness, State};
use crate::wire::LINKS_MAX;

/// How long a minimum round trip is believed.
const RTT_MIN_WINDOW_NS: u64 = 10_000_000_000;
/// What this host's own queue is known to within.
const WAIT_KNOWN_NS: u64 = 300_000;
/// A window over which loss is judged ends after this long and this many packets.
const LOSS_WINDOW_NS: u64 = 200_000_000;
const LOSS_WINDOW_PACKETS: u64 = 64;

/// Round-trip times, by the receiver's reports less the time it held them.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed_ns: u64,
    network_latest_ns: u64,
    min_ns: u64,
    min_at_ns: u64,
}

impl Rtt {
    /// Takes a sample of the whole round trip, from the moment of queueing.
    pub fn sample(&mut self, rtt_ns: u64) {
        self.smoothed_ns = if self.smoothed_ns == 0 {
            rtt_ns
        } else {
            self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8
        };
    }

    /// Takes a sample of the network's part, `wait_ns` of the whole having been expected to pass in
    /// this host. What was expected to wait long says little of the least round trip.
    pub fn sample_network(&mut self, now_ns: u64, rtt_ns: u64, wait_ns: u64) {
        self.network_latest_ns = rtt_ns;
        if wait_ns > WAIT_KNOWN_NS && self.min_ns != 0 {
            return;
        }
        let is_stale = now_ns.saturating_sub(self.min_at_ns) > RTT_MIN_WINDOW_NS;
        if self.min_ns == 0 || rtt_ns <= self.min_ns || is_stale {
            self.min_ns = rtt_ns;
            self.min_at_ns = now_ns;
        }
    }

    /// Exponentially smoothed, 1/8; 0 before the first sample.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The last sample without the wait in this host.
    pub fn network_latest_ns(&self) -> u64 {
        self.network_latest_ns
    }

    /// The least of the last ten seconds, without the wait in this host.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }
}

/// The share of packets lost, over windows long enough to mean something.
#[derive(Debug, Clone, Default)]
pub struct LossMeter {
    arrived: u64,
    lost: u64,
    since_ns: u64,
    share: f64,
}

impl LossMeter {
    /// Counts one packet. Gives the smoothed share when a window ends.
    pub fn count(&mut self, now_ns: u64, lost: bool) -> Option<f64> {
        if self.arrived + self.lost == 0 {
            self.since_ns = now_ns;
        }
        if lost {
            self.lost += 1;
        } else {
            self.arrived += 1;
        }
        let packets = self.arrived + self.lost;
        if packets < LOSS_WINDOW_PACKETS || now_ns.saturating_sub(self.since_ns) < LOSS_WINDOW_NS {
            return None;
        }
        let share = self.lost as f64 / packets as f64;
        self.share += (share - self.share) / 2.0;
        (self.arrived, self.lost) = (0, 0);
        Some(self.share)
    }

    /// The smoothed share.
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// Counters of one path, for `kumi link show`.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathCounters {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Bytes of those, with IP and UDP headers.
    pub tx_bytes: u64,
    /// Datagrams accepted.
    pub rx_packets: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Datagrams the peer reported missing.
    pub lost: u64,
    /// Units sent again on this path.
    pub repaired: u64,
    /// Copies of units that had arrived before.
    pub duplicate: u64,
    /// Units that came after they had been given up.
    pub late: u64,
    /// Changes to suspect, down or quarantined.
    pub failures: u64,
}

/// One link towards one peer.
#[derive(Debug, Default)]
pub struct Path {
    /// Where the peer was heard from: its link's number, its address, when.
    heard: Vec<(u8, SocketAddr, u64)>,
    /// Where this path sends to.
    pub to: Option<SocketAddr>,
    /// What is not reported on.
    pub ledger: Ledger,
    /// How long it takes.
    pub rtt: Rtt,
    /// Whether it works.
    pub liveness: Liveness,
    /// What it loses.
    pub loss: LossMeter,
    /// What it carries, where that is less than the link.
    pub bottleneck: Bottleneck,
    /// Whether an event said that it loses packets.
    pub lossy_told: bool,
    /// When the last datagram that the peer reports on was sent.
    pub eliciting_at_ns: u64,
    /// When the last ping was sent.
    pub pinged_at_ns: u64,
    /// When the newest acknowledged datagram had been sent.
    pub newest_acked_sent_ns: u64,
    /// Counters.
    pub counters: PathCounters,
}

impl Path {
    /// Whether data may be sent.
    pub fn is_usable(&self) -> bool {
        self.to.is_some() && self.liveness.state() == State::Up
    }

    /// Notes that an authentic datagram from the peer's link `remote` came from `address` on this
    /// link. True if that is news.
    pub fn note_heard(&mut self, remote: u8, address: SocketAddr, now_ns: u64) -> bool {
        if let Some(entry) = self.heard.iter_mut().find(|entry| entry.0 == remote) {
            // A working path is not moved by a copied hello from elsewhere.
            let is_working = self.to == Some(entry.1) && self.liveness.state() == State::Up;
            if entry.1 == address || !is_working {
                let is_news = entry.1 != address;
                (entry.1, entry.2) = (address, now_ns);
                return is_news;
            }
            return false;
        }
        if self.heard.len() < LINKS_MAX {
            self.heard.push((remote, address, now_ns));
            self.heard.sort_unstable_by_key(|entry| entry.0);
            return true;
        }
        false
    }

    /// Chooses where to send: links are paired in order, `rank` being this link's place among the
    /// local ones, so that on one shared switch each link finds a partner of its own.
    pub fn choose(&mut self, own_link: u8, rank: usize) {
        let same = self.heard.iter().find(|entry| entry.0 == own_link);
        let by_rank = || self.heard.get(rank % self.heard.len().max(1));
        self.to = same.or_else(by_rank).map(|entry| entry.1);
    }

    /// Forgets where it led, when its link goes.
    pub fn clear(&mut self) -> Vec<crate::retain::UnitRef> {
        let units = self.ledger.abandon();
        let ledger = std::mem::take(&mut self.ledger);
        *self = Self {
            ledger,
            ..Self::default()
        };
        units
    }
}
