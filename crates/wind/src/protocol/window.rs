//! Congestion window of a path: delay, and losses that come with it.
//!
//! ```text
//!   q = r − R                       r  least round trip of a round, R  minimum of the path
//!   T = max(R / 4, 1 ms) · (1 + 4 / √(w / u))       target: a busy host delays by 1 ms
//!   F = max(R / 4, 25 µs)           the link is full
//!
//!   slow start:        w ← w + acknowledged, up to q > T within the round
//!   q ≤ F:             w ← w + u · max(1, c / 16)   each round; c  rounds since a reduction
//!   F < q ≤ T:         w ← w + u                    each round
//!   q > T:             w ← w · (1 − ½ (q − T) / q)  once a round; w · (R + T) / r in slow start
//!   congestive loss:   w ← w · max(R / r, ½)        once a round
//!   two probes without an answer:   w ← u, slow start up to w / 2
//! ```
//!
//! u is the length of a datagram. The least round trip of a round counts, because one delayed
//! acknowledgement is a busy host and not a queue. A loss is congestive if its neighbours found the
//! link full, or if more is lost than the link itself loses (`loss_floor.rs`). A smaller window
//! would not avoid the others.

use crate::protocol::loss_floor::{Finding, LossFloor};
use crate::protocol::rtt::Rtt;

/// Least target of the queueing delay, in ns. With 100 µs, a host with more threads than processors
/// kept the window at its least value, and a local stream at 150 MB/s (`docs/perf-log.md`,
/// 2026-11-25).
const TARGET_MIN_NS: u64 = 1_000_000;

/// Least delay that shows a queue, in ns.
const QUEUE_MIN_NS: u64 = 25_000;

/// Targets beyond the first that a window of one datagram has. Streams whose minimums differ by
/// their queue share the link with it, as in Swift (SIGCOMM 2020, 3.1).
const SMALL_WINDOW_TARGETS: f64 = 4.0;

/// Rounds without congestion after which an empty link is filled quickly.
const CALM_ROUNDS: u32 = 16;

/// Datagrams of the first window. Ten, as in RFC 6928, overflow a short port when many peers begin
/// together.
const FIRST_DATAGRAMS: u64 = 4;

/// Datagrams of the least window. Many senders may share a short port.
const LEAST_DATAGRAMS: u64 = 1;

/// Largest window, in bytes. It bounds the sender's memory for packets in flight.
pub const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The window of one peer.
#[derive(Debug, Clone)]
pub struct Window {
    bytes: u64,
    unit_bytes: u64,
    /// Slow start ends at this window.
    threshold_bytes: u64,
    round: Round,
    /// Rounds since the last reduction.
    calm_rounds: u32,
    /// Packets sent before the last reduction do not reduce it again.
    reduced_until: u64,
    losses: LossFloor,
    /// Period of the minimum in which the queue was emptied.
    probed: Option<u64>,
}

/// Sums of the running round.
#[derive(Debug, Clone)]
struct Round {
    /// Packets from this number on belong to the next round.
    end: u64,
    /// Least round trip, in ns.
    rtt_ns: u64,
    acked_bytes: u64,
    lost_bytes: u64,
}

impl Round {
    fn new(end: u64) -> Self {
        Self {
            end,
            rtt_ns: u64::MAX,
            acked_bytes: 0,
            lost_bytes: 0,
        }
    }
}

impl Window {
    /// Creates the window of a path with datagrams of `unit_bytes`.
    pub fn new(unit_bytes: usize) -> Self {
        let unit_bytes = unit_bytes as u64;
        Self {
            bytes: FIRST_DATAGRAMS * unit_bytes,
            unit_bytes,
            threshold_bytes: u64::MAX,
            round: Round::new(0),
            calm_rounds: 0,
            reduced_until: 0,
            losses: LossFloor::default(),
            probed: None,
        }
    }

    /// Returns the bytes that may be in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the length of a datagram.
    pub fn set_unit(&mut self, unit_bytes: u64) {
        self.unit_bytes = unit_bytes;
        self.bytes = self.bytes.max(LEAST_DATAGRAMS * unit_bytes);
    }

