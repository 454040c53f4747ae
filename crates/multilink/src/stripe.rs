//! Which link carries which units of a frame: the split that makes the frame arrive soonest.
//!
//! Each link would deliver its first new byte at `ready` (what is queued before it, plus its
//! delay) and then at its rate. Filling all links to one finishing time, like water into joined
//! vessels, is the split with the earliest last unit; a link whose `ready` is later than that time
//! gets nothing. So unequal links add up, a short message uses every link that helps it, and the
//! device is never slower than its best link (unlike the paper's round robin, §4.3).

use crate::wire::LINKS_MAX;

/// What one more link costs a frame: a system call here, and a wake-up and another there. A message
/// that takes no longer than that on one link stays on it.
const LINK_COST_NS: f64 = 4_000.0;

/// In bulk a frame is cut into runs of at least so many bytes: one for each of eight links would cost eight
/// system calls, and win nothing.
const RUN_BYTES: usize = 16_000;
/// Frames that follow each other so quickly are bulk, whether they fill the links or a processor that
/// sends too many short runs (eight links carried 1350 Mb/s and were never full, or 1800 and were).
const BULK_PAUSE_NS: u64 = 200_000;
/// Yet a message that comes in pieces is worth so many links as long as they are not full.
const LINKS_LEAST: usize = 2;

/// How many links a frame of `bytes` is worth that comes `pause_ns` after the last.
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

/// One link, as the split sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vessel {
    /// The link's number.
    pub link: u8,
    /// When its first new byte would arrive, in ns from now.
    pub ready_ns: f64,
    /// Its rate, in bytes per ns.
    pub rate: f64,
}

impl Vessel {
    /// Fills a table of vessels before they are known.
    pub const NONE: Self = Self {
        link: 0,
        ready_ns: 0.0,
        rate: 0.0,
    };
}

/// Consecutive units for one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The link's number.
    pub link: u8,
    /// How many units.
    pub units: usize,
}

/// Splits `units` of `unit_bytes` each over `vessels` (sorted by this function), at most `links_max`
/// of them. The runs come in
/// the order their links are ready, so that units arrive about in order. Nothing if there are no
/// vessels.
pub fn split(
    vessels: &mut [Vessel],
    units: usize,
    unit_bytes: usize,
    links_max: usize,
) -> impl Iterator<Item = Run> {
    debug_assert!(vessels.len() <= LINKS_MAX);
    let mut runs = [Run { link: 0, units: 0 }; LINKS_MAX];
    vessels.sort_unstable_by(|a, b| a.ready_ns.total_cmp(&b.ready_ns));
    let used = if units <= 1 || vessels.len().min(links_max) <= 1 {
        soonest(vessels, units, unit_bytes, &mut runs)
    } else {
        let used = vessels.len().min(links_max);
        fill(&vessels[..used], units, unit_bytes, &mut runs)
    };
    runs.into_iter().take(used).filter(|run| run.units > 0)
}

/// All units to the link that finishes them first.
fn soonest(
    vessels: &[Vessel],
    units: usize,
    unit_bytes: usize,
    runs: &mut [Run; LINKS_MAX],
) -> usize {
    let finish = |vessel: &Vessel| vessel.ready_ns + (units * unit_bytes) as f64 / vessel.rate;
    let soonest_ns = vessels.iter().map(finish).fold(f64::INFINITY, f64::min);
    // The first of those that are as good: messages that follow each other stay in one place.
    let good = |vessel: &&Vessel| finish(vessel) <= soonest_ns + LINK_COST_NS;
    let best = vessels.iter().filter(good).min_by_key(|vessel| vessel.link);
    best.map_or(0, |best| {
        runs[0] = Run {
            link: best.link,
            units,
        };
        1
    })
}

