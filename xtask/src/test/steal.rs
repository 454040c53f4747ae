//! Share of the processors that the hypervisor took, while tests ran.
//!
//! A test that compares rates or times fails if the machine does not have its processors. Such a
//! verdict says nothing about the code, as a run of a bench plan that is void (ADR 005).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Largest share that a verdict allows. A third of what a run of a bench plan allows (`STEAL_MAX`
/// of crates/lab): with 2 % of each processor taken in slices of 4 ms, tests that judge half a
/// second of a stream failed in 2 of 4 runs (docs/perf-log.md, 2026-11-29).
pub const SHARE_MAX: f64 = 0.01;

/// Time over which the share counts: that of the shortest stream whose rate a test judges.
const PERIOD: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(250);

/// Ticks of all processors since boot.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    at: Instant,
    stolen: u64,
    total: u64,
}

/// Observation of the processors, until the process ends.
pub struct Watch(Arc<Mutex<Vec<Sample>>>);

impl Watch {
    /// Begins the observation.
    pub fn start() -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&samples);
        std::thread::spawn(move || {
            loop {
                let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
                let Some((stolen, total)) = parse(&text) else {
                    return;
                };
                let at = Instant::now();
                let sample = Sample { at, stolen, total };
                shared.lock().expect("no panic").push(sample);
                std::thread::sleep(INTERVAL);
            }
        });
        Self(samples)
    }

    /// Returns the largest share of any [`PERIOD`] since `began`. A test that was shorter counts
    /// with the time before it.
    pub fn largest_share(&self, began: Instant) -> f64 {
        largest_share(&self.0.lock().expect("no panic"), began)
    }
}

fn largest_share(samples: &[Sample], began: Instant) -> f64 {
    let mut largest: f64 = 0.0;
    let mut first = 0;
    for last in samples {
        while samples[first].at + PERIOD < last.at {
            first += 1;
        }
        // Shares of shorter periods at the beginning would be those of single ticks.
        let first = samples[first.saturating_sub(1)];
        let ticks = last.total.saturating_sub(first.total);
        if last.at >= began && ticks > 0 && last.at >= first.at + PERIOD {
            let stolen = last.stolen.saturating_sub(first.stolen);
            largest = largest.max(stolen as f64 / ticks as f64);
        }
    }
    largest
}

/// Returns the stolen ticks and all ticks of `/proc/stat`: the fields user nice system idle iowait
/// irq softirq steal of proc(5). Guest time is part of user time.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = fields
        .split_ascii_whitespace()
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    Some((*ticks.get(7)?, ticks.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse__proc_stat__has_the_stolen_and_all_ticks() {
        let stat = "cpu  10 1 20 400 3 0 5 61 7 0\ncpu0 5 0 10 200 1 0 2 30 3 0\n";
        assert_eq!(parse(stat), Some((61, 500)));
        assert_eq!(parse("cpu  10 1\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn largest_share__ticks_stolen_before_the_test__do_not_count() {
        let start = Instant::now();
        // 200 ticks a second; 20 of them are stolen in the third second, 12 in the tenth.
        let sample = |quarter: u64| Sample {
            at: start + quarter as u32 * INTERVAL,
            stolen: (quarter.clamp(8, 12) - 8) * 5 + (quarter.clamp(36, 40) - 36) * 3,
            total: 50 * quarter,
        };
        let samples: Vec<Sample> = (0..60).map(sample).collect();
        let share = |seconds| largest_share(&samples, start + Duration::from_secs(seconds));
        assert!((share(0) - 20.0 / 600.0).abs() < 0.004, "{}", share(0));
        assert!((share(7) - 12.0 / 600.0).abs() < 0.004, "{}", share(7));
        assert_eq!(share(14), 0.0);
        assert_eq!(share(60), 0.0);
        assert_eq!(largest_share(&[], start), 0.0);
    }
}
