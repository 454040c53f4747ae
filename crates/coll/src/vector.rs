//! A vector that all hosts have, or receive, divided into parts.

/// Length of the parts of a chain's vector, in bytes. It is short enough that all hosts soon take
/// part. It is long enough that a part's own cost, some 20 µs on either side, does not matter at 1
/// Gb/s.
const PART_BYTES: u64 = 64 << 10;

/// Length of a vector. Its parts are whole elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vector {
    elements: u64,
    element_bytes: u64,
}

impl Vector {
    /// Creates a vector of `bytes` in elements of `element_bytes`. An incomplete last element does
    /// not count.
    pub fn new(bytes: u64, element_bytes: u64) -> Self {
        let element_bytes = element_bytes.max(1);
        Self {
            elements: bytes / element_bytes,
            element_bytes,
        }
    }

    /// Returns the length in bytes.
    pub fn bytes(self) -> u64 {
        self.elements * self.element_bytes
    }

    /// Divides the vector into parts for a chain. An empty vector has one empty part.
    pub(crate) fn parts(self) -> Vec<u64> {
        let part = (PART_BYTES / self.element_bytes).max(1);
        self.in_bytes(cut(self.elements, part))
    }

    /// Divides the vector into `parts` parts that differ by at most one element.
    pub(crate) fn divide(self, parts: usize) -> Vec<u64> {
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

/// Divides `total` into parts of at most `part`. A total of 0 has one empty part.
pub(crate) fn cut(total: u64, part: u64) -> Vec<u64> {
    let mut parts = vec![part; (total / part) as usize];
    if total % part > 0 || parts.is_empty() {
        parts.push(total % part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts__any_length__add_up_to_the_vector() {
        assert_eq!(cut(150, 64), [64, 64, 22]);
        assert_eq!(cut(128, 64), [64, 64]);
        assert_eq!(cut(0, 64), [0]);
        assert_eq!(Vector::new(10, 1).divide(4), [2, 3, 2, 3]);
        assert_eq!(Vector::new(0, 1).divide(2), [0, 0]);
        // Ten elements, and an incomplete one.
        assert_eq!(Vector::new(83, 8).divide(4), [16, 24, 16, 24]);
        assert_eq!(Vector::new(100_000, 24).parts(), [65_520, 34_464]);
    }
}
