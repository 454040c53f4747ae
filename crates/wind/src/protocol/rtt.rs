//! Round-trip time of a path (RFC 6298), its variation, and its minimum of the last seconds.

/// Time for which a minimum is valid, in ns. A route may change.
const MIN_WINDOW_NS: u64 = 10_000_000_000;

/// Least time that a timer waits beyond the round trip, in ns: a receiver's turn of the scheduler.
pub const GRANULARITY_NS: u64 = 100_000;

/// Estimate of the round-trip time.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    min_ns: u64,
    min_at_ns: u64,
}

impl Rtt {
    /// Creates the estimate from its first sample, the round trip of the handshake.
    pub fn new(first_ns: u64, now_ns: u64) -> Self {
        let first_ns = first_ns.max(1);
        Self {
            smoothed_ns: first_ns,
            variation_ns: first_ns / 2,
            latest_ns: first_ns,
            min_ns: first_ns,
            min_at_ns: now_ns,
        }
    }

    /// Takes a sample. `delay_ns` is the part for which the receiver held the acknowledgement.
    pub fn sample(&mut self, rtt_ns: u64, delay_ns: u64, now_ns: u64) {
        let is_stale = now_ns.saturating_sub(self.min_at_ns) > MIN_WINDOW_NS;
        if rtt_ns <= self.min_ns || is_stale {
            (self.min_ns, self.min_at_ns) = (rtt_ns.max(1), now_ns);
        }
        // The delay is the receiver's claim. It must not make a sample shorter than the minimum.
        let net_ns = rtt_ns
            .saturating_sub(delay_ns)
            .max(self.min_ns.min(rtt_ns))
            .max(1);
        self.latest_ns = net_ns;
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(net_ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + net_ns) / 8;
    }

    /// Returns the smoothed round trip, in ns.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Returns the latest sample, in ns.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// Returns the least round trip of the last seconds, in ns.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
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
        let mut rtt = Rtt::new(900 * US, 0);
        for at in 0..100 {
            rtt.sample(50 * US, 0, at * US);
        }
        assert_eq!(rtt.min_ns(), 50 * US);
        assert!(rtt.smoothed_ns() < 51 * US, "{rtt:?}");
        assert!(rtt.probe_timeout_ns(0) < 160 * US, "{rtt:?}");
    }

    #[test]
    fn rtt__minimum_older_than_ten_seconds__follows_a_longer_route() {
        let mut rtt = Rtt::new(50 * US, 0);
        rtt.sample(900 * US, 0, 9_000_000_000);
        assert_eq!(rtt.min_ns(), 50 * US);
        rtt.sample(900 * US, 0, 11_000_000_000);
        assert_eq!(rtt.min_ns(), 900 * US);
    }

    #[test]
    fn rtt__receiver_claims_a_long_delay__is_not_below_the_minimum() {
        let mut rtt = Rtt::new(100 * US, 0);
        rtt.sample(150 * US, 1_000_000 * US, 0);
        assert_eq!(rtt.latest_ns(), 100 * US);
    }
}
