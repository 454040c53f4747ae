//! A vector that all hosts have, or come to have, cut into parts.

/// Parts that the vector of a chain is cut into: short enough that all hosts are soon at work, and long enough that a part's own
/// cost, some 20 µs on either side, does not count on 1 Gb/s.
const PART_BYTES: u64 = 64 << 10;

/// A vector's length; its parts are whole elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vector {
    elements: u64,
    element_bytes: u64,
}

impl Vector {
    /// So many bytes, of elements of so many: a rest that is no whole element does not count.
    pub fn new(bytes: u64, element_bytes: u64) -> Self {
        let element_bytes = element_bytes.max(1);
        Self {
            elements: bytes / element_bytes,
            element_bytes,
        }
    }

    /// Its length in bytes.
    pub fn bytes(self) -> u64 {
        self.elements * self.element_bytes
    }

    /// Parts as a chain takes them; one of nothing, of nothing.
    pub(crate) fn parts(self) -> Vec<u64> {
        let part = (PART_BYTES / self.element_bytes).max(1);
        self.in_bytes(cut(self.elements, part))
    }

    /// So many parts, alike but for one element.
    pub(crate) fn share(self, parts: usize) -> Vec<u64> {
        let edge = |part: usize| {
            let part = u128::from(self.elements) * part as u128 / parts as u128;
            part as u64
        };
        self.in_bytes((0..parts).map(|part| edge(part + 1) - edge(part)).collect())
    }

    fn in_bytes(self, parts: Vec<u64>) -> Vec<u64> {
        parts
            .into_iter()
            .map(|elements| elements * self.element_bytes)
            .collect()
    }
}

/// Parts of at most so much that add up to a whole; one of nothing, of nothing.
pub(crate) fn cut(whole: u64, part: u64) -> Vec<u64> {
    let mut parts = vec![part; (whole / part) as usize];
    if whole % part > 0 || parts.is_empty() {
        parts.push(whole % part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts__add_up() {
        assert_eq!(cut(150, 64), [64, 64, 22]);
        assert_eq!(cut(128, 64), [64, 64]);
        assert_eq!(cut(0, 64), [0]);
        assert_eq!(Vector::new(10, 1).share(4), [2, 3, 2, 3]);
        assert_eq!(Vector::new(0, 1).share(2), [0, 0]);
        // Ten elements, and a rest.
        assert_eq!(Vector::new(83, 8).share(4), [16, 24, 16, 24]);
        assert_eq!(Vector::new(100_000, 24).parts(), [65_520, 34_464]);
    }
}
