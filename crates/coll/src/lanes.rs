//! What a directed link carries, dealt out: whoever passes it takes as much as it sends at, from those who
//! have passed before.
//!
//! Every part of the capacity serves one transfer behind another. If each of them waits for the one before it
//! there, then whatever is under way at once fits: one transfer at a time where links are alike, several
//! where a link is fatter than those that lead to it.

use std::collections::VecDeque;

/// A directed link's capacity, in bytes a second.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    /// What nobody has used yet.
    free: f64,
    /// Parts of the rest, with the transfer that used each last, longest ago first.
    used: VecDeque<(f64, usize)>,
}

impl Lanes {
    pub fn new(capacity: f64) -> Self {
        Self {
            free: capacity,
            used: VecDeque::new(),
        }
    }

    /// Those that have used the link last, of whatever part, longest ago first.
    pub fn last(&self) -> impl Iterator<Item = (f64, usize)> + '_ {
        self.used.iter().copied()
    }

    /// What nobody has used yet.
    pub fn free(&self) -> f64 {
        self.free
    }

    /// Gives `rate` to `transfer`: first what is free, then of those that `may_follow`, longest ago first. False, and
    /// nothing given, if there is not as much.
    pub fn take(
        &mut self,
        transfer: usize,
        rate: f64,
        mut may_follow: impl FnMut(usize) -> bool,
    ) -> bool {
        let mut missing = rate * ENOUGH - self.free;
        let mut taken = Vec::new();
        for (at, (part, last)) in self.used.iter().enumerate() {
            if missing <= 0.0 {
                break;
            }
            if may_follow(*last) {
                taken.push(at);
                missing -= part;
            }
        }
        if missing > 0.0 {
            return false;
        }
        let mut sum = self.free;
        for at in taken.into_iter().rev() {
            if let Some((part, last)) = self.used.remove(at) {
                sum += part;
                // More than is needed: the rest stays with whom it was.
                if sum > rate {
                    self.used.insert(at, (sum - rate, last));
                    sum = rate;
                }
            }
        }
        self.free = (sum - rate).max(0.0);
        self.used.push_back((sum.min(rate), transfer));
        true
    }
}

/// The part of its rate that is enough for a transfer. Rates are measured, and links that are alike never measure
/// alike: of two that each want half of a link, one would have to wait for the other.
pub(crate) const ENOUGH: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes__twice_as_fat__carry_two_at_once() {
        let mut lanes = Lanes::new(200.0);
        assert!(lanes.take(0, 100.0, |_| false));
        assert!(lanes.take(1, 100.0, |_| false));
        assert!(!lanes.take(2, 100.0, |_| false));
        assert!(lanes.take(2, 100.0, |last| last == 0));
        assert!(!lanes.take(3, 200.0, |last| last == 2));
        assert!(lanes.take(3, 200.0, |last| last == 1 || last == 2));
        // What was one is parted again.
        assert!(lanes.take(4, 50.0, |last| last == 3));
        assert!(lanes.take(5, 150.0, |last| last == 3));
        let used: Vec<_> = lanes.last().collect();
        assert_eq!(used, [(50.0, 4), (150.0, 5)]);
    }

    #[test]
    fn lanes__of_rates_that_do_not_add_up__never_give_more_than_there_is() {
        let mut lanes = Lanes::new(100.0);
        for (transfer, rate) in [96.0, 100.0, 33.0, 35.0, 34.0, 98.0, 50.0]
            .into_iter()
            .enumerate()
        {
            lanes.take(transfer, rate, |_| true);
            let used: f64 = lanes.last().map(|(part, _)| part).sum();
            assert!((used + lanes.free() - 100.0).abs() < 1e-9);
        }
    }
}
