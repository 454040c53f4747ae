//! One link as a way to one peer: where it leads, how long it takes, what it loses.

use core::net::SocketAddr;

use crate::bottleneck::Bottleneck;
use crate::ledger::Ledger;
use crate::liveness::{Liveness, State};
use crate::partner::{Partners, is_same_place};
use crate::pmtu::PathMtu;

/// How long a minimum round trip is believed.
const RTT_MIN_WINDOW_NS: u64 = 10_000_000_000;
/// What this host's own queue is known to within.
const WAIT_KNOWN_NS: u64 = 300_000;
/// A window over which loss is judged ends after this long and this many packets.
const LOSS_WINDOW_NS: u64 = 200_000_000;
const LOSS_WINDOW_PACKETS: u64 = 64;
/// How long a partner that does not answer is tried: three probes of a path that is down.
const TRY_NS: u64 = 150_000_000;

/// Round-trip times, by the receiver's reports less the time it held them.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed_ns: u64,
    network_latest_ns: u64,
    min_ns: u64,
    min_at_ns: u64,
    /// The least time there of the last ten seconds, in µs, by two clocks that differ by a constant.
    there_min_us: u32,
    there_min_at_ns: Option<u64>,
    /// What the last sample took longer than that.
    there_queue_ns: u64,
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

    /// Takes a sample of the way there: `there_us` from leaving this host by its clock to the arrival
    /// by the peer's, modulo 2³². `wait_ns` is as for [`Self::sample_network`].
    pub fn sample_there(&mut self, now_ns: u64, there_us: u32, wait_ns: u64) {
        // Differences below half an hour have a sign.
        let above_us = there_us.wrapping_sub(self.there_min_us) as i32;
        let is_known = self
            .there_min_at_ns
            .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= RTT_MIN_WINDOW_NS);
        if !is_known || above_us <= 0 && wait_ns <= WAIT_KNOWN_NS {
            (self.there_min_us, self.there_min_at_ns) = (there_us, Some(now_ns));
            self.there_queue_ns = 0;
        } else {
            self.there_queue_ns = u64::from(above_us.max(0).unsigned_abs()) * 1000;
        }
    }

    /// What the last packet waited in queues on the way there, in ns: what it took longer than the
    /// least, there and in all. A clock that was set, or stood still, makes neither of both small.
    pub fn queue_ns(&self) -> u64 {
        let round_ns = self.network_latest_ns.saturating_sub(self.min_ns);
        round_ns.min(self.there_queue_ns)
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
    /// The peer's links that were heard on this one.
    pub partners: Partners,
    /// Where this path sends to.
    pub to: Option<SocketAddr>,
    /// Since when it sends there.
    to_since_ns: u64,
    /// When anything that asks for a report was last delivered.
    pub answered_at_ns: u64,
    /// How long its datagrams may be.
    pub mtu: PathMtu,
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

    /// Whether the path is in use or was a moment ago: its partner is not changed then.
    pub fn is_settled(&self) -> bool {
        matches!(self.liveness.state(), State::Up | State::Suspect)
    }

    /// Notes that an authentic datagram from the peer's link `remote` came from `address` on this
    /// link. Returns whether that is news.
    pub fn note_heard(&mut self, remote: u8, address: SocketAddr, now_ns: u64) -> bool {
        let in_use = self.to.filter(|_| self.liveness.state() == State::Up);
        self.partners.note_heard(remote, address, in_use, now_ns)
    }

    /// Chooses where to send, unless the path works: see [`Partners::choose`].
    pub fn choose(&mut self, now_ns: u64, own: u8, rank: usize, taken: &[SocketAddr]) {
        let answered_ns = self.answered_at_ns;
        let answers = answered_ns > self.to_since_ns && now_ns < answered_ns + TRY_NS;
        if (self.is_settled() || answers) && self.to.is_some() {
            return;
        }
        if let Some(address) = self.partners.choose(now_ns, own, rank, taken) {
            self.move_to(address, now_ns);
        }
    }

    /// Sends to `address` from now on. What was measured on the way to another partner says
    /// nothing of this one.
    pub fn move_to(&mut self, address: SocketAddr, now_ns: u64) {
        if self.to == Some(address) {
            return;
        }
        self.to = Some(address);
        self.to_since_ns = now_ns;
        self.pinged_at_ns = 0;
        self.mtu.doubt(true);
        self.rtt = Rtt::default();
        self.loss = LossMeter::default();
        self.bottleneck = Bottleneck::default();
    }

    /// Whether the partner has been tried long enough without an answer.
    pub fn is_unanswered(&self, now_ns: u64) -> bool {
        let tried_ns = TRY_NS.max(3 * self.rtt.min_ns());
        let since_ns = self.to_since_ns.max(self.answered_at_ns);
        !self.is_settled() && now_ns >= since_ns + tried_ns
    }

    /// Leaves a partner that does not answer for another, if there is one.
    pub fn retry(&mut self, now_ns: u64, own: u8, rank: usize, taken: &[SocketAddr]) {
        let Some(failed) = self.to else { return };
        self.partners.note_failed(failed, now_ns);
        self.to_since_ns = now_ns;
        self.choose(now_ns, own, rank, taken);
    }

    /// A sealed datagram came from `address`, where this path does not send to. A path that is down
    /// moves there: that link of the peer works. A path in use moves if it shares its partner with
    /// another path and this one is free.
    pub fn note_sealed_from(&mut self, address: SocketAddr, now_ns: u64, taken: &[SocketAddr]) {
        let is_taken = |place: SocketAddr| taken.iter().any(|t| is_same_place(*t, place));
        let moves = match self.liveness.state() {
            State::Down => !self.partners.has_failed_lately(address, now_ns),
            State::Up => self.to.is_some_and(is_taken),
            State::New | State::Suspect | State::Quarantined => false,
        };
        if moves && !is_taken(address) {
            self.move_to(address, now_ns);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn rtt__queue_on_the_way_back__is_none_on_the_way_there() {
        // The peer's clock is about to wrap.
        let there_us = |queue_ms: u32| (u32::MAX - 100).wrapping_add(queue_ms * 1000);
        let mut rtt = Rtt::default();
        let mut sample = |at_ms: u64, there_ms: u32, back_ms: u64| {
            let round_ns = (1 + u64::from(there_ms) + back_ms) * MS;
            rtt.sample_network(at_ms * MS, round_ns, 0);
            rtt.sample_there(at_ms * MS, there_us(there_ms), 0);
            rtt.queue_ns()
        };
        assert_eq!(sample(1, 0, 0), 0);
        assert_eq!(sample(5, 0, 40), 0);
        assert_eq!(sample(9, 20, 40), 20 * MS);
        assert_eq!(sample(13, 20, 0), 20 * MS);
        assert_eq!(sample(17, 0, 40), 0);
    }

    #[test]
    fn rtt__clock_that_jumps__makes_no_queue() {
        let mut rtt = Rtt::default();
        for (at_ms, there_us) in [(1, 500), (5, 3_000_500), (9, 500), (13, 4_000_000_000)] {
            rtt.sample_network(at_ms * MS, MS, 0);
            rtt.sample_there(at_ms * MS, there_us, 0);
            assert_eq!(rtt.queue_ns(), 0, "at {at_ms} ms");
        }
    }
}
