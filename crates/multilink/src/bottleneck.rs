//! Limit of a path by a bottleneck behind the local NIC (ADR 011).
//!
//! Such a bottleneck is a slower switch port, a shared uplink, or a receiver that cannot keep up.
//! It shows as a standing queue in the network. While every report of an interval shows a queue,
//! data arrives at the rate of the bottleneck. The model is that of BBR (Cardwell et al., "BBR:
//! Congestion-Based Congestion Control", ACM Queue 14(5), 2016).
//!
//! At the end of each interval:
//!
//! ```text
//! A = 8e9 · N / T                                         rate of arrival, in bit/s
//! L = max(A · max(1 − q / DRAIN_NS, DRAIN_SHARE_MIN),
//!         BEST_SHARE · A_max)                             if q > QUEUED_NS and B > OWN_BYTES
//!     RELEASE · L                                         otherwise; removed once L ≥ R
//!
//! L      limit of the path, in bit/s; infinite at first
//! N      bytes reported in the interval
//! T      length of the interval, in ns: at least JUDGE_NS, and four reports
//!        that include the one at which it began
//! q      least queueing delay of the reports of the interval, in ns
//! B      A · q / 8e9: bytes of this sender in the queue
//! A_max  highest A of the last one to two seconds
//! R      rate of the local link, in bit/s
//! ```
//!
//! The first term is below the rate of arrival, so that the queue drains. Once it has drained, the
//! limit rises step by step.
//!
//! A sender that has little to send does not show the rate of a bottleneck, although others keep a
//! queue there. So a queue with few bytes of this sender is not judged. An interval begins anew
//! while less than a packet has arrived in it, when nothing is on the way, and if it lasts longer
//! than ten times `JUDGE_NS`. Without that, the pings of a path whose frames the kernel carried
//! were taken for its rate, and the daemon began with 0.02 Mb/s (`docs/perf-log.md`, 2026-11-29).

use crate::best::Best;

/// Least interval over which a standing queue is judged, in ns.
const JUDGE_NS: u64 = 20_000_000;
/// Queueing delay above which there is a queue, in ns. Receive coalescing, scheduling and this
/// host's own accounting cause errors below this.
const QUEUED_NS: u64 = 4_000_000;
/// Least bytes of this sender in the queue for it to be judged: ten full packets, by judgement.
const OWN_BYTES: f64 = 15_000.0;
/// Bytes of a full packet: more than pings have.
const PACKET_BYTES: u64 = 1_500;
/// Time in which the queue is to drain, in ns. Chosen by judgement.
const DRAIN_NS: f64 = 100_000_000.0;
/// Least share of the rate of arrival that is allowed while there is a queue. Chosen by judgement.
const DRAIN_SHARE_MIN: f64 = 0.7;
/// Least share of the highest recent rate of arrival that is allowed. A peer that answers late
/// causes delay without a queue; that must not slow the path further and further (ADR 011).
const BEST_SHARE: f64 = 0.85;
/// Growth of the limit per interval without a queue. Chosen by judgement.
const RELEASE: f64 = 1.06;

/// Limit of one path.
#[derive(Debug, Clone, Default)]
pub struct Bottleneck {
    limit_bps: Option<f64>,
    start_ns: u64,
    bytes: u64,
    reports: u32,
    least_queue_ns: u64,
    best: Best,
}

impl Bottleneck {
    /// Returns the limit in bits per second of wire bytes, or `None` if only the local link limits
    /// the path.
    pub fn limit_bps(&self) -> Option<f64> {
        self.limit_bps
    }

