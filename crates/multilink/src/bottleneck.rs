//! A limit beyond this host's own NIC: a slower switch port, a shared uplink, a receiver that cannot
//! follow.
//!
//! It shows as delay that does not go away: when every report over a while speaks of a queue in the
//! network, what arrived in that while arrived at the bottleneck's rate. The limit lies a little
//! below it, so that the queue drains, and is lifted step by step once it has. (BBR's model: Cardwell
//! et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016.)

use crate::best::Best;

/// Least time over which a standing queue is judged.
const JUDGE_NS: u64 = 20_000_000;
/// Delay beyond the least round trip that counts as a queue: what coalescing, scheduling and this
/// host's own book-keeping get wrong is less.
const QUEUED_NS: u64 = 4_000_000;
/// While there is a queue, less than arrives is allowed, so that it drains in this time.
const DRAIN_NS: f64 = 100_000_000.0;
/// The least that is allowed, as a share of what arrives.
const DRAIN_SHARE_MIN: f64 = 0.7;
/// Nor less than this share of the most that arrived lately: delay that is not made by a queue, of a
/// peer that is slow to answer, must not slow the path further and further.
const BEST_SHARE: f64 = 0.85;
/// Growth a judgement without one.
const RELEASE: f64 = 1.06;

/// The limit of one path.
#[derive(Debug, Clone, Default)]
pub struct Bottleneck {
    limit_bps: Option<f64>,
    began_ns: u64,
    bytes: u64,
    reports: u32,
    least_queue_ns: u64,
    best: Best,
}

impl Bottleneck {
    /// The rate the path carries, in bits per second of wire bytes, where that is less than the
    /// link's.
    pub fn limit_bps(&self) -> Option<f64> {
        self.limit_bps
    }

    /// A report: `bytes` more have arrived, after `queue_ns` in queues of the network. `link_bps`:
    /// the rate of the NIC itself.
    pub fn note_report(&mut self, now_ns: u64, bytes: u32, queue_ns: u64, link_bps: f64) {
        if self.reports == 0 || now_ns.saturating_sub(self.began_ns) > 10 * JUDGE_NS {
            (self.began_ns, self.bytes, self.reports) = (now_ns, 0, 1);
            self.least_queue_ns = queue_ns;
            return;
        }
        self.bytes += u64::from(bytes);
        self.reports += 1;
        self.least_queue_ns = self.least_queue_ns.min(queue_ns);
        let elapsed_ns = now_ns - self.began_ns;
        if elapsed_ns < JUDGE_NS || self.reports < 4 {
            return;
        }
        let arrived_bps = self.bytes as f64 * 8e9 / elapsed_ns as f64;
        let best_bps = self.best.note(now_ns, arrived_bps);
        self.limit_bps = if self.least_queue_ns > QUEUED_NS {
            let share = 1.0 - self.least_queue_ns as f64 / DRAIN_NS;
            let drained_bps = arrived_bps * share.max(DRAIN_SHARE_MIN);
            Some(drained_bps.max(best_bps * BEST_SHARE))
        } else {
            let lifted_bps = self.limit_bps.map(|limit_bps| limit_bps * RELEASE);
            lifted_bps.filter(|limit_bps| *limit_bps < link_bps)
        };
        (self.began_ns, self.bytes, self.reports) = (now_ns, 0, 1);
        self.least_queue_ns = queue_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A port of `port_bps` behind a NIC of 1 Gb/s; the sender keeps to the limit. Gives the mean
    /// rate and the mean queue of the second half, in ns.
    fn run(port_bps: f64) -> (f64, f64) {
        let (mut bottleneck, mut queue) = (Bottleneck::default(), 0f64);
        let (mut carried, mut waited) = (0.0, 0.0);
        for step in 1..=3000u64 {
            let rate_bps = bottleneck.limit_bps().unwrap_or(1e9).min(1e9);
            queue += rate_bps / 8e9 * (4 * MS) as f64;
            let leaves = queue.min(port_bps / 8e9 * (4 * MS) as f64);
            queue -= leaves;
            let queue_ns = queue / (port_bps / 8e9);
            bottleneck.note_report(step * 4 * MS, leaves as u32, queue_ns as u64, 1e9);
            if step > 2500 {
                carried += leaves;
                waited += queue_ns;
            }
        }
        (carried * 8e9 / (500 * 4 * MS) as f64, waited / 500.0)
    }

    #[test]
    fn bottleneck__slower_port_behind_the_nic__is_filled_with_a_short_queue() {
        for port_bps in [50e6, 300e6, 900e6] {
            let (rate_bps, queue_ns) = run(port_bps);
            assert!(rate_bps > 0.93 * port_bps, "{port_bps}: {rate_bps}");
            assert!(queue_ns < 15e6, "{port_bps}: {queue_ns} ns");
        }
    }

    #[test]
    fn bottleneck__peer_that_answers_late__does_not_slow_the_path_more_and_more() {
        let mut bottleneck = Bottleneck::default();
        for step in 1..=5000u64 {
            let rate_bps = bottleneck.limit_bps().unwrap_or(1e9);
            let bytes = rate_bps / 8e9 * (4 * MS) as f64;
            let is_quick = step % 50 > 43; // now and then
            let queue_ns = if is_quick { 0 } else { 6 * MS };
            bottleneck.note_report(step * 4 * MS, bytes as u32, queue_ns, 1e9);
        }
        let limit_bps = bottleneck.limit_bps().unwrap_or(1e9);
        assert!(limit_bps > 2e8, "{limit_bps}");
    }

    #[test]
    fn bottleneck__none__limits_nothing() {
        let (rate_bps, _) = run(2e9);
        assert!(rate_bps > 0.999e9, "{rate_bps}");
    }
}
