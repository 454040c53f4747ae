//! Divides the capacity of a directed link into shares. Each share serves one sequence of
//! transfers.
//!
//! A transfer takes free capacity first. It then takes over shares of earlier transfers, in whole
//! or in part, up to its rate r. It needs at least 0.95 · r ([`ENOUGH`]). The shares in use and the
//! free capacity always sum to the link's rate:
//!
//! ```text
//!   C = free + Σ q(s)        C     rate of the link, in bytes per second
//!                            q(s)  rate of share s: `Share::rate_bytes_per_s`
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
pub(crate) struct Shares {
    /// Capacity that no transfer has used yet.
    free: f64,
    /// Shares in use, the least recently used first.
    active: VecDeque<Share>,
}

/// A capacity share, with the latest transfers that used it: those that may still be in flight.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// Rate of the share, in bytes per second.
    pub rate_bytes_per_s: f64,
    /// The transfer before the recorded ones, if there is one. It must be complete.
    pub predecessor: Option<usize>,
    /// Its latest transfer, with its bytes.
    last: Option<(usize, u64)>,
    /// Earlier transfers that may still be in flight, in part or whole, with their bytes, oldest
    /// first. There are few, and for long transfers none.
    earlier: VecDeque<(usize, u64)>,
    /// The latest transfer that took several shares. The share has the history of only one of them.
    /// A later transfer therefore waits for this one, or for one after it.
    merger: Option<usize>,
}

impl Share {
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
        let mut later_bytes = 0;
        for (transfer, bytes) in self.last.iter().chain(self.earlier.iter().rev()) {
            let (queue, flight) = early_bytes(*transfer, *bytes);
            let room = queue.saturating_sub(later_bytes);
            if self.merger == Some(*transfer) {
                let limit = bytes.saturating_sub(CHUNK_BYTES);
                return Some(After::received(*transfer, (room + flight).min(limit)));
            }
            if *bytes > room {
                let limit = bytes.saturating_sub(CHUNK_BYTES).max(room);
                return Some(After::received(*transfer, (room + flight).min(limit)));
            }
            later_bytes += bytes;
        }
        self.predecessor.map(After::complete)
    }

    /// Passes the share on to the next transfer.
    fn follow(
        mut self,
        rate_bytes_per_s: f64,
        transfer: usize,
        bytes: u64,
        flight_max_bytes: u64,
    ) -> Self {
        self.rate_bytes_per_s = rate_bytes_per_s;
        self.earlier.extend(self.last);
        self.last = Some((transfer, bytes));
        let mut sum = bytes + self.earlier.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while let Some((oldest, bytes)) = self.earlier.front().copied() {
            // The transfers after the oldest one fill the allowance for bytes in flight, so it need
            // not be recorded.
            if sum - bytes < flight_max_bytes {
                break;
            }
            self.earlier.pop_front();
            self.predecessor = Some(oldest);
            sum -= bytes;
        }
        self
    }
}

impl Shares {
    pub fn new(capacity: f64) -> Self {
        Self {
            free: capacity,
            active: VecDeque::new(),
        }
    }