    /// Evaluates a report: `bytes` more have arrived, after `queue_ns` in queues of the network.
    /// `is_idle` states that nothing more is on the way. `link_bps` is the rate of the local link,
    /// in bits per second.
    pub fn note_report(
        &mut self,
        now_ns: u64,
        (bytes, is_idle): (u32, bool),
        queue_ns: u64,
        link_bps: f64,
    ) {
        let is_late = now_ns.saturating_sub(self.start_ns) > 10 * JUDGE_NS;
        let is_begun = self.bytes + u64::from(bytes) >= PACKET_BYTES;
        if self.reports == 0 || is_late || is_idle || !is_begun {
            (self.start_ns, self.bytes, self.reports) = (now_ns, 0, 1);
            self.least_queue_ns = queue_ns;
            return;
        }
        self.bytes += u64::from(bytes);
        self.reports += 1;
        self.least_queue_ns = self.least_queue_ns.min(queue_ns);
        let elapsed_ns = now_ns - self.start_ns;
        if elapsed_ns < JUDGE_NS || self.reports < 4 {
            return;
        }
        let arrived_bps = self.bytes as f64 * 8e9 / elapsed_ns as f64;
        let best_bps = self.best.note(now_ns, arrived_bps);
        let own_bytes = arrived_bps / 8e9 * self.least_queue_ns as f64;
        self.limit_bps = if self.least_queue_ns > QUEUED_NS && own_bytes > OWN_BYTES {
            let share = 1.0 - self.least_queue_ns as f64 / DRAIN_NS;
            let drained_bps = arrived_bps * share.max(DRAIN_SHARE_MIN);
            Some(drained_bps.max(best_bps * BEST_SHARE))
        } else {
            let lifted_bps = self.limit_bps.map(|limit_bps| limit_bps * RELEASE);
            lifted_bps.filter(|limit_bps| *limit_bps < link_bps)
        };
        (self.start_ns, self.bytes, self.reports) = (now_ns, 0, 1);
        self.least_queue_ns = queue_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates a port of `port_bps` behind a NIC of 1 Gb/s, and a sender that keeps to the limit.
    /// Returns the mean rate in bit/s and the mean queue in ns, over the last 500 of 3000 steps.
    fn run(port_bps: f64) -> (f64, f64) {
        let (mut bottleneck, mut queue) = (Bottleneck::default(), 0f64);
        let (mut bytes, mut queue_sum_ns) = (0.0, 0.0);
        for step in 1..=3000u64 {
            let rate_bps = bottleneck.limit_bps().unwrap_or(1e9).min(1e9);
            queue += rate_bps / 8e9 * (4 * MS) as f64;
            let output = queue.min(port_bps / 8e9 * (4 * MS) as f64);
            queue -= output;
            let queue_ns = queue / (port_bps / 8e9);
            bottleneck.note_report(step * 4 * MS, (output as u32, false), queue_ns as u64, 1e9);
            if step > 2500 {
                bytes += output;
                queue_sum_ns += queue_ns;
            }
        }
        (bytes * 8e9 / (500 * 4 * MS) as f64, queue_sum_ns / 500.0)
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
    fn bottleneck__late_reports__do_not_ratchet_the_limit_down() {
        let mut bottleneck = Bottleneck::default();
        for step in 1..=5000u64 {
            let rate_bps = bottleneck.limit_bps().unwrap_or(1e9);
            let bytes = rate_bps / 8e9 * (4 * MS) as f64;
            let is_quick = step % 50 > 43; // now and then
            let queue_ns = if is_quick { 0 } else { 6 * MS };
            bottleneck.note_report(step * 4 * MS, (bytes as u32, false), queue_ns, 1e9);
        }
        let limit_bps = bottleneck.limit_bps().unwrap_or(1e9);
        assert!(limit_bps > 2e8, "{limit_bps}");
    }

    #[test]
    fn bottleneck__queue_of_others__does_not_limit_a_sender_of_little() {
        // 100 bytes every 4 ms, as of pings; then 30 packets every 60 ms, as of small messages.
        for (bytes, every) in [(100, 1), (45_000, 15)] {
            let mut bottleneck = Bottleneck::default();
            for step in 1..=1000u64 {
                let sent = if step % every == 0 { bytes } else { 0 };
                let is_idle = every == 1 || step % every != 0;
                bottleneck.note_report(step * 4 * MS, (sent, is_idle), 12 * MS, 1e9);
            }
            assert_eq!(bottleneck.limit_bps(), None, "{bytes} bytes");
        }
    }

    #[test]
    fn bottleneck__sender_that_begins_while_others_queue__is_not_limited_to_its_idle_rate() {
        let mut bottleneck = Bottleneck::default();
        for step in 1..=100u64 {
            let bytes = if step < 50 { 100 } else { 100_000 };
            bottleneck.note_report(step * 4 * MS, (bytes, step < 50), 12 * MS, 1e9);
            let limit_bps = bottleneck.limit_bps().unwrap_or(1e9);
            assert!(limit_bps > 150e6, "{limit_bps} of 200e6 in step {step}");
        }
    }

    #[test]
    fn bottleneck__slow_port_and_frequent_reports__is_found() {
        // 10 Mb/s: a packet arrives every 1.2 ms, and reports every 0.6 ms.
        let mut bottleneck = Bottleneck::default();
        for step in 1..=200u64 {
            let bytes = if step % 2 == 0 { 1_500 } else { 0 };
            bottleneck.note_report(step * 600_000, (bytes, false), 40 * MS, 1e9);
        }
        let limit_bps = bottleneck.limit_bps().unwrap_or(1e9);
        assert!((5e6..11e6).contains(&limit_bps), "{limit_bps}");
    }

    #[test]
    fn bottleneck__port_faster_than_the_nic__does_not_limit_the_rate() {
        let (rate_bps, _) = run(2e9);
        assert!(rate_bps > 0.999e9, "{rate_bps}");
    }
}
