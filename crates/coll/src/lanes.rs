//! What a directed link carries, dealt out: whoever passes it takes as much as it sends at, from those who
//! have passed before.
//!
//! Every part of the capacity serves one transfer behind another. If each of them waits for the one before it
//! there, then whatever is under way at once fits: one transfer at a time where links are alike, several
//! where a link is fatter than those that lead to it.

use crate::grain::PIECE_BYTES;
use crate::plan::After;
use std::collections::VecDeque;

/// A directed link's capacity, in bytes a second.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    /// What nobody has used yet.
    free: f64,
    /// Parts of the rest, longest ago first.
    used: VecDeque<Lane>,
}

/// A part of a link's capacity, and those that have used it one behind another: as many of the last as may still be on their
/// way.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Bytes a second.
    pub part: f64,
    /// The transfer before those, if there is one: it has to be over.
    pub before: Option<usize>,
    /// The last transfer, with its bytes.
    last: Option<(usize, u64)>,
    /// Transfers before it that may still be on their way too, in part or whole, with their bytes, oldest first: few, and
    /// none where transfers are long.
    earlier: VecDeque<(usize, u64)>,
    /// The latest transfer that took parts of several lanes. The lane has the history of one of them only, so a transfer that
    /// follows waits for this one and not past it.
    joined: Option<usize>,
}

impl Lane {
    /// The last transfer that used it.
    pub fn last(&self) -> Option<usize> {
        self.last.map(|(transfer, _)| transfer)
    }

    /// What one that follows has to wait for: the last that may not be in flight any more, and how many of its bytes may be
    /// missing. `early_bytes` says of a transfer how much may stand before the link, and how much the link carries
    /// until one that hears of it can be there. The latter counts only when the transfer's own first chunk has come: then the
    /// link is busy meanwhile.
    pub fn wait(&self, early_bytes: impl Fn(usize, u64) -> (u64, u64)) -> Option<After> {
        let mut behind = 0;
        for (transfer, bytes) in self.last.iter().chain(self.earlier.iter().rev()) {
            let (standing, flight) = early_bytes(*transfer, *bytes);
            let room = standing.saturating_sub(behind);
            if self.joined == Some(*transfer) {
                let begun = bytes.saturating_sub(PIECE_BYTES);
                return Some(After::but_for(*transfer, (room + flight).min(begun)));
            }
            if *bytes > room {
                let begun = bytes.saturating_sub(PIECE_BYTES).max(room);
                return Some(After::but_for(*transfer, (room + flight).min(begun)));
            }
            behind += bytes;
        }
        self.before.map(After::whole)
    }

    /// The same part for the next one.
    fn follow(mut self, part: f64, transfer: usize, bytes: u64, kept_bytes: u64) -> Self {
        self.part = part;
        self.earlier.extend(self.last);
        self.last = Some((transfer, bytes));
        let mut sum = bytes + self.earlier.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while let Some((oldest, bytes)) = self.earlier.front().copied() {
            // Those behind it are as much as may be on its way by themselves.
            if sum - bytes < kept_bytes {
                break;
            }
            self.earlier.pop_front();
            self.before = Some(oldest);
            sum -= bytes;
        }
        self
    }
}

impl Lanes {
    pub fn new(capacity: f64) -> Self {
        Self {
            free: capacity,
            used: VecDeque::new(),
        }
    }

