//! A union of time spans, in which overlapping time counts once.

/// Spans. They are merged when the length is computed.
#[derive(Debug, Clone, Default)]
pub struct Union {
    spans: Vec<(u64, u64)>,
}

impl Union {
    /// Adds a span.
    pub fn add(&mut self, start_ns: u64, end_ns: u64) {
        self.spans.push((start_ns, end_ns));
    }

    /// Adds another union's spans.
    pub fn merge(&mut self, other: &Self) {
        self.spans.extend_from_slice(&other.spans);
        self.join();
    }

    /// Returns the length of the union.
    pub fn length_ns(&mut self) -> u64 {
        self.join();
        self.spans.iter().map(|(start, end)| end - start).sum()
    }

    fn join(&mut self) {
        self.spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.spans.len());
        for (start, end) in self.spans.drain(..) {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        self.spans = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union__overlapping_spans__are_counted_once() {
        let mut union = Union::default();
        for (start, end) in [(10, 20), (15, 25), (40, 50), (12, 13)] {
            union.add(start, end);
        }
        assert_eq!(union.length_ns(), 25);
        let mut second = Union::default();
        second.add(20, 45);
        union.merge(&second);
        assert_eq!(union.length_ns(), 40);
    }
}