    /// Takes the acknowledgement of `acked_bytes` bytes up to packet `highest`. `next` is the
    /// number of the next packet, `is_limited` states whether the window limited the sender.
    pub fn on_ack(
        &mut self,
        acked_bytes: u64,
        highest: u64,
        next: u64,
        rtt: &Rtt,
        is_limited: bool,
    ) {
        let sample_ns = rtt.sample_ns().unwrap_or(u64::MAX);
        self.round.rtt_ns = self.round.rtt_ns.min(sample_ns);
        self.round.acked_bytes += acked_bytes;
        if self.is_slow_start() && is_limited {
            let queue_ns = self.round.rtt_ns.saturating_sub(rtt.min_ns());
            if queue_ns <= self.target_ns(rtt) {
                self.grow(acked_bytes);
            }
        }
        // A round without a sample says nothing about the queue, so it goes on.
        if highest >= self.round.end && self.round.rtt_ns < u64::MAX {
            self.end_round(next, rtt, is_limited);
        }
    }

    fn end_round(&mut self, next: u64, rtt: &Rtt, is_limited: bool) {
        let queue_ns = self.round.rtt_ns.saturating_sub(rtt.min_ns());
        let target_ns = self.target_ns(rtt);
        self.calm_rounds = self.calm_rounds.saturating_add(1);
        if queue_ns > target_ns {
            // The window of slow start was only tried, so it is not approached but left.
            let factor = match self.is_slow_start() {
                true => (rtt.min_ns() + target_ns) as f64 / (rtt.min_ns() + queue_ns) as f64,
                false => 1.0 - (queue_ns - target_ns) as f64 / queue_ns as f64 / 2.0,
            };
            self.reduce(factor, next);
        } else if !self.is_slow_start() && is_limited {
            let is_empty = queue_ns <= full_ns(rtt);
            let datagrams = if is_empty {
                self.calm_rounds / CALM_ROUNDS
            } else {
                0
            };
            self.grow(self.unit_bytes * u64::from(datagrams.max(1)));
        }
        let (acked_bytes, lost_bytes) = (self.round.acked_bytes, self.round.lost_bytes);
        self.round = Round::new(next);
        match self
            .losses
            .end_round(acked_bytes, lost_bytes, self.unit_bytes)
        {
            Some(Finding::Excess(share)) => self.reduce(1.0 - share, next),
            Some(Finding::Probe) => self.restart(0.5, self.bytes, next),
            None => self.probe_minimum(next, rtt),
        }
    }

    /// Empties the queue once in a period, if it has hidden the minimum of the path.
    fn probe_minimum(&mut self, next: u64, rtt: &Rtt) {
        let due = rtt.is_min_due(full_ns(rtt) / 2);
        if due.is_some() && due != self.probed {
            self.probed = due;
            let factor = 0.75 * rtt.min_ns() as f64 / rtt.smoothed_ns() as f64;
            self.restart(factor, self.bytes, next);
        }
    }

    fn target_ns(&self, rtt: &Rtt) -> u64 {
        let least_ns = (rtt.min_ns() / 4).max(TARGET_MIN_NS);
        let datagrams = self.bytes as f64 / self.unit_bytes as f64;
        (least_ns as f64 * (1.0 + SMALL_WINDOW_TARGETS / datagrams.sqrt())) as u64
    }

    fn is_slow_start(&self) -> bool {
        self.bytes < self.threshold_bytes
    }

    fn grow(&mut self, bytes: u64) {
        self.bytes = (self.bytes + bytes).min(WINDOW_BYTES_MAX);
    }

    fn reduce(&mut self, factor: f64, next: u64) {
        let least = LEAST_DATAGRAMS * self.unit_bytes;
        self.bytes = ((self.bytes as f64 * factor) as u64).max(least);
        self.threshold_bytes = self.bytes;
        self.calm_rounds = 0;
        self.reduced_until = next;
    }

