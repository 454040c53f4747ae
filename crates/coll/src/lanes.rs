//! Divides the capacity of a directed link into shares. Each share serves one sequence of
//! transfers.
//!
//! A transfer takes free capacity first. It then takes over shares of earlier transfers, in whole
//! or in part, up to its rate r. It needs at least 0.95 · r ([`ENOUGH`]). The shares in use and the
//! free capacity always sum to the link's rate:
//!
//! ```text
//!   C = free + Σ q(s)        C     rate of the link, in bytes per second
//!                            q(s)  rate of share s: `Lane::part`
//! ```
//!
//! If each transfer starts after the one before it in its share, then everything in flight fits the
//! link. Links of one rate have one transfer at a time. A link that is faster than those leading to
//! it has several.

use crate::grain::CHUNK_BYTES;
use crate::plan::After;
use std::collections::VecDeque;

/// Capacity of a directed link, in bytes per second.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    /// Capacity that no transfer has used yet.
    free: f64,
    /// Shares in use, the least recently used first.
    used: VecDeque<Lane>,
}

/// A capacity share, with the latest transfers that used it: those that may still be in flight.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Rate of the share, in bytes per second.
    pub part: f64,
    /// The transfer before the recorded ones, if there is one. It must be complete.
    pub before: Option<usize>,
    /// Its latest transfer, with its bytes.
    last: Option<(usize, u64)>,
    /// Earlier transfers that may still be in flight, in part or whole, with their bytes, oldest
    /// first. There are few, and for long transfers none.
    earlier: VecDeque<(usize, u64)>,
    /// The latest transfer that took several shares. The share has the history of only one of them.
    /// A later transfer therefore waits for this one, or for one after it.
    joined: Option<usize>,
}

impl Lane {
    /// Returns the latest transfer in the share.
    pub fn last(&self) -> Option<usize> {
        self.last.map(|(transfer, _)| transfer)
    }

    /// Returns the wait for the next transfer in the share: the latest transfer that must have
    /// progressed, and the number of its bytes that may be missing.
    ///
    /// For a transfer and its bytes, `early_bytes` returns two numbers of bytes: those that may
    /// stand in front of the link, and those that the link carries until the next sender's first
    /// byte arrives. The second number counts only if the transfer's first chunk has been received,
    /// because only then is the link busy meanwhile.
    ///
    /// `schedule.rs` gives the formula.
    pub fn wait(&self, early_bytes: impl Fn(usize, u64) -> (u64, u64)) -> Option<After> {
        let mut behind = 0;
        for (transfer, bytes) in self.last.iter().chain(self.earlier.iter().rev()) {
            let (standing, flight) = early_bytes(*transfer, *bytes);
            let room = standing.saturating_sub(behind);
            if self.joined == Some(*transfer) {
                let begun = bytes.saturating_sub(CHUNK_BYTES);
                return Some(After::but_for(*transfer, (room + flight).min(begun)));
            }
            if *bytes > room {
                let begun = bytes.saturating_sub(CHUNK_BYTES).max(room);
                return Some(After::but_for(*transfer, (room + flight).min(begun)));
            }
            behind += bytes;
        }
        self.before.map(After::whole)
    }

    /// Passes the share on to the next transfer.
    fn follow(mut self, part: f64, transfer: usize, bytes: u64, kept_bytes: u64) -> Self {
        self.part = part;
        self.earlier.extend(self.last);
        self.last = Some((transfer, bytes));
        let mut sum = bytes + self.earlier.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while let Some((oldest, bytes)) = self.earlier.front().copied() {
            // The transfers after the oldest one fill the allowance for bytes in flight, so it need
            // not be recorded.
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

    /// Iterates over the shares in use, the least recently used first.
    pub fn used(&self) -> impl Iterator<Item = &Lane> + '_ {
        self.used.iter()
    }

    /// Returns the capacity that no transfer has used yet.
    pub fn free(&self) -> f64 {
        self.free
    }

    /// Gives `rate` to a transfer: free capacity first, then shares that it `may_follow`, the least
    /// recently used first. `kept_bytes` of each share may still be in flight. Returns the latest
    /// transfer of each share that it takes over. Returns `None`, and changes nothing, if the
    /// capacity does not suffice.
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
            // The share exceeds the need. The rest stays with its transfer.
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

/// Part of a rate that suffices for a transfer. Measured rates of equal links differ. Without this
/// margin, one of two transfers that need half a link each would wait for the other.
pub(crate) const ENOUGH: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn last(lane: &Lane) -> usize {
        lane.last().unwrap()
    }

    #[test]
    fn capacity_shares__link_twice_as_fast__carries_two_transfers_at_once() {
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
        // The merged share is split again.
        assert!(take(4, 50.0, &[3]));
        assert!(take(5, 150.0, &[3]));
        let used: Vec<_> = lanes.used().map(|lane| (lane.part, last(lane))).collect();
        assert_eq!(used, [(50.0, 4), (150.0, 5)]);
    }

    #[test]
    fn capacity_shares__rates_that_do_not_add_up__never_exceed_the_link() {
        let mut lanes = Lanes::new(100.0);
        let rates = [96.0, 100.0, 33.0, 35.0, 34.0, 98.0, 50.0];
        for (transfer, rate) in rates.into_iter().enumerate() {
            lanes.take((transfer, 1), rate, 0, |_| true);
            let used: f64 = lanes.used().map(|lane| lane.part).sum();
            assert!((used + lanes.free() - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn capacity_share__port_with_room__waits_only_for_bytes_that_do_not_fit() {
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
        // Transfers 2 and 1 have 8 bytes: half of transfer 0 may be in flight.
        assert_eq!(next(3, 30), Some(After::but_for(0, 2)));
        assert_eq!(next(4, 1), Some(After::but_for(3, 10)));
        assert_eq!(next(5, 1), Some(After::but_for(3, 9)));
    }

    #[test]
    fn capacity_share__merged_from_two__waits_for_the_transfer_that_merged_them() {
        let mut lanes = Lanes::new(2.0);
        assert!(lanes.take((0, 4), 1.0, 10, |_| true).is_some());
        assert!(lanes.take((1, 4), 1.0, 10, |_| true).is_some());
        assert!(lanes.take((2, 4), 2.0, 10, |_| true).is_some());
        // Transfers 2 and 0 fit the port. The missing bytes of transfer 1 are unknown.
        let lane = lanes.used().next().unwrap();
        assert_eq!(lane.wait(|_, _| (10, 0)), Some(After::whole(2)));
    }
}