fn fill(vessels: &[Vessel], units: usize, unit_bytes: usize, runs: &mut [Run; LINKS_MAX]) -> usize {
    let bytes = (units * unit_bytes) as f64;
    // The finishing time over the k first-ready links, for the largest k whose last link helps.
    let (mut rate, mut credit, mut used, mut finish) = (0.0, 0.0, 0, f64::INFINITY);
    for vessel in vessels {
        let cost_ns = used as f64 * LINK_COST_NS;
        if vessel.ready_ns + cost_ns >= finish {
            break;
        }
        rate += vessel.rate;
        credit += (vessel.ready_ns + cost_ns) * vessel.rate;
        finish = (bytes + credit) / rate;
        used += 1;
    }
    let mut left = units;
    for (at, (run, vessel)) in runs.iter_mut().zip(&vessels[..used]).enumerate() {
        let ready_ns = vessel.ready_ns + at as f64 * LINK_COST_NS;
        let share = (finish - ready_ns).max(0.0) * vessel.rate / unit_bytes as f64;
        run.link = vessel.link;
        run.units = (share as usize).min(left);
        left -= run.units;
    }
    // The units that rounding left over go, one by one, where they finish first.
    for _ in 0..left {
        let next = |at: &usize| {
            let bytes = ((runs[*at].units + 1) * unit_bytes) as f64;
            vessels[*at].ready_ns + bytes / vessels[*at].rate
        };
        let at = (0..used)
            .min_by(|a, b| next(a).total_cmp(&next(b)))
            .expect("used is at least 1");
        runs[at].units += 1;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIGABIT: f64 = 0.125;

    fn vessel(link: u8, ready_ns: f64, rate: f64) -> Vessel {
        Vessel {
            link,
            ready_ns,
            rate,
        }
    }

    #[test]
    fn links_worth__bulk__is_cut_into_long_runs_and_a_lone_message_into_all() {
        assert_eq!(links_worth(64_000, 5_000_000, false), LINKS_MAX);
        assert_eq!(links_worth(64_000, 50_000, false), 4);
        assert_eq!(links_worth(16_000, 50_000, false), 2);
        assert_eq!(links_worth(64_000, 5_000_000, true), 4);
        assert_eq!(links_worth(4_000, 50_000, true), 1);
    }

    #[test]
    fn split__two_equal_idle_links__is_half_and_half() {
        let mut vessels = [vessel(0, 0.0, GIGABIT), vessel(1, 0.0, GIGABIT)];
        let runs: Vec<Run> = split(&mut vessels, 12, 1500, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 6 }, Run { link: 1, units: 6 }]);
    }

    #[test]
    fn split__fewer_links_than_there_are__takes_those_that_are_ready_first() {
        let mut vessels = [0, 1, 2].map(|link| vessel(link, f64::from(2 - link) * 1e5, GIGABIT));
        let runs: Vec<Run> = split(&mut vessels, 44, 1500, 2).collect();
        assert_eq!(runs.iter().map(|run| run.units).sum::<usize>(), 44);
        assert_eq!(runs.iter().map(|run| run.link).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn split__unequal_links__follow_their_rates() {
        let mut vessels = [vessel(0, 0.0, GIGABIT), vessel(1, 0.0, GIGABIT * 0.3)];
        let runs: Vec<Run> = split(&mut vessels, 130, 1500, 8).collect();
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
    fn split__message_shorter_than_the_cost_of_a_link__stays_on_the_first() {
        let mut vessels = [
            vessel(1, 300.0, 10.0 * GIGABIT),
            vessel(0, 900.0, 10.0 * GIGABIT),
        ];
        let runs: Vec<Run> = split(&mut vessels, 1, 200, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 1 }]);
        let runs: Vec<Run> = split(&mut vessels, 3, 1400, 8).collect();
        assert_eq!(runs, [Run { link: 1, units: 3 }]);
    }

    #[test]
    fn split__slow_link_that_would_finish_last__is_left_out() {
        let mut vessels = [vessel(0, 0.0, GIGABIT), vessel(1, 20e6, GIGABIT)];
        let runs: Vec<Run> = split(&mut vessels, 40, 1500, 8).collect();
        assert_eq!(runs, [Run { link: 0, units: 40 }]);
    }

    #[test]
    fn split__no_links__is_nothing() {
        assert_eq!(split(&mut [], 5, 1500, 8).count(), 0);
    }

    proptest! {
        #[test]
        fn split__any_links__carries_every_unit_and_is_never_slower_than_the_best_link(
            links in proptest::collection::vec((0.0..5e6f64, 0.001..1.5f64), 1..8),
            units in 1usize..64,
        ) {
            let mut vessels: Vec<Vessel> = links.iter().enumerate()
                .map(|(link, (ready, rate))| vessel(link as u8, *ready, *rate)).collect();
            let runs: Vec<Run> = split(&mut vessels, units, 1420, 8).collect();
            prop_assert_eq!(runs.iter().map(|run| run.units).sum::<usize>(), units);
            let finish = |link: u8, units: usize| {
                let (ready, rate) = links[usize::from(link)];
                ready + (units * 1420) as f64 / rate
            };
            let slowest = runs.iter().map(|run| finish(run.link, run.units)).fold(0.0, f64::max);
            let best = (0..links.len()).map(|link| finish(link as u8, units))
                .fold(f64::INFINITY, f64::min);
            // A message may stay where the last one went.
            let most = best * 1.0001 + LINK_COST_NS + 1.0;
            prop_assert!(slowest <= most, "{slowest} after {best}");
        }
    }
}
