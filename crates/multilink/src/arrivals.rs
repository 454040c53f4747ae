//! Packets received on one of a peer's links, and the missing ones that later packets overtook.

use crate::replay::ReplayWindow;
use std::collections::VecDeque;

/// Later packets after which a missing one counts as lost, unless [`OVERTAKEN_NS`] passes first.
/// Links are first-in first-out, but a switch that hashes, or a host that steers packets to several
/// CPUs, may swap neighbours.
const OVERTAKEN_PACKETS: u64 = 3;
/// Time after which a missing packet counts as lost, however few arrived after it, in ns.
const OVERTAKEN_NS: u64 = 1_000_000;
/// Reports that name a missing run, so that the loss of one report loses no repair.
const REPEATS: u8 = 3;
/// Missing runs that are remembered. A link with more of them within a few reports is not worth
/// repairs.
const GAPS_MAX: usize = 128;

#[derive(Debug, Clone, Copy)]
struct Gap {
    first: u64,
    end: u64,
    opened_at_ns: u64,
    /// Arrival time of the packet before the gap; 0 if the gap is at the very start.
    previous_at_ns: u64,
    report_count: u8,
}

/// Packets received on one link under one session.
#[derive(Debug, Default)]
pub struct Arrivals {
    replay: ReplayWindow,
    received: u32,
    gaps: VecDeque<Gap>,
    newest_at_ns: u64,
}

impl Arrivals {
    /// Returns one past the highest number accepted. The 32 bits of a packet's number are extended
    /// to the value nearest to it.
    pub fn next(&self) -> u64 {
        self.replay.next()
    }

    /// Returns whether the number may still be accepted.
    pub fn is_fresh(&self, seq: u64) -> bool {
        self.replay.is_fresh(seq)
    }

    /// Returns the number of packets received, modulo 2³².
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Returns whether any packet has been received.
    pub fn has_packets(&self) -> bool {
        self.received > 0
    }

    /// Accepts an authenticated packet. Returns whether it leaves a gap before it.
    pub fn accept(&mut self, seq: u64, now_ns: u64) -> bool {
        let next = self.replay.next();
        self.replay.accept(seq);
        self.received = self.received.wrapping_add(1);
        if seq < next {
            self.fill(seq, now_ns);
            return false;
        }
        let previous_at_ns = std::mem::replace(&mut self.newest_at_ns, now_ns);
        if seq == next {
            return false;
        }
        if self.gaps.len() == GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(Gap {
            first: next,
            end: seq,
            opened_at_ns: now_ns,
            previous_at_ns,
            report_count: 0,
        });
        true
    }

    /// Removes a late packet from its gap.
    fn fill(&mut self, seq: u64, now_ns: u64) {
        let Some(index) = self
            .gaps
            .iter()
            .position(|gap| (gap.first..gap.end).contains(&seq))
        else {
            return;
        };
        let gap = self.gaps[index];
        let (lower, upper) = (
            Gap { end: seq, ..gap },
            Gap {
                first: seq + 1,
                previous_at_ns: now_ns,
                ..gap
            },
        );
        match (lower.first < lower.end, upper.first < upper.end) {
            (true, true) => {
                self.gaps[index] = lower;
                self.gaps.insert(index + 1, upper);
            }
            (true, false) => self.gaps[index] = lower,
            (false, true) => self.gaps[index] = upper,
            (false, false) => {
                self.gaps.remove(index);
            }
        }
    }

    fn is_decided(&self, gap: &Gap, now_ns: u64) -> bool {
        self.replay.next() >= gap.end + OVERTAKEN_PACKETS
            || now_ns >= gap.opened_at_ns + OVERTAKEN_NS
    }

