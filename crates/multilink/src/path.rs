//! A link towards one peer: its destination, delay and loss.

use core::net::SocketAddr;

use crate::bottleneck::Bottleneck;
use crate::ledger::Ledger;
use crate::liveness::{Liveness, State};
use crate::partner::{Partners, is_same_place};
use crate::pmtu::PathMtu;

/// Time for which a minimum round trip is valid, in ns.
const RTT_MIN_WINDOW_NS: u64 = 10_000_000_000;
/// Uncertainty of the time that packets wait in this host's own queue, in ns.
const WAIT_KNOWN_NS: u64 = 300_000;
/// A window of the loss measurement lasts at least this long, in ns, and has at least this many
/// packets.
const LOSS_WINDOW_NS: u64 = 200_000_000;
const LOSS_WINDOW_PACKETS: u64 = 64;
/// Time for which a partner that does not answer is tried, in ns: three pings of a path that is
/// down.
const TRY_NS: u64 = 150_000_000;

/// Round-trip times, from the receiver's reports less the time for which it held them.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed_ns: u64,
    network_latest_ns: u64,
    min_ns: u64,
    min_at_ns: u64,
    /// Least one-way time to the peer in the last ten seconds, in µs. It is the difference of two
    /// clocks, so it includes their constant offset.
    there_min_us: u32,
    there_min_at_ns: Option<u64>,
    /// Excess of the latest one-way sample over that minimum, in ns.
    there_queue_ns: u64,
}

impl Rtt {
    /// Takes a sample of the whole round trip, from the time of queueing.
    pub fn sample(&mut self, rtt_ns: u64) {
        self.smoothed_ns = if self.smoothed_ns == 0 {
            rtt_ns
        } else {
            self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8
        };
    }

    /// Takes a sample of the network's part of the round trip. `wait_ns` of the whole was expected
    /// to pass in this host. A sample with a long wait does not change the minimum, because the
    /// wait is only an estimate.
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

    /// Takes a sample of the one-way time to the peer. `there_us` is the arrival by the peer's
    /// clock less the departure by this host's clock, modulo 2³². `wait_ns` is as for
    /// [`Self::sample_network`].
    pub fn sample_there(&mut self, now_ns: u64, there_us: u32, wait_ns: u64) {
        // The signed difference is valid below half an hour.
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

    /// Returns the time that the last packet waited in queues on the way to the peer, in ns. It is
    /// the smaller of two excesses over a minimum: of the round trip and of the one-way time. A
    /// clock that was set or stopped therefore does not show as a queue.
    pub fn queue_ns(&self) -> u64 {
        let round_ns = self.network_latest_ns.saturating_sub(self.min_ns);
        round_ns.min(self.there_queue_ns)
    }

    /// Returns the round trip, exponentially smoothed by 1/8, in ns; 0 before the first sample.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Returns the latest round trip without the wait in this host, in ns.
    pub fn network_latest_ns(&self) -> u64 {
        self.network_latest_ns
    }

    /// Returns the least round trip of the last ten seconds without the wait in this host, in ns.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }
}

/// Share of packets lost, over windows that are long enough to be significant.
#[derive(Debug, Clone, Default)]
pub struct LossMeter {
    arrived: u64,
    lost: u64,
    since_ns: u64,
    share: f64,
}

impl LossMeter {
    /// Counts one packet. Returns the smoothed share at the end of a window.
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

