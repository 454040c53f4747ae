//! Estimate of a link's rate from the bytes that the kernel still holds (ADR 011).
//!
//! Each observation of the kernel's queue (SIOCOUTQ) bounds the rate from both sides:
//!
//! ```text
//! C     = max(G − L, 0)                          bytes that the link carried in the busy period
//! M     = MARGIN_BYTES + L / 8                   uncertainty of C, in bytes
//! lower = 8e9 · max(C − M, 0) / T                lower bound, in bit/s
//! upper = 8e9 · (C + M) / (T − COMPLETION_NS)    upper bound, in bit/s
//!
//! G  bytes given to the link since the busy period began, with those that waited then
//! K  bytes that the kernel holds
//! L  bytes left: K, and those that the daemon has not given to the kernel yet
//! T  time since the busy period began, in ns
//! ```
//!
//! While many bytes are left, the link has been busy since the period began, and has carried C, no
//! more and no less. The upper bound holds only in that state. It is infinite unless
//!
//! ```text
//! K > A · COMPLETION_NS / 8e9 + PACKET_BYTES,   G > MARGIN_BYTES   and   T > 2 · COMPLETION_NS
//!
//! A  rate carried over the last complete span, in bit/s (see below)
//! ```
//!
//! A link that is not busy has carried all the rest, at the latest by now. The lower bound
//! therefore always holds. The busy period ends when the link is not busy, when C >
//! `PERIOD_MARGINS` · M, or when T > `PERIOD_NS`. A new one begins with the bytes that are left.
//!
//! The estimate R, in bit/s, moves to where it contradicts neither bound, and to their mean once
//! they are close:
//!
//! ```text
//! mean   = (lower + upper) / 2
//! spread = (upper − lower) / mean                 infinite if lower = 0
//! goal   = mean                                   if spread < TIGHT
//!          max(min(R, upper), lower)              otherwise
//! R     += (max(goal, RATE_MIN_BPS) − R) · w
//! w      = 1                                      for the first measurement: spread < ROUGH
//!          min(t / FOLLOW_NS, 1)                  otherwise
//!
//! t  time since the previous observation, at most T, in ns
//! ```
//!
//! Both bounds are uncertain by one batch. The kernel returns a batch of segments as a whole, and a
//! NIC or a token bucket accepts some bytes at once. The bounds approach each other as the busy
//! period lasts. A burst into an idle link therefore measures nothing, and a busy link is known
//! within milliseconds. Rates taken from single bursts were wrong: 28 KB measured as 57 Mb/s on a
//! link of 688 Mb/s, and as 10 Gb/s on a link with a token bucket.
//!
//! # An estimate that is too low
//!
//! A link with too low an estimate gets more than its share, because its queue is the shorter one.
//! The rate over a longer span, which may include idle time, is another lower bound:
//!
//! ```text
//! A = 8e9 · max(G' − L − MARGIN_BYTES, 0) / T'
//! R = max(R, A)
//!
//! G', T'  as G and T, for the span
//! ```
//!
//! The span ends after `PERIOD_NS`, or after `FOLLOW_NS` once it carried `PERIOD_MARGINS` ·
//! `MARGIN_BYTES`.
//!
//! A link whose estimate is far too low, because it had stalled, would not be given enough to
//! measure. When an observation finds it idle (K = 0) and R < B, the estimate returns to B, the
//! rate that the link was last known for:
//!
//! ```text
//! R += (B − R) · min(t' / RECOVER_NS, 1)          while K = 0 and R < B
//! B += (mean − B) · min(t / KNOWN_NS, 1)          if spread < TIGHT
//! B  = R                                          at the first measurement
//!
//! t'  time since the previous observation, in ns
//! ```
//!
//! R and B begin at the rate that the NIC claims.