    /// The parts that are used, longest ago first.
    pub fn used(&self) -> impl Iterator<Item = &Lane> + '_ {
        self.used.iter()
    }

    /// What nobody has used yet.
    pub fn free(&self) -> f64 {
        self.free
    }

    /// Gives `rate` to `transfer` of so many bytes: first what is free, then of lanes that it `may_follow`, longest ago
    /// first. Of each lane, `kept_bytes` may still be on their way. Returns the last of each lane that it follows; none, and nothing
    /// given, if there is not as much.
    pub fn take(
        &mut self,
        (transfer, bytes): (usize, u64),
        rate: f64,
        kept_bytes: u64,
        mut may_follow: impl FnMut(&Lane) -> bool,
    ) -> Option<Vec<usize>> {
        let mut missing = rate * ENOUGH - self.free;
        let mut taken = Vec::new();
        for (at, lane) in self.used.iter().enumerate() {
            if missing <= 0.0 {
                break;
            }
            if may_follow(lane) {
                taken.push(at);
                missing -= lane.part;
            }
        }
        if missing > 0.0 {
            return None;
        }
        let followed = taken.iter().filter_map(|at| self.used[*at].last());
        let followed = followed.collect();
        let mut sum = self.free;
        let mut longest = None;
        let is_joined = taken.len() > 1;
        for at in &taken {
            let lane = &mut self.used[*at];
            longest.get_or_insert_with(|| lane.clone());
            // More than is needed: the rest stays with whom it was.
            let rest = (sum + lane.part - rate).max(0.0).min(lane.part);
            sum += lane.part - rest;
            lane.part = rest;
        }
        self.used.retain(|lane| lane.part > 0.0);
        self.free = (sum - rate).max(0.0);
        let mut lane = longest.unwrap_or(Lane {
            part: 0.0,
            before: None,
            last: None,
            earlier: VecDeque::new(),
            joined: None,
        });
        if is_joined {
            lane.joined = Some(transfer);
        }
        self.used
            .push_back(lane.follow(sum.min(rate), transfer, bytes, kept_bytes));
        Some(followed)
    }
}

/// The part of its rate that is enough for a transfer. Rates are measured, and links that are alike never measure
/// alike: of two that each want half of a link, one would have to wait for the other.
pub(crate) const ENOUGH: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn last(lane: &Lane) -> usize {
        lane.last().unwrap()
    }

    #[test]
    fn lanes__twice_as_fat__carry_two_at_once() {
        let mut lanes = Lanes::new(200.0);
        let mut take = |transfer, rate, behind: &[usize]| {
            let may_follow = |lane: &Lane| behind.contains(&last(lane));
            lanes.take((transfer, 9), rate, 0, may_follow).is_some()
        };
        assert!(take(0, 100.0, &[]));
        assert!(take(1, 100.0, &[]));
        assert!(!take(2, 100.0, &[]));
        assert!(take(2, 100.0, &[0]));
        assert!(!take(3, 200.0, &[2]));
        assert!(take(3, 200.0, &[1, 2]));
        // What was one is parted again.
        assert!(take(4, 50.0, &[3]));
        assert!(take(5, 150.0, &[3]));
        let used: Vec<_> = lanes.used().map(|lane| (lane.part, last(lane))).collect();
        assert_eq!(used, [(50.0, 4), (150.0, 5)]);
    }

    #[test]
    fn lanes__of_rates_that_do_not_add_up__never_give_more_than_there_is() {
        let mut lanes = Lanes::new(100.0);
        let rates = [96.0, 100.0, 33.0, 35.0, 34.0, 98.0, 50.0];
        for (transfer, rate) in rates.into_iter().enumerate() {
            lanes.take((transfer, 1), rate, 0, |_| true);
            let used: f64 = lanes.used().map(|lane| lane.part).sum();
            assert!((used + lanes.free() - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn lane__with_room_in_the_port__waits_for_what_no_longer_fits() {
        let mut lanes = Lanes::new(1.0);
        let mut next = |transfer, bytes| {
            let wait = lanes
                .used()
                .next()
                .and_then(|lane| lane.wait(|_, _| (10, 0)));
            lanes.take((transfer, bytes), 1.0, 10, |_| true);
            wait
        };
        assert_eq!(next(0, 4), None);
        assert_eq!(next(1, 4), None);
        assert_eq!(next(2, 4), None);
        // 2 and 1 make 8: of 0, half may be on its way.
        assert_eq!(next(3, 30), Some(After::but_for(0, 2)));
        assert_eq!(next(4, 1), Some(After::but_for(3, 10)));
        assert_eq!(next(5, 1), Some(After::but_for(3, 9)));
    }

    #[test]
    fn lane__of_two_lanes_joined__is_waited_for_at_the_join() {
        let mut lanes = Lanes::new(2.0);
        assert!(lanes.take((0, 4), 1.0, 10, |_| true).is_some());
        assert!(lanes.take((1, 4), 1.0, 10, |_| true).is_some());
        assert!(lanes.take((2, 4), 2.0, 10, |_| true).is_some());
        // 2 and 0 fit in the port; what is missing of 1 is not known.
        let lane = lanes.used().next().unwrap();
        assert_eq!(lane.wait(|_, _| (10, 0)), Some(After::whole(2)));
    }
}
