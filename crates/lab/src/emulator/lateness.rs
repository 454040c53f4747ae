//! Lateness of the emulator, in a histogram of fixed size and negligible cost.

use serde::{Deserialize, Serialize};

/// Buckets per octave, for a resolution of 1/16 (6 %).
const STEPS: usize = 16;

/// Number of groups of `STEPS` buckets. The first covers 0 to 15 ns, each further one an octave.
/// The last ends at 2^39 ns (9 minutes).
const OCTAVES: usize = 36;

/// Histogram of times with a resolution of 6 %.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; STEPS * OCTAVES],
            total: 0,
            max_ns: 0,
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize - STEPS.ilog2() as usize;
    let step = (ns >> octave) as usize - STEPS;
    ((octave + 1) * STEPS + step).min(STEPS * OCTAVES - 1)
}

fn lower_ns(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    ((STEPS + bucket % STEPS) as u64) << (bucket / STEPS - 1)
}

impl Histogram {
    /// Counts a time of `ns` nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the time, in nanoseconds, that a share `q` of all times does not exceed (to 6 %).
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = (q * self.total as f64).ceil() as u64;
        let mut cumulative = 0;
        for (index, count) in self.counts.iter().enumerate() {
            cumulative += count;
            if cumulative >= rank.max(1) {
                return lower_ns(index + 1).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// Lateness of the frames that the emulator delivered to hosts, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of frames counted.
    pub events: u64,
    /// Median lateness.
    pub p50_us: f64,
    /// 99th percentile, which the validity rule uses.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest lateness.
    pub max_us: f64,
}

impl From<&Histogram> for Lateness {
    fn from(histogram: &Histogram) -> Self {
        let us = |q| histogram.quantile_ns(q) as f64 / 1000.0;
        Self {
            events: histogram.total,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: histogram.max_ns as f64 / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile__known_distribution__is_within_7_percent() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|ns| histogram.record(ns));
        for q in [0.5, 0.99, 0.999] {
            let error = histogram.quantile_ns(q) as f64 / (q * 100_000.0) - 1.0;
            assert!(error.abs() < 0.07, "{q}: {error}");
        }
    }

    #[test]
    fn bucket__every_lower_bound__is_in_its_own_bucket() {
        for index in 0..STEPS * 30 {
            assert_eq!(bucket(lower_ns(index)), index);
        }
    }
}
