//! A set of numbers that is stored as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64`, with one entry for each run of consecutive numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// End of each range (exclusive) by its start. Ranges neither overlap nor touch.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `range`. Returns the number of its members that were not in the set before.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (range.start, range.end);
        let mut present = 0;
        // Ranges that overlap or touch the new one, from the last to the first.
        while let Some((&from, &to)) = self.ends.range(..=range.end).next_back() {
            if to < range.start {
                break;
            }
            present += to.min(range.end).saturating_sub(from.max(range.start));
            start = start.min(from);
            end = end.max(to);
            self.ends.remove(&from);
        }
        self.ends.insert(start, end);
        range.end - range.start - present
    }

    /// Returns whether `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let before = self.ends.range(..=number).next_back();
        before.is_some_and(|(_, end)| number < *end)
    }

    /// Returns the first number from `start` on that is not in the set.
    pub fn first_gap(&self, start: u64) -> u64 {
        let before = self.ends.range(..=start).next_back();
        before.map_or(start, |(_, end)| start.max(*end))
    }

    /// Returns the first member from `start` on.
    pub fn first_member(&self, start: u64) -> Option<u64> {
        if self.contains(start) {
            return Some(start);
        }
        self.ends.range(start..).next().map(|(from, _)| *from)
    }

    /// Returns whether all of `range` is in the set.
    pub fn covers(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.first_gap(range.start) >= range.end
    }

    /// Returns the ranges, the highest first.
    pub fn descending(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().rev().map(|(start, end)| *start..*end)
    }

    /// Removes the lowest ranges, so that at most `count` remain.
    pub fn keep_highest(&mut self, count: usize) {
        while self.ends.len() > count {
            self.ends.pop_first();
        }
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.ends.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges__any_insertions__equal_a_plain_set(
            pairs in proptest::collection::vec((0_u64..60, 0_u64..12), 0..40)
        ) {
            let (mut ranges, mut plain) = (Ranges::default(), BTreeSet::new());
            for (start, length) in pairs {
                let fresh = (start..start + length).filter(|n| plain.insert(*n)).count();
                prop_assert_eq!(ranges.insert(start..start + length), fresh as u64);
            }
            for number in 0..80 {
                prop_assert_eq!(ranges.contains(number), plain.contains(&number));
                let gap = (number..).find(|n| !plain.contains(n)).unwrap();
                prop_assert_eq!(ranges.first_gap(number), gap);
                prop_assert_eq!(ranges.first_member(number), plain.range(number..).next().copied());
            }
            let members: u64 = ranges.descending().map(|range| range.end - range.start).sum();
            prop_assert_eq!(members, plain.len() as u64);
            let runs: Vec<_> = ranges.descending().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[1].end < pair[0].start), "they touch");
        }
    }
}
