//! Splits the units of a frame over the links so that the last unit arrives as early as possible.
//!
//! Each link would deliver its first new byte at `ready`, the time for its backlog plus its delay,
//! and then continue at its rate. All links that are used finish at one time F, which is the split
//! with the earliest last unit:
//!
//! ```text
//! F       = (B + Σ ready_i · rate_i) / Σ rate_i       over the links with ready_i < F
//! units_i = (F − ready_i) · rate_i / U
//!
//! B  bytes of the frame
//! U  bytes of a unit
//! ready_i  as above, in ns, with LINK_COST_NS for each link before this one
//! rate_i   in bytes per ns
//! ```
//!
//! Links of different rates therefore add up, and a short message uses every link that makes it
//! faster. The device is never slower than its best link, apart from `LINK_COST_NS`. The round
//! robin of RI2N/DRV (§4.3) can be slower than that.

use crate::wire::LINKS_MAX;

/// Cost of one more link for a frame, in ns: a system call here, and a wake-up and another system
/// call at the receiver. A message that takes no longer than this on one link stays on it.
const LINK_COST_NS: f64 = 4_000.0;

/// Least bytes of a run in bulk traffic. One run for each of eight links would cost eight system
/// calls and gain nothing.
const RUN_BYTES: usize = 16_000;
/// Largest pause between frames of bulk traffic, in ns. Frames this close are bulk even if the
/// links are not full: a processor that sends too many short runs never fills them. Eight links
/// carried 1350 Mb/s in that state and 1800 otherwise (`docs/perf-log.md`, 2026-11-22: eight
/// links).
const BULK_PAUSE_NS: u64 = 200_000;
/// Least number of links for a frame of bulk traffic while the links are not full: TCP hands over a
/// message in several frames. With one link a message of 64 KB took 400 µs instead of 275 to 350
/// (same entry).
const LINKS_LEAST: usize = 2;

/// Returns the number of links that a frame of `bytes` should use. `pause_ns` is the time since the
/// peer's last data unit, sent or received. `is_saturated`: the links are full.
pub fn links_worth(bytes: usize, pause_ns: u64, is_saturated: bool) -> usize {
    let runs_max = bytes / RUN_BYTES;
    if is_saturated {
        runs_max.max(1)
    } else if pause_ns < BULK_PAUSE_NS {
        runs_max.max(LINKS_LEAST)
    } else {
        LINKS_MAX
    }
}

/// A link that may carry units: a candidate of the split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Number of the link.
    pub link: u8,
    /// Time until the link's first new byte would arrive, in ns.
    pub ready_ns: f64,
    /// Rate of the link, in bytes per ns.
    pub rate: f64,
}

impl Candidate {
    /// Placeholder in a table that is not filled yet.
    pub const NONE: Self = Self {
        link: 0,
        ready_ns: 0.0,
        rate: 0.0,
    };
}

/// Consecutive units for one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of the link.
    pub link: u8,
    /// Number of units.
    pub units: usize,
}

/// Splits `units` of `unit_bytes` each over at most `links_max` of the `candidates`, which
/// it sorts. The runs are in the order in which their links are ready, so that units arrive nearly
/// in order. Without candidates there are no runs.
pub fn split(
    candidates: &mut [Candidate],
    units: usize,
    unit_bytes: usize,
    links_max: usize,
) -> impl Iterator<Item = Run> {
    debug_assert!(candidates.len() <= LINKS_MAX);
    let mut runs = [Run { link: 0, units: 0 }; LINKS_MAX];
    candidates.sort_unstable_by(|a, b| a.ready_ns.total_cmp(&b.ready_ns));
    let used = if units <= 1 || candidates.len().min(links_max) <= 1 {
        assign_to_soonest(candidates, units, unit_bytes, &mut runs)
    } else {
        let used = candidates.len().min(links_max);
        fill(&candidates[..used], units, unit_bytes, &mut runs)
    };
    runs.into_iter().take(used).filter(|run| run.units > 0)
}

/// Assigns all units to the link that finishes them first.
fn assign_to_soonest(
    candidates: &[Candidate],
    units: usize,
    unit_bytes: usize,
    runs: &mut [Run; LINKS_MAX],
) -> usize {
    let finish =
        |candidate: &Candidate| candidate.ready_ns + (units * unit_bytes) as f64 / candidate.rate;
    let soonest_ns = candidates.iter().map(finish).fold(f64::INFINITY, f64::min);
    // Takes the lowest-numbered link of those within `LINK_COST_NS`: successive messages then use
    // the same link.
    let is_good = |candidate: &&Candidate| finish(candidate) <= soonest_ns + LINK_COST_NS;
    let best = candidates
        .iter()
        .filter(is_good)
        .min_by_key(|candidate| candidate.link);
    best.map_or(0, |best| {
        runs[0] = Run {
            link: best.link,
            units,
        };
        1
    })
}