/// Bytes of one batch (`BATCH_BYTES_MAX`): sent bytes that the kernel may still count, and bytes
/// that a link may accept at once.
const MARGIN_BYTES: f64 = 65_000.0;
/// Time for which a sent packet may still be counted, in ns: until the NIC reports its completion.
const COMPLETION_NS: f64 = 150_000.0;
/// Bytes of one packet, rounded up.
const PACKET_BYTES: f64 = 1_600.0;
/// A busy period ends when the link carried this many margins: the spread is then about 2 M / C =
/// 0.1, below `TIGHT`. `PERIOD_NS` is its longest time, in ns, chosen by judgement.
const PERIOD_MARGINS: f64 = 20.0;
const PERIOD_NS: f64 = 0.5e9;
/// Spread of the bounds, relative to their mean, below which the mean counts as a measurement (ADR
/// 011).
const TIGHT: f64 = 0.15;
/// Spread of the bounds, relative to their mean, that suffices for a first measurement. Chosen by
/// judgement.
const ROUGH: f64 = 0.6;
/// Time constant with which the estimate follows a bound that it contradicts, in ns. A stall of a
/// few milliseconds does not show the link's rate (ADR 011).
const FOLLOW_NS: f64 = 20_000_000.0;
/// Time constant with which the estimate of an idle link returns to the known rate, in ns. Chosen
/// by judgement.
const RECOVER_NS: f64 = 500_000_000.0;
/// Time constant of the known rate, in ns. Chosen by judgement.
const KNOWN_NS: f64 = 500_000_000.0;
/// Lowest rate that the estimate moves to, in bits per second: no link is expected to be slower.
const RATE_MIN_BPS: f64 = 100_000.0;

/// Interval in which the bytes given to the link are counted.
#[derive(Debug, Clone, Copy, Default)]
struct Period {
    start_ns: u64,
    /// Bytes given since, with those that waited at the beginning.
    bytes: f64,
}

/// Estimated rate of one link, in bits per second of wire bytes as the sender counts them.
#[derive(Debug, Clone)]
pub struct Capacity {
    rate_bps: f64,
    measured: bool,
    /// Rate that the link was measured at lately, smoothed over `KNOWN_NS`; the claim at first.
    known_bps: f64,
    /// Interval in which the link always had bytes to send.
    busy: Option<Period>,
    /// Interval in which the link may have been idle.
    span: Period,
    /// Rate carried over the last complete span, in bits per second.
    carried_bps: f64,
    observed_at_ns: u64,
}

impl Capacity {
    /// Returns an estimate that begins with the NIC's claim, in bits per second.
    pub fn from_claim(rate_bps: u64) -> Self {
        Self {
            rate_bps: rate_bps as f64,
            measured: false,
            known_bps: rate_bps as f64,
            busy: None,
            span: Period::default(),
            carried_bps: 0.0,
            observed_at_ns: 0,
        }
    }

    /// Returns the estimate, in bits per second.
    pub fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    /// Returns the rate carried lately, over at least 20 ms, in bits per second.
    pub fn carried_bps(&self) -> f64 {
        self.carried_bps
    }

    /// Returns whether the estimate is based on a measurement or on the administrator's setting.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Returns whether a busy period is open. Only an observation can show that it has ended.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Returns the estimate in bytes per nanosecond.
    pub fn bytes_per_ns(&self) -> f64 {
        self.rate_bps / 8e9
    }

    /// Sets the rate that the administrator configured, in bits per second.
    pub fn set(&mut self, rate_bps: u64) {
        self.rate_bps = rate_bps as f64;
        self.measured = true;
        self.busy = None;
    }

    /// Records bytes that were queued for the kernel.
    pub fn note_queued(&mut self, now_ns: u64, bytes: usize) {
        let busy = self.busy.get_or_insert(Period {
            start_ns: now_ns,
            bytes: 0.0,
        });
        busy.bytes += bytes as f64;
        self.span.bytes += bytes as f64;
    }