    /// Returns the smoothed share (0–1).
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// Counters of one path, for `kumi link show`.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathCounters {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Bytes of the datagrams sent, with IP and UDP headers.
    pub tx_bytes: u64,
    /// Datagrams accepted.
    pub rx_packets: u64,
    /// Bytes of the datagrams accepted.
    pub rx_bytes: u64,
    /// Datagrams that the peer reported as missing.
    pub lost: u64,
    /// Units sent again on this path.
    pub repaired: u64,
    /// Copies of units that had arrived before.
    pub duplicate: u64,
    /// Units that arrived after they had been given up.
    pub late: u64,
    /// Changes from up to another state.
    pub failures: u64,
}

/// A link towards one peer.
#[derive(Debug, Default)]
pub struct Path {
    /// The peer's links that were heard on this link.
    pub partners: Partners,
    /// Address that the path sends to.
    pub to: Option<SocketAddr>,
    /// Time since which it sends there.
    to_since_ns: u64,
    /// Time at which a report last confirmed the delivery of a datagram that asks for a report.
    pub answered_at_ns: u64,
    /// Length of its datagrams.
    pub mtu: PathMtu,
    /// Datagrams without a report.
    pub ledger: Ledger,
    /// Round-trip times of the path.
    pub rtt: Rtt,
    /// State machine of the path.
    pub liveness: Liveness,
    /// Share of packets lost.
    pub loss: LossMeter,
    /// Limit by a bottleneck behind the local link.
    pub bottleneck: Bottleneck,
    /// True if an event has announced that the path loses packets, and no later one has withdrawn
    /// it.
    pub lossy_told: bool,
    /// Time at which the last datagram was sent that the peer reports.
    pub eliciting_at_ns: u64,
    /// Time at which the last ping was sent.
    pub pinged_at_ns: u64,
    /// Time at which the newest acknowledged datagram was sent.
    pub newest_acked_sent_ns: u64,
    /// Traffic and losses, for `kumi link show`.
    pub counters: PathCounters,
}

impl Path {
    /// Returns whether the path may carry data.
    pub fn is_usable(&self) -> bool {
        self.to.is_some() && self.liveness.state() == State::Up
    }

    /// Returns whether the path is in use or was a moment ago. Its partner is not changed in that
    /// state.
    pub fn is_settled(&self) -> bool {
        matches!(self.liveness.state(), State::Up | State::Suspect)
    }

    /// Records that an authentic datagram from the peer's link `remote` came from `address` on this
    /// link. Returns whether that is new.
    pub fn note_heard(&mut self, remote: u8, address: SocketAddr, now_ns: u64) -> bool {
        let in_use = self.to.filter(|_| self.liveness.state() == State::Up);
        self.partners.note_heard(remote, address, in_use, now_ns)
    }

    /// Chooses the destination unless the path works; see [`Partners::choose`].
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

    /// Sends to `address` from now on. The measurements of the way to another partner are
    /// discarded.
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

    /// Returns whether the partner has been tried long enough without an answer.
    pub fn is_unanswered(&self, now_ns: u64) -> bool {
        let tried_ns = TRY_NS.max(3 * self.rtt.min_ns());
        let since_ns = self.to_since_ns.max(self.answered_at_ns);
        !self.is_settled() && now_ns >= since_ns + tried_ns
    }

    /// Leaves a partner that does not answer for another one, if there is another.
    pub fn retry(&mut self, now_ns: u64, own: u8, rank: usize, taken: &[SocketAddr]) {
        let Some(failed) = self.to else { return };
        self.partners.note_failed(failed, now_ns);
        self.to_since_ns = now_ns;
        self.choose(now_ns, own, rank, taken);
    }

    /// Handles a sealed datagram from `address`, which is not the path's destination. A path that
    /// is down moves there unless that partner failed lately, because that link of the peer works.
    /// A path that is up moves only if it shares its partner with another path. Neither moves to
    /// the partner of another path.
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

    /// Forgets the destination when the local link is removed. Returns the units that were open.
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
    fn rtt__queue_on_the_return_path__does_not_count_as_forward_queueing_delay() {
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
    fn rtt__peer_clock_jumps__shows_no_queueing_delay() {
        let mut rtt = Rtt::default();
        for (at_ms, there_us) in [(1, 500), (5, 3_000_500), (9, 500), (13, 4_000_000_000)] {
            rtt.sample_network(at_ms * MS, MS, 0);
            rtt.sample_there(at_ms * MS, there_us, 0);
            assert_eq!(rtt.queue_ns(), 0, "at {at_ms} ms");
        }
    }
}