fn fill(
    candidates: &[Candidate],
    units: usize,
    unit_bytes: usize,
    runs: &mut [Run; LINKS_MAX],
) -> usize {
    let bytes = (units * unit_bytes) as f64;
    // Computes the finishing time of the k links that are ready first, for the largest k whose last
    // link helps.
    let (mut rate, mut credit, mut used, mut finish) = (0.0, 0.0, 0, f64::INFINITY);
    for candidate in candidates {
        let cost_ns = used as f64 * LINK_COST_NS;
        if candidate.ready_ns + cost_ns >= finish {
            break;
        }
        rate += candidate.rate;
        credit += (candidate.ready_ns + cost_ns) * candidate.rate;
        finish = (bytes + credit) / rate;
        used += 1;
    }
    let mut remaining = units;
    for (index, (run, candidate)) in runs.iter_mut().zip(&candidates[..used]).enumerate() {
        let ready_ns = candidate.ready_ns + index as f64 * LINK_COST_NS;
        let share = (finish - ready_ns).max(0.0) * candidate.rate / unit_bytes as f64;
        run.link = candidate.link;
        run.units = (share as usize).min(remaining);
        remaining -= run.units;
    }
    // Rounding leaves some units over. Each goes to the link that finishes it first.
    for _ in 0..remaining {
        let next_finish = |index: &usize| {
            let bytes = ((runs[*index].units + 1) * unit_bytes) as f64;
            candidates[*index].ready_ns + bytes / candidates[*index].rate
        };
        let index = (0..used)
            .min_by(|a, b| next_finish(a).total_cmp(&next_finish(b)))
            .expect("used is at least 1");
        runs[index].units += 1;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIGABIT: f64 = 0.125;

    fn candidate(link: u8, ready_ns: f64, rate: f64) -> Candidate {
        Candidate {
            link,
            ready_ns,
            rate,
        }
    }

    #[test]
    fn links_worth__bulk_or_saturated__uses_long_runs_and_a_lone_message_uses_all_links() {
        assert_eq!(links_worth(64_000, 5_000_000, false), LINKS_MAX);
        assert_eq!(links_worth(64_000, 50_000, false), 4);
        assert_eq!(links_worth(16_000, 50_000, false), 2);
        assert_eq!(links_worth(64_000, 5_000_000, true), 4);
        assert_eq!(links_worth(4_000, 50_000, true), 1);
    }

    #[test]
    fn split__two_equal_idle_links__get_half_each() {
        let mut candidates = [candidate(0, 0.0, GIGABIT), candidate(1, 0.0, GIGABIT)];
        let runs: Vec<Run> = split(&mut candidates, 12, 1500, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 6 }, Run { link: 1, units: 6 }]);
    }

    #[test]
    fn split__link_limit_below_the_link_count__uses_the_earliest_ready_links() {
        let mut candidates =
            [0, 1, 2].map(|link| candidate(link, f64::from(2 - link) * 1e5, GIGABIT));
        let runs: Vec<Run> = split(&mut candidates, 44, 1500, 2).collect();
        assert_eq!(runs.iter().map(|run| run.units).sum::<usize>(), 44);
        assert_eq!(runs.iter().map(|run| run.link).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn split__unequal_links__get_units_in_proportion_to_rate() {
        let mut candidates = [candidate(0, 0.0, GIGABIT), candidate(1, 0.0, GIGABIT * 0.3)];
        let runs: Vec<Run> = split(&mut candidates, 130, 1500, 8).collect();
        assert_eq!(
            runs,
            [
                Run {
                    link: 0,
                    units: 100
                },
                Run { link: 1, units: 30 }
            ]
        );
    }

    #[test]
    fn split__message_too_short_to_pay_for_a_second_link__uses_one_link() {
        let mut candidates = [
            candidate(1, 300.0, 10.0 * GIGABIT),
            candidate(0, 900.0, 10.0 * GIGABIT),
        ];
        let runs: Vec<Run> = split(&mut candidates, 1, 200, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 1 }]);
        let runs: Vec<Run> = split(&mut candidates, 3, 1400, 8).collect();
        assert_eq!(runs, [Run { link: 1, units: 3 }]);
    }

    #[test]
    fn split__link_that_would_finish_last__is_not_used() {
        let mut candidates = [candidate(0, 0.0, GIGABIT), candidate(1, 20e6, GIGABIT)];
        let runs: Vec<Run> = split(&mut candidates, 40, 1500, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 40 }]);
    }

    #[test]
    fn split__no_links__returns_no_runs() {
        assert_eq!(split(&mut [], 5, 1500, 8).count(), 0);
    }

    proptest! {
        #[test]
        fn split__any_links__carries_every_unit_and_is_never_slower_than_the_best_link(
            links in proptest::collection::vec((0.0..5e6f64, 0.001..1.5f64), 1..8),
            units in 1usize..64,
        ) {
            let mut candidates: Vec<Candidate> = links.iter().enumerate()
                .map(|(link, (ready, rate))| candidate(link as u8, *ready, *rate)).collect();
            let runs: Vec<Run> = split(&mut candidates, units, 1420, 8).collect();
            prop_assert_eq!(runs.iter().map(|run| run.units).sum::<usize>(), units);
            let finish = |link: u8, units: usize| {
                let (ready, rate) = links[usize::from(link)];
                ready + (units * 1420) as f64 / rate
            };
            let slowest = runs.iter().map(|run| finish(run.link, run.units)).fold(0.0, f64::max);
            let best = (0..links.len()).map(|link| finish(link as u8, units))
                .fold(f64::INFINITY, f64::min);
            // A message may stay on the link of the one before.
            let most = best * 1.0001 + LINK_COST_NS + 1.0;
            prop_assert!(slowest <= most, "{slowest} after {best}");
        }
    }
}
