//! Items that are named by consecutive numbers.

use std::collections::VecDeque;
use std::ops::Range;

/// A queue whose items are found by their number, and may be removed anywhere.
#[derive(Debug, Clone)]
pub struct Sequence<T> {
    /// Number of the first item, which is present.
    first: u64,
    items: VecDeque<Option<T>>,
}

impl<T> Default for Sequence<T> {
    fn default() -> Self {
        Self {
            first: 0,
            items: VecDeque::new(),
        }
    }
}

impl<T> Sequence<T> {
    /// Returns the number of the next item.
    pub fn next(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Adds an item, and returns its number.
    pub fn push(&mut self, item: T) -> u64 {
        let number = self.next();
        self.items.push_back(Some(item));
        number
    }

    /// Uses a number without an item.
    pub fn skip(&mut self) {
        if self.items.is_empty() {
            self.first += 1;
        } else {
            self.items.push_back(None);
        }
    }

    /// Returns the number of the first item.
    pub fn first(&self) -> Option<u64> {
        (!self.items.is_empty()).then_some(self.first)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Returns an item.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.items.get(self.index(number)?)?.as_ref()
    }

    /// Returns an item.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.index(number)?;
        self.items.get_mut(index)?.as_mut()
    }

    /// Returns whether an item is present.
    pub fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Removes an item.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.index(number)?;
        let item = self.items.get_mut(index)?.take();
        while let Some(None) = self.items.front() {
            self.items.pop_front();
            self.first += 1;
        }
        item
    }

    /// Returns the part of `range` in which items may be present.
    pub fn clip(&self, range: &Range<u64>) -> Range<u64> {
        range.start.max(self.first)..range.end.min(self.next())
    }

    /// Returns the items in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let numbered = (self.first..).zip(&self.items);
        numbered.filter_map(|(number, item)| Some((number, item.as_ref()?)))
    }

    /// Returns the items in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let numbered = (self.first..).zip(&mut self.items);
        numbered.filter_map(|(number, item)| Some((number, item.as_mut()?)))
    }

    /// Frees the memory that removed items have left.
    pub fn release(&mut self) {
        self.items.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn sequence__random_operations__equals_a_map() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut sequence = Sequence::default();
            let mut map = BTreeMap::new();
            let mut next = 0;
            for value in 0..2_000 {
                match rng.u8(..6) {
                    0 | 1 => {
                        assert_eq!(sequence.push(value), next);
                        map.insert(next, value);
                        next += 1;
                    }
                    2 => {
                        sequence.skip();
                        next += 1;
                    }
                    _ => {
                        let number = rng.u64(..next + 2);
                        assert_eq!(sequence.get(number), map.get(&number));
                        assert_eq!(sequence.remove(number), map.remove(&number));
                    }
                }
                assert_eq!(sequence.next(), next);
                let first = map.first_key_value().map(|(number, _)| *number);
                assert_eq!(sequence.first().filter(|_| first.is_some()), first);
                assert!(
                    sequence
                        .iter()
                        .eq(map.iter().map(|(number, item)| (*number, item)))
                );
            }
        }
    }
}
