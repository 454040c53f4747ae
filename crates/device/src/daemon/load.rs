//! Combines the reports of a device's queues, so that one class limits the host's rate for all of
//! them.
//!
//! ```text
//! C = max(Σ cᵢ, max Kᵢ)        rate of the links; Kᵢ itself for a single queue
//! cᵢ = Kᵢ                      if queue i keeps the links busy: Wᵢ > BUSY_NS
//!      min(Sᵢ, Kᵢ)             otherwise
//! B = Σ Wᵢ Kᵢ / C              time that the backlog takes at the rate C
//!
//! Kᵢ  capacity that queue i estimates; infinite, and left out of max and B, if never measured
//! Wᵢ  time that the backlog of queue i takes at the rate Kᵢ
//! Sᵢ  rate that queue i sends, smoothed
//! ```
//!
//! The sums omit queues whose last report is older than `STALE_NS`; the maximum includes them.
//!
//! Each queue has its own socket on every link and sees only its own unsent bytes. While several
//! queues keep a link busy, each measures the share that it gets, and the shares add up to the
//! link. A queue that does not keep the links busy does not measure. Its estimate is an old one or
//! the NIC's claim, and adding it would count the link twice. So the queue counts with the rate
//! that it sends. The sum is at least the largest estimate, which is that of the links if one queue
//! has them alone.

use kumi_multilink::pressure::Intake;

/// Waiting time of a queue's bytes above which it keeps the links busy, in ns.
const BUSY_NS: f64 = 250_000.0;
/// Age at which a report is omitted, in ns: the queue sleeps, and none of its bytes wait.
const STALE_NS: u64 = 20_000_000;
/// Weight of a new sample of the rate that a queue sends.
const WEIGHT: f64 = 1.0 / 8.0;

/// Last report of one queue.
#[derive(Debug, Clone, Copy)]
struct Report {
    reported_at_ns: u64,
    /// Rate that the queue estimates it can send; infinite if it has never kept a link busy.
    capacity_bps: f64,
    waiting_ns: f64,
    send_bps: f64,
    /// Traffic from the host since the class was last adjusted.
    intake: Intake,
    busy_at_ns: Option<u64>,
}

/// Last reports of all queues.
#[derive(Debug)]
pub struct Load {
    queues: Vec<Report>,
}

impl Load {
    /// Returns the load of `queues` queues that have reported nothing.
    pub fn new(queues: usize) -> Self {
        let initial = Report {
            reported_at_ns: 0,
            capacity_bps: f64::INFINITY,
            waiting_ns: 0.0,
            send_bps: 0.0,
            intake: Intake::default(),
            busy_at_ns: None,
        };
        Self {
            queues: vec![initial; queues],
        }
    }

    /// Records a queue's report: the values of its endpoint's `load`, and its intake since the last
    /// report.
    pub fn report(
        &mut self,
        queue: usize,
        now_ns: u64,
        (capacity_bps, waiting_ns): (f64, f64),
        intake: Intake,
    ) {
        let report = &mut self.queues[queue];
        let elapsed_ns = now_ns.saturating_sub(report.reported_at_ns).max(1) as f64;
        let send_bps = intake.bytes as f64 * 8e9 / elapsed_ns;
        report.send_bps += (send_bps - report.send_bps) * WEIGHT;
        (report.reported_at_ns, report.capacity_bps) = (now_ns, capacity_bps);
        report.waiting_ns = waiting_ns;
        report.intake.bytes += intake.bytes;
        report.intake.frames += intake.frames;
        report.intake.was_empty |= intake.was_empty;
        if waiting_ns > BUSY_NS {
            report.busy_at_ns = Some(now_ns);
        }
    }

