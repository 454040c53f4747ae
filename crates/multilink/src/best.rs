//! The highest rate of late: what a rate that has just been measured must be compared with before it
//! limits anything. A machine that stands still for 50 ms reads as a slow one; a controller that
//! believes it takes longer to recover than the machine.

/// "Of late" is the span that runs and the one before it, each this long.
const SPAN_NS: u64 = 1_000_000_000;

/// The most seen in the running and in the last span.
#[derive(Debug, Clone, Default)]
pub struct Best {
    began_ns: u64,
    running_bps: f64,
    last_bps: f64,
}

impl Best {
    /// A rate was measured; gives the highest of late.
    pub fn note(&mut self, now_ns: u64, rate_bps: f64) -> f64 {
        if now_ns.saturating_sub(self.began_ns) > SPAN_NS {
            *self = Self {
                began_ns: now_ns,
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
    fn best__high_rate__is_remembered_for_one_span_to_two() {
        let mut best = Best::default();
        assert_eq!(best.note(SPAN_NS / 2, 2e9), 2e9);
        assert_eq!(best.note(SPAN_NS + 1, 1e6), 2e9);
        assert_eq!(best.note(2 * SPAN_NS, 1e6), 2e9);
        assert_eq!(best.note(2 * SPAN_NS + 2, 1e6), 1e6);
    }
}
