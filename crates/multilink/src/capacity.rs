//! How fast a link is, measured rather than configured.
//!
//! Each look at what the kernel still holds bounds the rate. As long as much is left, the link has
//! been busy since the last look that found little: it has carried what was given less what is left,
//! no more and no less. When little is left it has carried all the rest, at the latest by now. Both
//! bounds are loose by one batch, because the kernel gives a batch of segments back as a whole and a
//! NIC (or a token bucket) swallows some bytes at once; they close in as the busy period lasts. A
//! burst into an idle link therefore measures nothing (28 KB read 57 Mb/s on a 688 Mb/s link
//! elsewhere, and 10 Gb/s on one with a token bucket), and a busy link is known in milliseconds.
//!
//! An estimate that is too low corrects itself as well: the link's queue is the shorter, so it is
//! given more than its share, and what it carries over a longer time, rests included, is a lower
//! bound too. One that is far too low (the link had stalled) would keep the link from being given
//! anything: while it rests, the estimate goes back to what the link was measured at before.

/// What the kernel may have sent already of a batch it still counts, and what a link may swallow at
/// once: one batch.
const MARGIN_BYTES: f64 = 65_000.0;
/// A packet is counted for so long after it was sent: until a NIC tells of it.
const COMPLETION_NS: f64 = 150_000.0;
/// One packet.
const PACKET_BYTES: f64 = 1_600.0;
/// A busy period is long enough when it carried this many margins, or lasted this long.
const PERIOD_MARGINS: f64 = 20.0;
const PERIOD_NS: f64 = 0.5e9;
/// Bounds this close to each other, relative to their mean, measure.
const TIGHT: f64 = 0.15;
/// Bounds this close are a first measurement.
const ROUGH: f64 = 0.6;
/// Time over which an estimate follows what contradicts it: stalls of a few milliseconds are no
/// news of the link.
const FOLLOW_NS: f64 = 20_000_000.0;
/// Time in which a link that rests is thought to be again what it was.
const RECOVER_NS: f64 = 500_000_000.0;
/// Time over which it is learnt what a link is known for.
const KNOWN_NS: f64 = 500_000_000.0;
/// No link is slower.
const RATE_MIN_BPS: f64 = 100_000.0;

/// A time over which it is counted what the link was given.
#[derive(Debug, Clone, Copy, Default)]
struct Period {
    began_ns: u64,
    /// Bytes given since, with what waited then.
    given: f64,
}

/// The rate of one link, in bits per second of wire bytes as the sender counts them.
#[derive(Debug, Clone)]
pub struct Capacity {
    rate_bps: f64,
    measured: bool,
    /// What it was measured at lately, slowly smoothed; at first what it claims.
    known_bps: f64,
    /// In which the link always had something to send.
    busy: Option<Period>,
    /// In which it may have rested.
    span: Period,
    /// What was carried over the last such time, in bits per second.
    carried_bps: f64,
    looked_at_ns: u64,
}

impl Capacity {
    /// Starts from what the NIC claims.
    pub fn claimed(rate_bps: u64) -> Self {
        Self {
            rate_bps: rate_bps as f64,
            measured: false,
            known_bps: rate_bps as f64,
            busy: None,
            span: Period::default(),
            carried_bps: 0.0,
            looked_at_ns: 0,
        }
    }

    /// The estimate.
    pub fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    /// What was carried lately, over 20 ms at least, in bits per second.
    pub fn carried_bps(&self) -> f64 {
        self.carried_bps
    }

    /// Whether the estimate has been measured at all.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Whether a look is needed to know when the link has nothing left to send.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Bytes a nanosecond.
    pub fn bytes_per_ns(&self) -> f64 {
        self.rate_bps / 8e9
    }

    /// Takes the administrator's word for the rate.
    pub fn set(&mut self, rate_bps: u64) {
        self.rate_bps = rate_bps as f64;
        self.measured = true;
        self.busy = None;
    }

    /// Bytes on their way to the kernel.
    pub fn note_given(&mut self, now_ns: u64, bytes: usize) {
        let busy = self.busy.get_or_insert(Period {
            began_ns: now_ns,
            given: 0.0,
        });
        busy.given += bytes as f64;
        self.span.given += bytes as f64;
    }

    /// A look: the kernel holds `kernel_bytes`, and `queued_bytes` are on their way to it.
    pub fn look(&mut self, now_ns: u64, kernel_bytes: u64, queued_bytes: usize) {
        let untold = self.carried_bps / 8e9 * COMPLETION_NS + PACKET_BYTES;
        let is_busy = kernel_bytes as f64 > untold;
        let since_ns = now_ns.saturating_sub(self.looked_at_ns);
        self.looked_at_ns = now_ns;
        let left = (kernel_bytes + queued_bytes as u64) as f64;
        self.look_back(now_ns, left);
        let Some(Period { began_ns, given }) = self.busy else {
            return;
        };
        if kernel_bytes == 0 && self.rate_bps < self.known_bps {
            let weight = (since_ns as f64 / RECOVER_NS).min(1.0);
            self.rate_bps += (self.known_bps - self.rate_bps) * weight;
        }
        let elapsed_ns = now_ns.saturating_sub(began_ns).max(1) as f64;
        let carried = (given - left).max(0.0);
        // What is left is known the worse the more it is: buffers are counted, not bytes.
        let margin = MARGIN_BYTES + left / 8.0;
        let least_bps = (carried - margin).max(0.0) * 8e9 / elapsed_ns;
        let most_bps = if is_busy && given > MARGIN_BYTES && elapsed_ns > 2.0 * COMPLETION_NS {
            (carried + margin) * 8e9 / (elapsed_ns - COMPLETION_NS)
        } else {
            f64::INFINITY
        };
        self.follow((since_ns as f64).min(elapsed_ns), least_bps, most_bps);
        let is_long = carried > PERIOD_MARGINS * margin || elapsed_ns > PERIOD_NS;
        if !is_busy || is_long {
            self.busy = (left > 0.0).then_some(Period {
                began_ns: now_ns,
                given: left,
            });
        }
    }