    /// Returns the rate of the links for all queues, in bits per second, and the time that the
    /// backlog takes at this rate, in ns. The rate is infinite before the first measurement.
    pub fn sum(&self, now_ns: u64) -> (f64, f64) {
        let (mut total_bps, mut largest_bps, mut waiting_bits) = (0.0, 0f64, 0.0);
        for report in &self.queues {
            let is_fresh = now_ns.saturating_sub(report.reported_at_ns) < STALE_NS;
            let is_measured = report.capacity_bps.is_finite();
            if is_measured {
                largest_bps = largest_bps.max(report.capacity_bps);
            }
            if !is_fresh {
                continue;
            }
            if is_measured && report.waiting_ns > BUSY_NS {
                total_bps += report.capacity_bps;
            } else {
                total_bps += report.send_bps.min(report.capacity_bps);
            }
            if is_measured {
                waiting_bits += report.waiting_ns * report.capacity_bps / 1e9;
            }
        }
        if largest_bps == 0.0 {
            return (f64::INFINITY, 0.0);
        }
        // One queue is its own sum, exactly.
        let capacity_bps = if self.queues.len() == 1 {
            largest_bps
        } else {
            total_bps.max(largest_bps)
        };
        (capacity_bps, waiting_bits * 1e9 / capacity_bps)
    }

    /// Returns the traffic that all queues took from the host since the last call.
    ///
    /// The device counts as empty if every queue that took bytes found it empty. So one queue that
    /// cannot keep up limits the host for all, as there is only one class.
    pub fn take_intake(&mut self) -> Intake {
        let mut sum = Intake {
            was_empty: true,
            ..Intake::default()
        };
        for report in &mut self.queues {
            let intake = std::mem::take(&mut report.intake);
            sum.bytes += intake.bytes;
            sum.frames += intake.frames;
            sum.was_empty &= intake.was_empty || intake.bytes == 0;
        }
        sum
    }

    /// Returns whether a queue has kept the links busy within the last `window_ns`.
    pub fn was_busy(&self, queue: usize, now_ns: u64, window_ns: u64) -> bool {
        let busy_at_ns = self.queues[queue].busy_at_ns;
        busy_at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < window_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn intake(bytes: u64, was_empty: bool) -> Intake {
        Intake {
            bytes,
            frames: 1,
            was_empty,
        }
    }

    #[test]
    fn load__queues_sharing_busy_links__add_up_to_the_link_rates() {
        let mut load = Load::new(2);
        assert_eq!(load.sum(0), (f64::INFINITY, 0.0));
        load.report(0, MS, (0.6e9, 1e6), intake(1, true));
        load.report(1, MS, (0.4e9, 1e6), intake(1, true));
        let (capacity_bps, waiting_ns) = load.sum(MS);
        assert!((capacity_bps - 1e9).abs() < 1.0, "{capacity_bps}");
        assert!((waiting_ns - 1e6).abs() < 1.0, "{waiting_ns}");
    }

    #[test]
    fn load__nearly_idle_queue__does_not_count_the_links_twice() {
        let mut load = Load::new(2);
        for step in 1..200 {
            load.report(0, step * MS, (1e9, 1e6), intake(125_000, true));
            load.report(1, step * MS, (1e9, 0.0), intake(1_250, true));
        }
        let (capacity_bps, _) = load.sum(199 * MS);
        assert!((1.0e9..1.02e9).contains(&capacity_bps), "{capacity_bps}");
        assert!(load.was_busy(0, 199 * MS, MS) && !load.was_busy(1, 199 * MS, MS));
        let (alone_bps, waiting_ns) = load.sum(400 * MS);
        assert_eq!((alone_bps, waiting_ns), (1e9, 0.0), "both sleep");
    }

    #[test]
    fn load__overloaded_queue__is_not_masked_by_an_idle_one() {
        let mut load = Load::new(2);
        load.report(0, MS, (1e9, 0.0), intake(1, false));
        load.report(1, MS, (1e9, 0.0), intake(0, true));
        assert!(!load.take_intake().was_empty);
        load.report(0, 2 * MS, (1e9, 0.0), intake(1, true));
        assert!(load.take_intake().was_empty);
    }
}