    /// Takes the loss of `lost_bytes` bytes up to packet `highest`.
    pub fn on_loss(&mut self, lost_bytes: u64, highest: u64, next: u64, rtt: &Rtt) {
        self.round.lost_bytes += lost_bytes;
        if highest < self.reduced_until {
            return;
        }
        let found_ns = rtt.latest_ns().min(rtt.smoothed_ns());
        let is_full = found_ns > rtt.min_ns() + full_ns(rtt);
        let emptied = rtt.min_ns() as f64 / found_ns as f64;
        let round_bytes = (self.round.acked_bytes + self.round.lost_bytes).max(self.bytes);
        let share = self.round.lost_bytes as f64 / round_bytes as f64;
        let is_much = share > self.losses.share_max();
        if is_full || is_much {
            self.reduce(if is_much { 0.5 } else { emptied.max(0.5) }, next);
        }
    }

    /// Takes the second probe without an answer: nothing is known about the path any more.
    pub fn on_silence(&mut self, next: u64) {
        self.restart(0.0, self.bytes / 2, next);
    }

    /// Reduces the window, and lets it double each round up to `threshold_bytes`.
    fn restart(&mut self, factor: f64, threshold_bytes: u64, next: u64) {
        self.reduce(factor, next);
        self.threshold_bytes = threshold_bytes;
    }
}

/// Returns the delay that shows a queue, in ns.
fn full_ns(rtt: &Rtt) -> u64 {
    (rtt.min_ns() / 4).max(QUEUE_MIN_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of 50 µs whose last samples were `rtt_us`.
    fn path(rtt_us: u64) -> Rtt {
        let mut rtt = Rtt::new(1);
        rtt.sample(50_000, 0, 0);
        for _ in 0..50 {
            rtt.sample(rtt_us * 1000, 0, 0);
        }
        rtt
    }

    /// One round of a window that limits the sender.
    fn round(window: &mut Window, number: &mut u64, rtt_us: u64) {
        let highest = *number;
        *number += window.bytes() / 1400;
        window.on_ack(window.bytes(), highest, *number, &path(rtt_us), true);
    }

    #[test]
    fn window__empty_path__doubles_each_round_up_to_the_limit() {
        let (mut window, mut number) = (Window::new(1400), 0);
        for _ in 0..3 {
            let before = window.bytes();
            round(&mut window, &mut number, 50);
            assert_eq!(window.bytes(), 2 * before);
        }
        for _ in 0..40 {
            round(&mut window, &mut number, 50);
        }
        assert_eq!(window.bytes(), WINDOW_BYTES_MAX);
    }

    #[test]
    fn window__growing_queue__settles_where_the_delay_is_near_the_target() {
        // A link of 1 Gb/s with 50 µs: 6 250 bytes fill it, and each further byte waits.
        let (mut window, mut number) = (Window::new(1400), 0);
        let delay_us = |bytes: u64| 50 + bytes.saturating_sub(6_250) * 8 / 1000;
        let mut largest_us = 0;
        for at in 0..300 {
            let rtt_us = delay_us(window.bytes());
            round(&mut window, &mut number, rtt_us);
            if at > 20 {
                largest_us = largest_us.max(rtt_us);
            }
        }
        let last_us = delay_us(window.bytes());
        assert!(
            (500..=1_700).contains(&last_us) && largest_us < 2_500,
            "{last_us} {largest_us}"
        );
    }

    #[test]
    fn window__several_losses_of_one_full_round__are_one_reduction() {
        let mut window = Window::new(1400);
        let before = window.bytes();
        window.on_loss(1400, 3, 10, &path(200));
        window.on_loss(1400, 4, 12, &path(200));
        assert_eq!(window.bytes(), before / 2);
        window.on_loss(1400, 10, 20, &path(200));
        assert_eq!(window.bytes(), before / 4);
        window.on_silence(20);
        assert_eq!(window.bytes(), 1400);
    }

    #[test]
    fn window__loss_without_a_queue__stays_unless_much_is_lost() {
        let (mut window, mut number) = (Window::new(1400), 0);
        (0..4).for_each(|_| round(&mut window, &mut number, 50));
        let before = window.bytes();
        window.on_loss(1400, 3, 10, &path(60));
        assert_eq!(window.bytes(), before);
        window.on_loss(10 * 1400, 9, 10, &path(60));
        assert_eq!(window.bytes(), before / 2);
    }
}