    /// Updates the estimate. The kernel holds `kernel_bytes`, and `queued_bytes` wait in the
    /// daemon.
    pub fn observe(&mut self, now_ns: u64, kernel_bytes: u64, queued_bytes: usize) {
        let uncompleted_bytes = self.carried_bps / 8e9 * COMPLETION_NS + PACKET_BYTES;
        let is_busy = kernel_bytes as f64 > uncompleted_bytes;
        let interval_ns = now_ns.saturating_sub(self.observed_at_ns);
        self.observed_at_ns = now_ns;
        let pending_bytes = (kernel_bytes + queued_bytes as u64) as f64;
        self.apply_span(now_ns, pending_bytes);
        let Some(Period { start_ns, bytes }) = self.busy else {
            return;
        };
        if kernel_bytes == 0 && self.rate_bps < self.known_bps {
            let weight = (interval_ns as f64 / RECOVER_NS).min(1.0);
            self.rate_bps += (self.known_bps - self.rate_bps) * weight;
        }
        let elapsed_ns = now_ns.saturating_sub(start_ns).max(1) as f64;
        let carried_bytes = (bytes - pending_bytes).max(0.0);
        // The more bytes are left, the less exactly they are known: the kernel counts buffers, not
        // bytes.
        let margin = MARGIN_BYTES + pending_bytes / 8.0;
        let least_bps = (carried_bytes - margin).max(0.0) * 8e9 / elapsed_ns;
        let most_bps = if is_busy && bytes > MARGIN_BYTES && elapsed_ns > 2.0 * COMPLETION_NS {
            (carried_bytes + margin) * 8e9 / (elapsed_ns - COMPLETION_NS)
        } else {
            f64::INFINITY
        };
        self.follow((interval_ns as f64).min(elapsed_ns), least_bps, most_bps);
        let is_long = carried_bytes > PERIOD_MARGINS * margin || elapsed_ns > PERIOD_NS;
        if !is_busy || is_long {
            self.busy = (pending_bytes > 0.0).then_some(Period {
                start_ns: now_ns,
                bytes: pending_bytes,
            });
        }
    }

    /// Moves the estimate to where it contradicts neither bound.
    fn follow(&mut self, interval_ns: f64, least_bps: f64, most_bps: f64) {
        let mean_bps = (least_bps + most_bps) / 2.0;
        let spread = if least_bps > 0.0 {
            (most_bps - least_bps) / mean_bps
        } else {
            f64::INFINITY
        };
        let goal_bps = if spread < TIGHT {
            self.known_bps += (mean_bps - self.known_bps) * (interval_ns / KNOWN_NS).min(1.0);
            mean_bps
        } else {
            self.rate_bps.min(most_bps).max(least_bps)
        };
        let is_first = !self.measured && spread < ROUGH;
        let weight = if is_first {
            1.0
        } else {
            (interval_ns / FOLLOW_NS).min(1.0)
        };
        self.rate_bps += (goal_bps.max(RATE_MIN_BPS) - self.rate_bps) * weight;
        if is_first {
            self.measured = true;
            self.known_bps = self.rate_bps;
        }
    }