    /// Iterates over the shares in use, the least recently used first.
    pub fn active(&self) -> impl Iterator<Item = &Share> + '_ {
        self.active.iter()
    }

    /// Returns the capacity that no transfer has used yet.
    pub fn free(&self) -> f64 {
        self.free
    }

    /// Gives `rate` to a transfer: free capacity first, then shares that it `may_follow`, the least
    /// recently used first. `flight_max_bytes` of each share may still be in flight. Returns the
    /// latest transfer of each share that it takes over. Returns `None`, and changes nothing, if
    /// the capacity does not suffice.
    pub fn take(
        &mut self,
        (transfer, bytes): (usize, u64),
        rate: f64,
        flight_max_bytes: u64,
        mut may_follow: impl FnMut(&Share) -> bool,
    ) -> Option<Vec<usize>> {
        let mut missing = rate * ENOUGH - self.free;
        let mut indices = Vec::new();
        for (index, share) in self.active.iter().enumerate() {
            if missing <= 0.0 {
                break;
            }
            if may_follow(share) {
                indices.push(index);
                missing -= share.rate_bytes_per_s;
            }
        }
        if missing > 0.0 {
            return None;
        }
        let predecessors = indices
            .iter()
            .filter_map(|index| self.active[*index].last());
        let predecessors = predecessors.collect();
        let mut sum = self.free;
        let mut first = None;
        let is_merged = indices.len() > 1;
        for index in &indices {
            let share = &mut self.active[*index];
            first.get_or_insert_with(|| share.clone());
            // The share exceeds the need. The rest stays with its transfer.
            let remainder = (sum + share.rate_bytes_per_s - rate)
                .max(0.0)
                .min(share.rate_bytes_per_s);
            sum += share.rate_bytes_per_s - remainder;
            share.rate_bytes_per_s = remainder;
        }
        self.active.retain(|share| share.rate_bytes_per_s > 0.0);
        self.free = (sum - rate).max(0.0);
        let mut share = first.unwrap_or(Share {
            rate_bytes_per_s: 0.0,
            predecessor: None,
            last: None,
            earlier: VecDeque::new(),
            merger: None,
        });
        if is_merged {
            share.merger = Some(transfer);
        }
        self.active
            .push_back(share.follow(sum.min(rate), transfer, bytes, flight_max_bytes));
        Some(predecessors)
    }
}

/// Part of a rate that suffices for a transfer. Measured rates of equal links differ. Without this
/// margin, one of two transfers that need half a link each would wait for the other.
pub(crate) const ENOUGH: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn last(share: &Share) -> usize {
        share.last().unwrap()
    }

    #[test]
    fn capacity_shares__link_twice_as_fast__carries_two_transfers_at_once() {
        let mut shares = Shares::new(200.0);
        let mut take = |transfer, rate, predecessors: &[usize]| {
            let may_follow = |share: &Share| predecessors.contains(&last(share));
            shares.take((transfer, 9), rate, 0, may_follow).is_some()
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
        let active: Vec<_> = shares
            .active()
            .map(|share| (share.rate_bytes_per_s, last(share)))
            .collect();
        assert_eq!(active, [(50.0, 4), (150.0, 5)]);
    }

    #[test]
    fn capacity_shares__rates_that_do_not_add_up__never_exceed_the_link() {
        let mut shares = Shares::new(100.0);
        let rates = [96.0, 100.0, 33.0, 35.0, 34.0, 98.0, 50.0];
        for (transfer, rate) in rates.into_iter().enumerate() {
            shares.take((transfer, 1), rate, 0, |_| true);
            let active: f64 = shares.active().map(|share| share.rate_bytes_per_s).sum();
            assert!((active + shares.free() - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn capacity_share__port_with_room__waits_only_for_bytes_that_do_not_fit() {
        let mut shares = Shares::new(1.0);
        let mut next = |transfer, bytes| {
            let wait = shares
                .active()
                .next()
                .and_then(|share| share.wait(|_, _| (10, 0)));
            shares.take((transfer, bytes), 1.0, 10, |_| true);
            wait
        };
        assert_eq!(next(0, 4), None);
        assert_eq!(next(1, 4), None);
        assert_eq!(next(2, 4), None);
        // Transfers 2 and 1 have 8 bytes: half of transfer 0 may be in flight.
        assert_eq!(next(3, 30), Some(After::received(0, 2)));
        assert_eq!(next(4, 1), Some(After::received(3, 10)));
        assert_eq!(next(5, 1), Some(After::received(3, 9)));
    }

    #[test]
    fn capacity_share__merged_from_two__waits_for_the_transfer_that_merged_them() {
        let mut shares = Shares::new(2.0);
        assert!(shares.take((0, 4), 1.0, 10, |_| true).is_some());
        assert!(shares.take((1, 4), 1.0, 10, |_| true).is_some());
        assert!(shares.take((2, 4), 2.0, 10, |_| true).is_some());
        // Transfers 2 and 0 fit the port. The missing bytes of transfer 1 are unknown.
        let share = shares.active().next().unwrap();
        assert_eq!(share.wait(|_, _| (10, 0)), Some(After::complete(2)));
    }
}
