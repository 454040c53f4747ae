//! Round-trip time of a path (RFC 6298), its variation, and its minimum of the last seconds.

/// Period of a minimum, in ns. That of the running and the last period counts: a route may change.
const PERIOD_NS: u64 = 5_000_000_000;

/// Part of a period after which a sample near the minimum is due, in ns.
const DUE_NS: u64 = 4_000_000_000;

/// Least time that a timer waits beyond the round trip, in ns: a receiver's turn of the scheduler.
pub const GRANULARITY_NS: u64 = 100_000;

/// Estimate of the round-trip time.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    /// Least samples of the running and of the last period; `u64::MAX` without one.
    minimums_ns: [u64; 2],
    period: u64,
    period_began_ns: u64,
    now_ns: u64,
    /// The last acknowledgement had a sample. The guess counts as one.
    has_sample: bool,
}

impl Rtt {
    /// Creates the estimate from a guess, the time that the handshake took. The first sample
    /// replaces it, because a handshake whose message was repeated takes longer.
    pub fn new(guess_ns: u64) -> Self {
        let guess_ns = guess_ns.max(1);
        Self {
            smoothed_ns: guess_ns,
            variation_ns: guess_ns / 2,
            latest_ns: guess_ns,
            minimums_ns: [u64::MAX; 2],
            period: 0,
            period_began_ns: 0,
            now_ns: 0,
            has_sample: true,
        }
    }

    /// Takes a sample. `delay_ns` is the part for which the receiver held the acknowledgement.
    pub fn sample(&mut self, rtt_ns: u64, delay_ns: u64, now_ns: u64) {
        let is_first = self.minimums_ns == [u64::MAX; 2];
        if now_ns >= self.period_began_ns + PERIOD_NS {
            // After a pause, the last period says nothing either.
            let is_recent = now_ns < self.period_began_ns + 2 * PERIOD_NS;
            let last_ns = self.minimums_ns[0];
            self.minimums_ns = [u64::MAX, if is_recent { last_ns } else { u64::MAX }];
            self.period += 1;
            self.period_began_ns = now_ns;
        }
        self.now_ns = now_ns;
        self.has_sample = true;
        self.minimums_ns[0] = self.minimums_ns[0].min(rtt_ns.max(1));
        // The delay is the receiver's claim. It must not make a sample shorter than the minimum.
        let net_ns = rtt_ns
            .saturating_sub(delay_ns)
            .max(self.least_ns().min(rtt_ns))
            .max(1);
        self.latest_ns = net_ns;
        if is_first {
            (self.smoothed_ns, self.variation_ns) = (net_ns, net_ns / 2);
            return;
        }
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(net_ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + net_ns) / 8;
    }

    /// Begins an acknowledgement, which may bring a sample.
    pub fn begin_ack(&mut self) {
        self.has_sample = false;
    }

    /// Returns the sample of the last acknowledgement, in ns, if it had one.
    pub fn sample_ns(&self) -> Option<u64> {
        self.has_sample.then_some(self.latest_ns)
    }

    /// Returns the smoothed round trip, in ns.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Returns the latest sample, in ns.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// Returns the least round trip of the last seconds, in ns; before the first, the guess.
    pub fn min_ns(&self) -> u64 {
        self.least_ns().min(self.latest_ns)
    }

    fn least_ns(&self) -> u64 {
        self.minimums_ns[0].min(self.minimums_ns[1])
    }

    /// Returns the running period if its samples are all above the last period's minimum by more
    /// than `margin_ns`, and it ends soon: the sender's own queue may hide the minimum.
    pub fn is_min_due(&self, margin_ns: u64) -> Option<u64> {
        let [running_ns, last_ns] = self.minimums_ns;
        let is_hidden = running_ns > last_ns.saturating_add(margin_ns);
        let is_late = self.now_ns >= self.period_began_ns + DUE_NS;
        (is_hidden && is_late).then_some(self.period)
    }

    /// Returns the time after which an acknowledgement is overdue, in ns, if the receiver may hold
    /// it for `ack_delay_ns`.
    pub fn probe_timeout_ns(&self, ack_delay_ns: u64) -> u64 {
        self.smoothed_ns + (4 * self.variation_ns).max(GRANULARITY_NS) + ack_delay_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn rtt__steady_path__converges_and_keeps_a_short_timeout() {
        let mut rtt = Rtt::new(900 * US);
        for at in 0..100 {
            rtt.sample(50 * US, 0, at * US);
        }
        assert_eq!(rtt.min_ns(), 50 * US);
        assert!(rtt.smoothed_ns() < 51 * US, "{rtt:?}");
        assert!(rtt.probe_timeout_ns(0) < 160 * US, "{rtt:?}");
    }

    #[test]
    fn rtt__guess_far_from_the_path__is_replaced_by_the_first_sample() {
        for guess_us in [2, 10_000, 90_000] {
            let mut rtt = Rtt::new(guess_us * US);
            rtt.sample(40_000 * US, 0, 0);
            assert_eq!(
                (rtt.min_ns(), rtt.smoothed_ns()),
                (40_000 * US, 40_000 * US)
            );
        }
    }

    #[test]
    fn rtt__minimum_older_than_ten_seconds__follows_a_longer_route() {
        let mut rtt = Rtt::new(50 * US);
        rtt.sample(50 * US, 0, 0);
        rtt.sample(900 * US, 0, 9_000_000_000);
        assert_eq!((rtt.min_ns(), rtt.is_min_due(US)), (50 * US, None));
        rtt.sample(900 * US, 0, 13_500_000_000);
        assert_eq!((rtt.min_ns(), rtt.is_min_due(US)), (50 * US, Some(1)));
        rtt.sample(900 * US, 0, 15_000_000_000);
        assert_eq!((rtt.min_ns(), rtt.is_min_due(US)), (900 * US, None));
        rtt.sample(2_000 * US, 0, 90_000_000_000);
        assert_eq!(rtt.min_ns(), 2_000 * US);
    }

    #[test]
    fn rtt__receiver_claims_a_long_delay__is_not_below_the_minimum() {
        let mut rtt = Rtt::new(100 * US);
        rtt.sample(100 * US, 0, 0);
        rtt.sample(150 * US, 1_000_000 * US, 0);
        assert_eq!(rtt.latest_ns(), 100 * US);
    }
}