    /// Produces the contents of a report. Returns one past the number up to which every packet is
    /// decided, and the time since the last of them arrived, in ns.
    ///
    /// Each run to name is passed to `missing` and counted as named. A run that `missing` rejects
    /// for lack of space is left for the next report, and so is everything after it.
    pub fn report(&mut self, now_ns: u64, mut missing: impl FnMut(u64, u16) -> bool) -> (u64, u64) {
        let (mut decided, mut arrived_at_ns) = (self.replay.next(), self.newest_at_ns);
        for index in 0..self.gaps.len() {
            let gap = self.gaps[index];
            let count = (gap.end - gap.first).min(u64::from(u16::MAX)) as u16;
            if !self.is_decided(&gap, now_ns) || !missing(gap.first, count) {
                (decided, arrived_at_ns) = (gap.first, gap.previous_at_ns);
                break;
            }
            self.gaps[index].report_count += 1;
        }
        self.gaps.retain(|gap| gap.report_count < REPEATS);
        (decided, now_ns.saturating_sub(arrived_at_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(arrivals: &mut Arrivals, now_ns: u64) -> (u64, Vec<(u64, u16)>) {
        let mut runs = Vec::new();
        let (decided, _) = arrivals.report(now_ns, |first, count| {
            runs.push((first, count));
            true
        });
        (decided, runs)
    }

    #[test]
    fn arrivals__packet_overtaken_by_three__is_reported_missing_three_times() {
        let mut arrivals = Arrivals::default();
        for seq in [0, 1, 4, 5] {
            arrivals.accept(seq, 0);
        }
        assert_eq!(
            report(&mut arrivals, 0),
            (2, vec![]),
            "2 and 3 may only be late"
        );
        arrivals.accept(6, 0);
        for _ in 0..3 {
            assert_eq!(report(&mut arrivals, 0), (7, vec![(2, 2)]));
        }
        assert_eq!(report(&mut arrivals, 0), (7, vec![]));
    }

    #[test]
    fn arrivals__late_packet__closes_its_part_of_the_gap() {
        let mut arrivals = Arrivals::default();
        arrivals.accept(0, 0);
        arrivals.accept(5, 0);
        arrivals.accept(3, 0);
        assert_eq!(
            report(&mut arrivals, OVERTAKEN_NS),
            (6, vec![(1, 2), (4, 1)])
        );
        assert!(!arrivals.is_fresh(3));
    }

    #[test]
    fn arrivals__gap_at_the_tail__is_declared_lost_after_one_millisecond() {
        let mut arrivals = Arrivals::default();
        arrivals.accept(0, 0);
        arrivals.accept(2, 0);
        assert_eq!(report(&mut arrivals, OVERTAKEN_NS - 1), (1, vec![]));
        assert_eq!(report(&mut arrivals, OVERTAKEN_NS), (3, vec![(1, 1)]));
    }

    #[test]
    fn arrivals__undecided_gap__dates_the_report_from_the_packet_before_it() {
        let mut arrivals = Arrivals::default();
        for (seq, at_ns) in [(0, 0), (1, 100), (5, 400)] {
            arrivals.accept(seq, at_ns);
        }
        let mut report = |seq: u64, at_ns| {
            arrivals.accept(seq, at_ns);
            arrivals.report(at_ns + 100, |_, _| true)
        };
        assert_eq!(report(6, 500), (2, 500), "2 to 4 may only be late");
        assert_eq!(report(3, 600), (4, 100), "2 is lost, 3 was late, 4 is open");
        assert_eq!(report(4, 700), (7, 300));
    }

    #[test]
    fn arrivals__first_packet_missing__is_undecided_at_first_and_then_reported_missing() {
        let mut arrivals = Arrivals::default();
        arrivals.accept(1, 0);
        assert_eq!(report(&mut arrivals, 0), (0, vec![]), "nothing is decided");
        assert_eq!(report(&mut arrivals, OVERTAKEN_NS), (2, vec![(0, 1)]));
    }

    #[test]
    fn arrivals__more_missing_runs_than_fit__report_ends_before_the_first_unlisted() {
        let mut arrivals = Arrivals::default();
        for seq in (0..20).step_by(2) {
            arrivals.accept(seq, 0);
        }
        let mut room = 2;
        let (decided, _) = arrivals.report(OVERTAKEN_NS, |_, _| {
            room -= 1;
            room >= 0
        });
        assert_eq!(decided, 5, "5 is missing and was not named");
    }
}
