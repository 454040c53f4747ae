//! Congestion window of a path: delay and loss.
//!
//! ```text
//!   queue = r − R                  r  least round trip of the last round, R  minimum of the path
//!   target = max(R / 4, T)         T  1 ms: a busy host delays an acknowledgement by this much
//!
//!   slow start:           w ← 2 w  each round, until a loss or a queue above target
//!   queue ≤ target:       w ← w + u each round
//!   queue > target:       w ← w · (1 − ½ (queue − target) / queue), once a round
//!   loss:                 w ← w / 2, once a round
//!   two probes without an answer:  w ← 2 u
//! ```
//!
//! u is the length of a datagram. The least round trip of a round counts, because one delayed
//! acknowledgement is a busy host and not a queue.

/// Least target of the queueing delay, in ns. With 100 µs, a host with more threads than processors
/// kept the window at its least value, and a local stream at 150 MB/s (`docs/perf-log.md`,
/// 2026-11-25).
const TARGET_MIN_NS: u64 = 1_000_000;

/// Datagrams of the first window, as in RFC 6928.
const FIRST_DATAGRAMS: u64 = 10;

/// Datagrams of the least window: with one, a delayed acknowledgement would stop the sender.
const LEAST_DATAGRAMS: u64 = 2;

/// Largest window, in bytes. It bounds the sender's memory for packets in flight.
pub const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The window of one peer.
#[derive(Debug, Clone)]
pub struct Window {
    bytes: u64,
    unit_bytes: u64,
    is_slow_start: bool,
    /// Packets from this number on belong to the next round.
    round_end: u64,
    /// Least round trip of the running round, in ns.
    round_rtt_ns: u64,
    /// Packets sent before the last reduction do not reduce it again.
    reduced_until: u64,
    acked_bytes: u64,
}

impl Window {
    /// Creates the window of a path with datagrams of `unit_bytes`.
    pub fn new(unit_bytes: usize) -> Self {
        let unit_bytes = unit_bytes as u64;
        Self {
            bytes: FIRST_DATAGRAMS * unit_bytes,
            unit_bytes,
            is_slow_start: true,
            round_end: 0,
            round_rtt_ns: u64::MAX,
            reduced_until: 0,
            acked_bytes: 0,
        }
    }

    /// Returns the bytes that may be in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the acknowledgement of `acked_bytes` bytes up to packet `highest`. `next` is the
    /// number of the next packet, `is_limited` states whether the window limited the sender.
    pub fn on_ack(
        &mut self,
        acked_bytes: u64,
        highest: u64,
        next: u64,
        rtt: (u64, u64),
        is_limited: bool,
    ) {
        let (latest_ns, min_ns) = rtt;
        self.round_rtt_ns = self.round_rtt_ns.min(latest_ns);
        self.acked_bytes += acked_bytes;
        if self.is_slow_start && is_limited {
            self.grow(acked_bytes);
        }
        if highest < self.round_end {
            return;
        }
        let queue_ns = self.round_rtt_ns.saturating_sub(min_ns);
        let target_ns = (min_ns / 4).max(TARGET_MIN_NS);
        if queue_ns > target_ns {
            self.is_slow_start = false;
            let excess = (queue_ns - target_ns) as f64 / queue_ns as f64;
            self.reduce(1.0 - excess / 2.0, next);
        } else if !self.is_slow_start && is_limited {
            self.grow(self.unit_bytes);
        }
        (self.round_end, self.round_rtt_ns, self.acked_bytes) = (next, u64::MAX, 0);
    }

    fn grow(&mut self, bytes: u64) {
        self.bytes = (self.bytes + bytes).min(WINDOW_BYTES_MAX);
    }

    fn reduce(&mut self, factor: f64, next: u64) {
        let least = LEAST_DATAGRAMS * self.unit_bytes;
        self.bytes = ((self.bytes as f64 * factor) as u64).max(least);
        self.reduced_until = next;
    }

    /// Takes the loss of packet `lost`.
    pub fn on_loss(&mut self, lost: u64, next: u64) {
        if lost >= self.reduced_until {
            self.is_slow_start = false;
            self.reduce(0.5, next);
        }
    }

    /// Takes the second probe without an answer: nothing is known about the path any more.
    pub fn on_silence(&mut self, next: u64) {
        self.reduce(0.0, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of a window that limits the sender.
    fn round(window: &mut Window, number: &mut u64, rtt_us: u64) {
        let highest = *number;
        *number += window.bytes() / 1400;
        window.on_ack(
            window.bytes(),
            highest,
            *number,
            (rtt_us * 1000, 50_000),
            true,
        );
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
            (500..=1_400).contains(&last_us) && largest_us < 2_500,
            "{last_us} {largest_us}"
        );
    }

    #[test]
    fn window__several_losses_of_one_round__are_one_reduction() {
        let mut window = Window::new(1400);
        let before = window.bytes();
        window.on_loss(3, 10);
        window.on_loss(4, 12);
        assert_eq!(window.bytes(), before / 2);
        window.on_loss(10, 20);
        assert_eq!(window.bytes(), before / 4);
        window.on_silence(20);
        assert_eq!(window.bytes(), 2 * 1400);
    }
}
