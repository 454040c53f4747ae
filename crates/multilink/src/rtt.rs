//! Round trips of a path, and the delay in its queues.

/// Time for which a minimum round trip is valid, in ns.
const RTT_MIN_WINDOW_NS: u64 = 10_000_000_000;
/// Uncertainty of the time that packets wait in this host's own queue, in ns.
const WAIT_KNOWN_NS: u64 = 300_000;

/// Round-trip times, from the receiver's reports less the time for which it held them.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed_ns: u64,
    network_latest_ns: u64,
    min_ns: u64,
    min_at_ns: u64,
    /// Least one-way time to the peer in the last ten seconds, in µs. It is the difference of two
    /// clocks, so it includes their constant offset.
    forward_min_us: u32,
    forward_min_at_ns: Option<u64>,
    /// Excess of the latest one-way sample over that minimum, in ns.
    forward_queue_ns: u64,
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

    /// Takes a sample of the one-way time to the peer. `forward_us` is the arrival by the peer's
    /// clock less the departure by this host's clock, modulo 2³². `wait_ns` is as for
    /// [`Self::sample_network`].
    pub fn sample_forward(&mut self, now_ns: u64, forward_us: u32, wait_ns: u64) {
        // The signed difference is valid below half an hour.
        let excess_us = forward_us.wrapping_sub(self.forward_min_us) as i32;
        let is_known = self
            .forward_min_at_ns
            .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= RTT_MIN_WINDOW_NS);
        if !is_known || excess_us <= 0 && wait_ns <= WAIT_KNOWN_NS {
            (self.forward_min_us, self.forward_min_at_ns) = (forward_us, Some(now_ns));
            self.forward_queue_ns = 0;
        } else {
            self.forward_queue_ns = u64::from(excess_us.max(0).unsigned_abs()) * 1000;
        }
    }

    /// Returns the time that the last packet waited in queues on the way to the peer, in ns. It is
    /// the smaller of two excesses over a minimum: of the round trip and of the one-way time. A
    /// clock that was set or stopped therefore does not show as a queue.
    pub fn queue_ns(&self) -> u64 {
        let round_ns = self.network_latest_ns.saturating_sub(self.min_ns);
        round_ns.min(self.forward_queue_ns)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn rtt__queue_on_the_return_path__does_not_count_as_forward_queueing_delay() {
        // The peer's clock is about to wrap.
        let forward_us = |queue_ms: u32| (u32::MAX - 100).wrapping_add(queue_ms * 1000);
        let mut rtt = Rtt::default();
        let mut sample = |at_ms: u64, forward_ms: u32, return_ms: u64| {
            let round_ns = (1 + u64::from(forward_ms) + return_ms) * MS;
            rtt.sample_network(at_ms * MS, round_ns, 0);
            rtt.sample_forward(at_ms * MS, forward_us(forward_ms), 0);
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
        for (at_ms, forward_us) in [(1, 500), (5, 3_000_500), (9, 500), (13, 4_000_000_000)] {
            rtt.sample_network(at_ms * MS, MS, 0);
            rtt.sample_forward(at_ms * MS, forward_us, 0);
            assert_eq!(rtt.queue_ns(), 0, "at {at_ms} ms");
        }
    }
}
