//! Controller of the rate at which the host may fill the device (ADR 007).
//!
//! The queue has to stay in the host, where TCP notices it. A TAP orphans the packets that it
//! takes, and its queue holds whole TCP windows.
//!
//! The backlog of the links integrates (inflow − capacity). A proportional controller holds it at a
//! target. A slow integral, the trim, corrects the errors of the capacity estimate and of the
//! host's byte count.
//!
//! ```text
//! T = max(TARGET_NS, TARGET_FRAMES · F · 8e9 / C)     target of the backlog, in ns
//! e = (T − B) / T,                 within [−2, 1]     control error
//! I = I + TRIM_GAIN · e,           within TRIM_RANGE  trim; unchanged while B = 0
//! f = I · (1 + GAIN · e),          within FACTOR_RANGE
//! R = min(C · f, H)                                   rate allowed, in bit/s
//!
//! B  backlog of the links, in ns at the rate C
//! C  rate of the links together, in bit/s
//! F  bytes of a frame, smoothed by 1/8 an adjustment
//! H  limit of the host, in bit/s
//! ```
//!
//! Without a backlog, e = 1 and the rate allowed is C · I · (1 + `GAIN`), which is above the
//! capacity for I > 0.8. A device that is not the bottleneck therefore does not become one.
//!
//! This host itself may be the bottleneck: frames wait in the device while the links are idle. Then
//! H follows the rate at which frames are really taken. Every `JUDGE_NS`:
//!
//! ```text
//! H = max(DRAIN_SHARE · X, BEST_SHARE · X_max)         if the device was never found empty
//!     RELEASE · H                                      otherwise
//!
//! X      rate at which bytes were taken from the host, in bit/s
//! X_max  highest X of the last one to two seconds
//! ```
//!
//! H begins at infinity.

use crate::best::Best;

/// Least target of the backlog, in ns: bridges an ordinary late wake-up of the daemon. On slow
/// links the target is the time of `TARGET_FRAMES` frames, if that is longer (`docs/perf-log.md`,
/// 2026-11-22: slow links).
const TARGET_NS: f64 = 1_000_000.0;
const TARGET_FRAMES: f64 = 2.0;
/// Time between adjustments, in ns.
pub const PERIOD_NS: u64 = 2_000_000;
/// Proportional gain: a backlog of twice the target reduces the inflow by this share. The loop gain
/// of a period, `GAIN · PERIOD_NS / T`, must stay below 1; it is 0.5 at most.
const GAIN: f64 = 0.25;
/// Integral gain per adjustment, chosen by judgement.
const TRIM_GAIN: f64 = 0.01;
/// Bounds of the trim, and of the whole factor. Chosen by judgement.
const TRIM_RANGE: (f64, f64) = (0.75, 1.25);
const FACTOR_RANGE: (f64, f64) = (0.5, 1.3);

/// Share of the rate at which frames are taken that is allowed while frames wait in the device.
const DRAIN_SHARE: f64 = 0.95;
/// Lower bound of that limit, as a share of the highest recent rate. A machine that stopped for a
/// moment has not become slow: without this bound it returned to the full rate only after 0.7 s
/// (`docs/perf-log.md`, 2026-11-22).
const BEST_SHARE: f64 = 0.7;
/// Growth of that limit per `JUDGE_NS` in which the device was found empty. Chosen by judgement.
const RELEASE: f64 = 1.15;
/// Interval after which the daemon decides whether this host is the bottleneck, in ns. Much longer
/// than a process is without its core for a moment.
const JUDGE_NS: u64 = 20_000_000;

/// Traffic from the host into the device since the last adjustment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    /// Bytes taken from the host.
    pub bytes: u64,
    /// Frames taken from the host.
    pub frames: u64,
    /// True if the device was found empty at least once.
    pub was_empty: bool,
}

/// Controller of one device.
#[derive(Debug, Clone)]
pub struct Pressure {
    trim: f64,
    /// Bytes of a frame, smoothed.
    frame_bytes: f64,
    adjusted_at_ns: u64,
    limit_bps: f64,
    judged_at_ns: u64,
    best: Best,
    intake: Intake,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            trim: 1.0,
            frame_bytes: 0.0,
            adjusted_at_ns: 0,
            limit_bps: f64::INFINITY,
            judged_at_ns: 0,
            best: Best::default(),
            intake: Intake::default(),
        }
    }
}