    /// Moves the estimate to where it contradicts neither bound.
    fn follow(&mut self, since_ns: f64, least_bps: f64, most_bps: f64) {
        let mean_bps = (least_bps + most_bps) / 2.0;
        let spread = if least_bps > 0.0 {
            (most_bps - least_bps) / mean_bps
        } else {
            f64::INFINITY
        };
        let goal_bps = if spread < TIGHT {
            self.known_bps += (mean_bps - self.known_bps) * (since_ns / KNOWN_NS).min(1.0);
            mean_bps
        } else {
            self.rate_bps.min(most_bps).max(least_bps)
        };
        let is_first = !self.measured && spread < ROUGH;
        let weight = if is_first {
            1.0
        } else {
            (since_ns / FOLLOW_NS).min(1.0)
        };
        self.rate_bps += (goal_bps.max(RATE_MIN_BPS) - self.rate_bps) * weight;
        if is_first {
            self.measured = true;
            self.known_bps = self.rate_bps;
        }
    }

    /// Raises the estimate to what was carried over a longer time.
    fn look_back(&mut self, now_ns: u64, left: f64) {
        let elapsed_ns = now_ns.saturating_sub(self.span.began_ns) as f64;
        let carried = (self.span.given - left - MARGIN_BYTES).max(0.0);
        let is_long = carried > PERIOD_MARGINS * MARGIN_BYTES && elapsed_ns > FOLLOW_NS;
        if is_long || elapsed_ns > PERIOD_NS {
            let least_bps = carried * 8e9 / elapsed_ns;
            self.carried_bps = least_bps;
            self.rate_bps = self.rate_bps.max(least_bps);
            self.span = Period {
                began_ns: now_ns,
                given: left,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// A look every 200 µs.
    const STEP_NS: u64 = 200_000;

    /// A link that is given `chunk(estimate)` bytes a step. The kernel gives
    /// batches of 60 KB back as a whole; the first `swallows` bytes of a burst leave at once.
    struct Line {
        rate_bps: f64,
        swallows: f64,
        waiting: f64,
        tokens: f64,
    }

    impl Line {
        fn new(rate_bps: f64) -> Self {
            Self {
                rate_bps,
                swallows: 30_000.0,
                waiting: 0.0,
                tokens: 0.0,
            }
        }

        fn run(
            &mut self,
            capacity: &mut Capacity,
            from_ms: u64,
            to_ms: u64,
            chunk: impl Fn(u64, &Capacity) -> f64,
        ) {
            for now_ns in (from_ms * MS..to_ms * MS).step_by(STEP_NS as usize) {
                let step = self.rate_bps / 8e9 * STEP_NS as f64;
                self.tokens = (self.tokens + step).min(self.swallows.max(step));
                let leaves = self.tokens.min(self.waiting);
                self.waiting -= leaves;
                self.tokens -= leaves;
                let held = (self.waiting / 60_000.0).ceil() * 60_000.0;
                capacity.look(now_ns, held as u64, 0);
                let bytes = chunk(now_ns, capacity);
                if bytes > 0.0 {
                    self.waiting += bytes;
                    capacity.note_given(now_ns, bytes as usize);
                }
            }
        }
    }

    /// Somewhat more than the estimate allows, as a link is given whose queue is the shortest.
    fn saturate(_: u64, capacity: &Capacity) -> f64 {
        1.2 * capacity.bytes_per_ns() * STEP_NS as f64
    }

    #[test]
    fn capacity__link_kept_busy__is_measured() {
        for rate_bps in [10e6, 300e6, 1e9, 9e9] {
            let mut capacity = Capacity::claimed(10_000_000_000);
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
        let mut capacity = Capacity::claimed(1_000_000_000);
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
    fn capacity__bursts_that_drain_at_once__do_not_raise_it() {
        let mut capacity = Capacity::claimed(10_000_000_000);
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
    fn capacity__estimate_far_too_low__is_raised_while_the_link_rests() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        capacity.set(66_000_000);
        Line::new(1e9).run(&mut capacity, 0, 4000, saturate);
        assert!(
            (0.9e9..1.3e9).contains(&capacity.rate_bps()),
            "{}",
            capacity.rate_bps()
        );
    }

    #[test]
    fn capacity__estimate_ruined_by_a_stall__recovers_while_the_link_rests() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        let mut line = Line::new(1e9);
        line.run(&mut capacity, 0, 1500, |_, _| 25_300.0);
        line.rate_bps = 1e6;
        line.run(&mut capacity, 1500, 1700, saturate);
        assert!(capacity.rate_bps() < 2e8, "{}", capacity.rate_bps());
        line.rate_bps = 1e9;
        // Next to nothing, as a link is given that is thought to be slow.
        line.run(&mut capacity, 1700, 4000, |_, _| 100.0);
        assert!(capacity.rate_bps() > 7e8, "{}", capacity.rate_bps());
    }

    #[test]
    fn capacity__link_that_becomes_slower__is_found_out_soon() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        let mut line = Line::new(1e9);
        line.run(&mut capacity, 0, 500, |_, _| 25_300.0);
        line.rate_bps = 3e8;
        line.run(&mut capacity, 500, 700, saturate);
        assert!(capacity.rate_bps() < 4.5e8, "{}", capacity.rate_bps());
    }
}