    /// Raises the estimate to the rate carried over a longer span.
    fn apply_span(&mut self, now_ns: u64, pending_bytes: f64) {
        let elapsed_ns = now_ns.saturating_sub(self.span.start_ns) as f64;
        let carried_bytes = (self.span.bytes - pending_bytes - MARGIN_BYTES).max(0.0);
        let is_long = carried_bytes > PERIOD_MARGINS * MARGIN_BYTES && elapsed_ns > FOLLOW_NS;
        if is_long || elapsed_ns > PERIOD_NS {
            let least_bps = carried_bytes * 8e9 / elapsed_ns;
            self.carried_bps = least_bps;
            self.rate_bps = self.rate_bps.max(least_bps);
            self.span = Period {
                start_ns: now_ns,
                bytes: pending_bytes,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// Interval between observations, in ns.
    const STEP_NS: u64 = 200_000;

    /// Link that is given `input(now_ns, capacity)` bytes a step. The kernel returns batches of 60
    /// KB as a whole. The first `burst_bytes` bytes of a burst leave at once.
    struct Line {
        rate_bps: f64,
        burst_bytes: f64,
        waiting_bytes: f64,
        tokens: f64,
    }

    impl Line {
        fn new(rate_bps: f64) -> Self {
            Self {
                rate_bps,
                burst_bytes: 30_000.0,
                waiting_bytes: 0.0,
                tokens: 0.0,
            }
        }

        fn run(
            &mut self,
            capacity: &mut Capacity,
            from_ms: u64,
            to_ms: u64,
            input: impl Fn(u64, &Capacity) -> f64,
        ) {
            for now_ns in (from_ms * MS..to_ms * MS).step_by(STEP_NS as usize) {
                let step = self.rate_bps / 8e9 * STEP_NS as f64;
                self.tokens = (self.tokens + step).min(self.burst_bytes.max(step));
                let output = self.tokens.min(self.waiting_bytes);
                self.waiting_bytes -= output;
                self.tokens -= output;
                let kernel_bytes = (self.waiting_bytes / 60_000.0).ceil() * 60_000.0;
                capacity.observe(now_ns, kernel_bytes as u64, 0);
                let bytes = input(now_ns, capacity);
                if bytes > 0.0 {
                    self.waiting_bytes += bytes;
                    capacity.note_queued(now_ns, bytes as usize);
                }
            }
        }
    }

    /// Slightly more than the estimate allows: the share of a link with the shortest queue.
    fn saturate(_: u64, capacity: &Capacity) -> f64 {
        1.2 * capacity.bytes_per_ns() * STEP_NS as f64
    }

    #[test]
    fn capacity__busy_link__is_measured_within_20_percent() {
        for rate_bps in [10e6, 300e6, 1e9, 9e9] {
            let mut capacity = Capacity::from_claim(10_000_000_000);
            let mut line = Line::new(rate_bps);
            let step = rate_bps / 8e9 * STEP_NS as f64;
            line.run(&mut capacity, 0, 3000, |now_ns, _| {
                // A standing queue of 2 ms, or of some batches.
                let first = (10.0 * step).max(300_000.0);
                if now_ns == 0 { first } else { step }
            });
            assert!(capacity.is_measured(), "{rate_bps}");
            let error = capacity.rate_bps() / rate_bps - 1.0;
            assert!(error.abs() < 0.2, "{rate_bps}: {}", capacity.rate_bps());
        }
    }

    #[test]
    fn capacity__bursts_into_an_idle_link__measure_nothing() {
        let mut capacity = Capacity::from_claim(1_000_000_000);
        Line::new(1e9).run(&mut capacity, 0, 400, |now_ns, _| {
            if now_ns % (2 * MS) == 0 {
                28_000.0
            } else {
                0.0
            }
        });
        assert!(!capacity.is_measured());
        assert_eq!(capacity.rate_bps(), 1e9);
    }

    #[test]
    fn capacity__bursts_that_drain_at_once__do_not_raise_the_estimate() {
        let mut capacity = Capacity::from_claim(10_000_000_000);
        let mut line = Line::new(3e8);
        line.run(&mut capacity, 0, 400, |_, _| 8_000.0); // above 300 Mb/s
        assert!(capacity.is_measured());
        line.run(&mut capacity, 1000, 2000, |now_ns, _| {
            if now_ns % (2 * MS) == 0 {
                28_000.0
            } else {
                0.0
            }
        });
        assert!(capacity.rate_bps() < 4.2e8, "{}", capacity.rate_bps());
    }

    #[test]
    fn capacity__estimate_far_too_low__rises_to_the_link_rate() {
        let mut capacity = Capacity::from_claim(10_000_000_000);
        capacity.set(66_000_000);
        Line::new(1e9).run(&mut capacity, 0, 4000, saturate);
        assert!(
            (0.9e9..1.3e9).contains(&capacity.rate_bps()),
            "{}",
            capacity.rate_bps()
        );
    }

    #[test]
    fn capacity__estimate_lowered_by_a_stall__recovers_under_light_load() {
        let mut capacity = Capacity::from_claim(10_000_000_000);
        let mut line = Line::new(1e9);
        line.run(&mut capacity, 0, 1500, |_, _| 25_300.0);
        line.rate_bps = 1e6;
        line.run(&mut capacity, 1500, 1700, saturate);
        assert!(capacity.rate_bps() < 2e8, "{}", capacity.rate_bps());
        line.rate_bps = 1e9;
        // Almost nothing: the share of a link that is thought to be slow.
        line.run(&mut capacity, 1700, 4000, |_, _| 100.0);
        assert!(capacity.rate_bps() > 7e8, "{}", capacity.rate_bps());
    }

    #[test]
    fn capacity__link_slows_down__lowers_the_estimate_soon() {
        let mut capacity = Capacity::from_claim(10_000_000_000);
        let mut line = Line::new(1e9);
        line.run(&mut capacity, 0, 500, |_, _| 25_300.0);
        line.rate_bps = 3e8;
        line.run(&mut capacity, 500, 700, saturate);
        assert!(capacity.rate_bps() < 4.5e8, "{}", capacity.rate_bps());
    }
}
