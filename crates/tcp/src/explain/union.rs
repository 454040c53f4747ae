//! A union of time spans, in which overlapping time counts once.

/// Spans. They are merged when the length is computed.
#[derive(Debug, Clone, Default)]
pub struct Union {
    spans: Vec<(u64, u64)>,
}

impl Union {
    /// Adds a span.
    pub fn add(&mut self, from_ns: u64, to_ns: u64) {
        self.spans.push((from_ns, to_ns));
    }

    /// Adds another union's spans.
    pub fn merge(&mut self, other: &Self) {
        self.spans.extend_from_slice(&other.spans);
        self.join();
    }

    /// Returns the length of the union.
    pub fn length_ns(&mut self) -> u64 {
        self.join();
        self.spans.iter().map(|(from, to)| to - from).sum()
    }

    fn join(&mut self) {
        self.spans.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(self.spans.len());
        for (from, to) in self.spans.drain(..) {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        self.spans = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union__overlapping_spans__are_counted_once() {
        let mut union = Union::default();
        for (from, to) in [(10, 20), (15, 25), (40, 50), (12, 13)] {
            union.add(from, to);
        }
        assert_eq!(union.length_ns(), 25);
        let mut other = Union::default();
        other.add(20, 45);
        union.merge(&other);
        assert_eq!(union.length_ns(), 40);
    }
}
