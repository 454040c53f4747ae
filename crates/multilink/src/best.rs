//! Highest recent rate, as a lower bound for limits derived from a fresh measurement.
//!
//! A machine that stops for 50 ms measures as a slow one. A controller that trusts such a sample
//! takes longer to recover than the machine (`docs/perf-log.md`, 2026-11-22).

/// Length of a span, in ns. The maximum covers the current span and the one before.
const SPAN_NS: u64 = 1_000_000_000;

/// Maximum over the current and the previous span.
#[derive(Debug, Clone, Default)]
pub struct Best {
    start_ns: u64,
    running_bps: f64,
    last_bps: f64,
}

impl Best {
    /// Records a measured rate, in bits per second. Returns the highest recent one.
    pub fn note(&mut self, now_ns: u64, rate_bps: f64) -> f64 {
        if now_ns.saturating_sub(self.start_ns) > SPAN_NS {
            *self = Self {
                start_ns: now_ns,
                running_bps: 0.0,
                last_bps: self.running_bps,
            };
        }
        self.running_bps = self.running_bps.max(rate_bps);
        self.running_bps.max(self.last_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best__high_rate__is_remembered_for_one_to_two_spans() {
        let mut best = Best::default();
        assert_eq!(best.note(SPAN_NS / 2, 2e9), 2e9);
        assert_eq!(best.note(SPAN_NS + 1, 1e6), 2e9);
        assert_eq!(best.note(2 * SPAN_NS, 1e6), 2e9);
        assert_eq!(best.note(2 * SPAN_NS + 2, 1e6), 1e6);
    }
}
