//! How fast a link is, measured rather than configured.
//!
//! What the receiver reports as arrived, over a while in which this host always had something
//! waiting for the link, arrived at the link's own rate. Whether something always waited is known
//! from the kernel: the queue is looked at before every send and in every turn of the loop, and a
//! look that finds it empty says that the link has rested. A burst into an idle link measures
//! nothing (28 KB read 57 Mb/s on a 688 Mb/s link elsewhere).
//!
//! Both errors correct themselves. An estimate that is too high gives the link more than it can
//! carry, so it is never at rest and is measured. One that is too low leaves it resting while
//! others queue, and then it is raised.

/// Least time a sample spans: reports come every 4 ms, so one more or less is a tenth.
const SAMPLE_NS: u64 = 40_000_000;
/// As [`SAMPLE_NS`], for the first sample: a rough rate now beats a claim.
const FIRST_SAMPLE_NS: u64 = 6_000_000;
/// Fewest bytes of a sample: sixteen full frames.
const SAMPLE_BYTES: u64 = 24_000;
/// Weight of a sample of a busy link.
const WEIGHT: f64 = 0.25;
/// What a link that rests while others queue is raised by, a sample.
const ENCOURAGEMENT: f64 = 1.1;

/// Least time between two such raises from bursts.
const RAISE_EVERY_NS: u64 = 10_000_000;

/// The rate of one link, in bits per second of wire bytes as the sender counts them.
#[derive(Debug, Clone)]
pub struct Capacity {
    rate_bps: f64,
    claimed_bps: f64,
    measured: bool,
    rested_at_ns: u64,
    raised_at_ns: u64,
    arrived_bytes: u64,
    /// When the running sample began, and what had arrived then.
    sample: Option<(u64, u64)>,
}

impl Capacity {
    /// Starts from what the NIC claims.
    pub fn claimed(rate_bps: u64) -> Self {
        Self {
            rate_bps: rate_bps as f64,
            claimed_bps: rate_bps as f64,
            measured: false,
            rested_at_ns: 0,
            raised_at_ns: 0,
            arrived_bytes: 0,
            sample: None,
        }
    }

    /// The estimate.
    pub fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    /// Whether the estimate has been measured at all.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Bytes a nanosecond.
    pub fn bytes_per_ns(&self) -> f64 {
        self.rate_bps / 8e9
    }

    /// Takes the administrator's word for the rate.
    pub fn set(&mut self, rate_bps: u64) {
        self.rate_bps = rate_bps as f64;
        self.measured = true;
        self.sample = None;
    }

    /// The queue was found empty.
    pub fn note_rest(&mut self, now_ns: u64) {
        self.rested_at_ns = now_ns;
    }

    /// The queue was found empty sooner than the estimate said: it is too low. This is how bursts,
    /// which never keep a link busy for a sample, correct an estimate.
    pub fn note_early(&mut self, now_ns: u64) {
        if self.measured && now_ns >= self.raised_at_ns + RAISE_EVERY_NS {
            self.raised_at_ns = now_ns;
            self.rate_bps = (self.rate_bps * ENCOURAGEMENT).min(self.claimed_bps);
        }
    }

    /// Whether something has always waited since `since_ns`.
    pub fn is_busy_since(&self, since_ns: u64) -> bool {
        self.rested_at_ns < since_ns
    }

    /// When the running sample began.
    pub fn sample_began_ns(&self) -> Option<u64> {
        self.sample.map(|(began_ns, _)| began_ns)
    }

    /// The receiver had got `bytes` more by `at_ns` (this side's clock). `others_queue`: another
    /// link was busy all through the running sample.
    pub fn note_arrived(&mut self, at_ns: u64, bytes: u64, others_queue: bool) {
        self.arrived_bytes += bytes;
        let Some((began_ns, before)) = self.sample else {
            self.sample = Some((at_ns, self.arrived_bytes));
            return;
        };
        let (elapsed_ns, arrived) = (at_ns.saturating_sub(began_ns), self.arrived_bytes - before);
        let least_ns = if self.measured {
            SAMPLE_NS
        } else {
            FIRST_SAMPLE_NS
        };
        if elapsed_ns < least_ns || arrived < SAMPLE_BYTES {
            // A pause must not be averaged into what comes after it.
            if elapsed_ns > 4 * SAMPLE_NS && !self.is_busy_since(began_ns) {
                self.sample = Some((at_ns, self.arrived_bytes));
            }
            return;
        }
        self.sample = Some((at_ns, self.arrived_bytes));
        let rate_bps = arrived as f64 * 8e9 / elapsed_ns as f64;
        if self.is_busy_since(began_ns) {
            let weight = if self.measured { WEIGHT } else { 1.0 };
            self.rate_bps += (rate_bps - self.rate_bps) * weight;
            self.measured = true;
        } else if self.measured && others_queue {
            self.rate_bps = (self.rate_bps * ENCOURAGEMENT).min(self.claimed_bps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A link that is given `chunk(estimate)` bytes every millisecond, with a report every 4.
    fn feed(capacity: &mut Capacity, rate_bps: f64, millis: u64, chunk: impl Fn(&Capacity) -> f64) {
        let (mut unsent, mut arrived) = (0f64, 0f64);
        for ms in 1..=millis {
            let left = unsent.min(rate_bps / 8e3);
            unsent -= left;
            arrived += left;
            if unsent <= 0.0 {
                capacity.note_rest(ms * MS);
            }
            unsent += chunk(capacity);
            if ms % 4 == 0 {
                capacity.note_arrived(ms * MS, arrived as u64, true);
                arrived = 0.0;
            }
        }
    }

    #[test]
    fn capacity__link_kept_busy__is_measured() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        feed(&mut capacity, 1e9, 400, |_| 130_000.0);
        assert!(capacity.is_measured());
        assert!(
            (capacity.rate_bps() / 1e9 - 1.0).abs() < 0.02,
            "{}",
            capacity.rate_bps()
        );
    }

    #[test]
    fn capacity__bursts_into_an_idle_link__measure_nothing() {
        let mut capacity = Capacity::claimed(1_000_000_000);
        feed(&mut capacity, 1e9, 400, |_| 28_000.0);
        assert!(!capacity.is_measured());
        assert_eq!(capacity.rate_bps(), 1e9);
    }

    #[test]
    fn capacity__estimate_far_too_low__is_raised_while_the_link_rests_and_others_queue() {
        let mut capacity = Capacity::claimed(10_000_000_000);
        capacity.set(66_000_000);
        // Given what it is thought to carry, until it is found to carry no more.
        feed(&mut capacity, 1e9, 4000, |capacity| {
            capacity.rate_bps() / 8e3
        });
        assert!(
            (0.9e9..1.3e9).contains(&capacity.rate_bps()),
            "{}",
            capacity.rate_bps()
        );
    }
}