impl Pressure {
    /// Returns whether the next adjustment is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.adjusted_at_ns + PERIOD_NS
    }

    /// Returns the rate to allow, in bits per second. `capacity_bps` is the rate of the links
    /// together, `backlog_ns` the time that their backlog takes, `intake` the traffic from the
    /// host.
    pub fn adjust(
        &mut self,
        now_ns: u64,
        capacity_bps: f64,
        backlog_ns: f64,
        intake: Intake,
    ) -> f64 {
        self.adjusted_at_ns = now_ns;
        if intake.frames > 0 {
            let mean_bytes = intake.bytes as f64 / intake.frames as f64;
            self.frame_bytes += (mean_bytes - self.frame_bytes) / 8.0;
        }
        let frames_ns = TARGET_FRAMES * self.frame_bytes * 8e9 / capacity_bps;
        let target_ns = frames_ns.max(TARGET_NS);
        let error = ((target_ns - backlog_ns) / target_ns).clamp(-2.0, 1.0);
        // An idle link does not show an error of the trim.
        if backlog_ns > 0.0 {
            self.trim = (self.trim + TRIM_GAIN * error).clamp(TRIM_RANGE.0, TRIM_RANGE.1);
        }
        let factor = self.trim * (1.0 + GAIN * error);
        let allowed_bps = capacity_bps * factor.clamp(FACTOR_RANGE.0, FACTOR_RANGE.1);
        self.intake.bytes += intake.bytes;
        self.intake.was_empty |= intake.was_empty;
        let elapsed_ns = now_ns.saturating_sub(self.judged_at_ns);
        if elapsed_ns >= JUDGE_NS {
            let taken_bps = self.intake.bytes as f64 * 8e9 / elapsed_ns as f64;
            let best_bps = self.best.note(now_ns, taken_bps);
            self.limit_bps = if self.intake.was_empty {
                self.limit_bps * RELEASE
            } else {
                (taken_bps * DRAIN_SHARE).max(best_bps * BEST_SHARE)
            };
            (self.judged_at_ns, self.intake) = (now_ns, Intake::default());
        }
        allowed_bps.min(self.limit_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Intake = Intake {
        bytes: 0,
        frames: 0,
        was_empty: true,
    };

    /// Runs a saturating host against a link of 2 Gb/s whose estimated rate is `estimate` times the
    /// real one. Returns the mean backlog in ns and the share of the link used, over the second
    /// half.
    fn run(estimate: f64) -> (f64, f64) {
        let (mut pressure, mut backlog_ns) = (Pressure::default(), 0f64);
        let (mut sum, mut used) = (0.0, 0.0);
        for step in 0..2000u64 {
            let rate = pressure.adjust(step * PERIOD_NS, 2e9 * estimate, backlog_ns, EMPTY);
            let inflow_ns = rate / 2e9 * PERIOD_NS as f64;
            let outflow_ns = (backlog_ns + inflow_ns).min(PERIOD_NS as f64);
            backlog_ns += inflow_ns - outflow_ns;
            if step >= 1000 {
                sum += backlog_ns;
                used += outflow_ns;
            }
        }
        (sum / 1000.0, used / 1000.0 / PERIOD_NS as f64)
    }

    #[test]
    fn pressure__capacity_estimate_off_by_20_percent__fills_the_link_with_a_short_queue() {
        for estimate in [0.85, 1.0, 1.2] {
            let (backlog_ns, used) = run(estimate);
            assert!(
                used > 0.995,
                "estimate × {estimate}: {used} of the link used"
            );
            assert!(
                backlog_ns < 2.0 * TARGET_NS,
                "estimate × {estimate}: {backlog_ns} ns waiting"
            );
        }
    }

    #[test]
    fn pressure__after_a_host_stall__reaches_the_full_rate_within_100_ms() {
        let mut pressure = Pressure::default();
        let intake = |bps: f64, was_empty| Intake {
            bytes: (bps / 8e9 * PERIOD_NS as f64) as u64,
            frames: 1,
            was_empty,
        };
        for step in 1..200 {
            pressure.adjust(step * PERIOD_NS, 2e9, 1e6, intake(1.9e9, true));
        }
        for step in 200..215 {
            pressure.adjust(step * PERIOD_NS, 2e9, 1e6, intake(4e7, false));
        }
        let rate_bps = (215..265)
            .map(|step| pressure.adjust(step * PERIOD_NS, 2e9, 1e6, intake(1.9e9, true)))
            .last();
        assert!(rate_bps.unwrap() > 1.8e9, "100 ms later: {rate_bps:?}");
    }

    #[test]
    fn pressure__frames_wait_while_links_are_idle__follows_the_intake_rate() {
        let mut pressure = Pressure::default();
        let intake_bytes = (1.2e9 / 8e9 * PERIOD_NS as f64) as u64;
        let intake = Intake {
            bytes: intake_bytes,
            frames: intake_bytes / 65_000 + 1,
            was_empty: false,
        };
        let slow = (1..200)
            .map(|step| pressure.adjust(step * PERIOD_NS, 2e9, 0.0, intake))
            .last();
        assert!((1.0e9..1.2e9).contains(&slow.unwrap()), "{slow:?}");
        let free = (200..400)
            .map(|step| pressure.adjust(step * PERIOD_NS, 2e9, 0.0, EMPTY))
            .last();
        assert!(free.unwrap() > 2e9, "{free:?}");
    }
}
