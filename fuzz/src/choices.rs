//! Turns a fuzzer's bytes into choices.
//!
//! A state machine is fuzzed by a sequence of operations. Each choice takes as many bytes of the
//! input as its range needs, so a mutated byte is another choice at one place. When the input is
//! used up, a generator seeded by it continues. The same bytes always give the same choices.

use fastrand::Rng;
use std::ops::{Bound, RangeBounds};

/// A source of choices.
#[derive(Debug)]
pub struct Choices<'a> {
    input: &'a [u8],
    generator: Rng,
}

/// One method for each integer type, named as in fastrand.
macro_rules! integers {
    ($($integer:ident),*) => {$(
        /// Returns a number of the range.
        pub fn $integer(&mut self, range: impl RangeBounds<$integer>) -> $integer {
            let min = match range.start_bound() {
                Bound::Included(min) => *min,
                Bound::Excluded(bound) => bound + 1,
                Bound::Unbounded => $integer::MIN,
            };
            let max = match range.end_bound() {
                Bound::Included(max) => *max,
                Bound::Excluded(bound) => bound - 1,
                Bound::Unbounded => $integer::MAX,
            };
            assert!(min <= max, "an empty range");
            min + self.up_to((max - min) as u64) as $integer
        }
    )*};
}

impl<'a> Choices<'a> {
    /// Returns the choices that `input` encodes.
    pub fn new(input: &'a [u8]) -> Self {
        // FNV-1a. Any function does that distinguishes inputs and never changes.
        let seed = input.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            input,
            generator: Rng::with_seed(seed),
        }
    }

    integers!(u8, u16, u32, u64, usize);

    /// Returns true or false.
    pub fn bool(&mut self) -> bool {
        self.up_to(1) == 1
    }

    /// Returns one element of `from`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.usize(..options.len())]
    }

    fn up_to(&mut self, max: u64) -> u64 {
        let bytes = (u64::BITS - max.leading_zeros()).div_ceil(8) as usize;
        let Some((head, input)) = self.input.split_at_checked(bytes) else {
            self.input = &[];
            return self.generator.u64(..=max);
        };
        self.input = input;
        let number = head
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        max.checked_add(1).map_or(number, |count| number % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices__bytes_of_the_input__are_used_before_the_generator() {
        let mut choices = Choices::new(&[3, 1, 2, 0xff, 1]);
        assert_eq!(choices.u8(..), 3);
        assert_eq!(choices.u16(..), 0x102);
        assert_eq!(choices.usize(10..20), 10 + 255 % 10);
        assert!(choices.bool());
        assert!(choices.u32(5..=6) >= 5);
    }

    #[test]
    fn choices__same_input__makes_the_same_choices_beyond_its_end() {
        let sequence = |input: &[u8]| {
            let mut choices = Choices::new(input);
            (0..100).map(|_| choices.u64(..)).collect::<Vec<_>>()
        };
        assert_eq!(sequence(b"seed"), sequence(b"seed"));
        assert_ne!(sequence(b"seed"), sequence(b"sead"));
    }
}
