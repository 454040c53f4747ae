//! Processor time that the machine's hypervisor gave to others: a run that lost some is void.

use std::fs;

/// Share of the machine's processor time that may be stolen during a run. A rate of two shaped
/// links needs about half of this machine: a twentieth less does not show, a tenth does.
const STOLEN_RATIO_MAX: f64 = 0.05;

/// Reads the kernel's count of stolen time, run by run.
#[derive(Debug)]
pub struct Steal {
    last: Ticks,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Steal {
    /// From now on.
    pub fn begin() -> Self {
        Self { last: Ticks::now() }
    }

    /// Why the time since the last call is void, if it is.
    pub fn reason_since_last(&mut self) -> Option<String> {
        let now = Ticks::now();
        let last = std::mem::replace(&mut self.last, now);
        let all = now.all.saturating_sub(last.all).max(1);
        let ratio = now.stolen.saturating_sub(last.stolen) as f64 / all as f64;
        let (percent, percent_max) = (ratio * 100.0, STOLEN_RATIO_MAX * 100.0);
        (ratio > STOLEN_RATIO_MAX).then(|| {
            format!("{percent:.1} % of the processor time was stolen (at most {percent_max} %)")
        })
    }
}

impl Ticks {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|text| text.parse().ok())
            .collect();
        Self {
            all: fields.iter().take(8).sum(),
            stolen: fields.get(7).copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks__stat_line__gives_the_eighth_field() {
        let ticks = Ticks::parse("cpu  10 0 20 60 0 1 2 7 5 0\ncpu0 1 1 1 1\n");
        assert_eq!(
            ticks,
            Ticks {
                all: 100,
                stolen: 7
            }
        );
    }
}
