//! Intervals: what each node has written between two of its releases.

use super::error::Violation;
use super::spans::Span;
use std::collections::BTreeMap;

/// Number of the last interval of each node that a node knows: a vector clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock(pub Vec<u32>);

/// Pages that a node has written between two of its releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// Node that wrote them.
    pub writer: u16,
    /// Number among the writer's intervals, from 1 on.
    pub number: u32,
    /// The pages.
    pub pages: Vec<Span>,
}

/// Pages that another node has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The node.
    pub writer: u16,
    /// The pages, in runs that may overlap.
    pub pages: Vec<Span>,
}

/// Intervals that this node knows.
#[derive(Debug)]
pub struct Intervals {
    me: usize,
    clock: Clock,
    /// Clocks at the end of the last barrier, and of the one before it.
    at_barrier: [Clock; 2],
    known: BTreeMap<(u16, u32), Vec<Span>>,
}

impl Intervals {
    pub fn new(me: usize, nodes: usize) -> Self {
        let clock = Clock(vec![0; nodes]);
        Self {
            me,
            at_barrier: [clock.clone(), clock.clone()],
            clock,
            known: BTreeMap::new(),
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Ends an interval of this node, in which it has written `pages`. The homes have the bytes.
    pub fn close(&mut self, pages: Vec<Span>) {
        if !pages.is_empty() {
            self.clock.0[self.me] += 1;
            let name = (self.me as u16, self.clock.0[self.me]);
            self.known.insert(name, pages);
        }
    }

    /// Returns the intervals of this node since the last barrier.
    pub fn own(&self) -> Vec<Interval> {
        let first = self.at_barrier[0].0[self.me] + 1;
        let me = self.me as u16;
        self.known
            .range((me, first)..=(me, u32::MAX))
            .map(|(name, pages)| interval(*name, pages))
            .collect()
    }

    /// Returns the intervals that a node with this clock does not know.
    pub fn after(&self, clock: &Clock) -> Vec<Interval> {
        let unknown = self.known.iter().filter(|((writer, number), _)| {
            let last = clock.0.get(usize::from(*writer));
            last.is_none_or(|last| number > last)
        });
        unknown
            .map(|(name, pages)| interval(*name, pages))
            .collect()
    }

    /// Takes intervals in. Returns what other nodes wrote in those that were unknown.
    ///
    /// # Errors
    /// An interval before them is missing, or the writer is no node.
    pub fn learn(&mut self, mut intervals: Vec<Interval>) -> Result<Vec<Written>, Violation> {
        intervals.sort_by_key(|interval| (interval.writer, interval.number));
        let mut written = Vec::new();
        for interval in intervals {
            let Interval {
                writer,
                number,
                pages,
            } = interval;
            let last = self.clock.0.get_mut(usize::from(writer));
            let last = last.ok_or(Violation::Writer(writer))?;
            if number <= *last {
                continue;
            }
            if number != *last + 1 || usize::from(writer) == self.me {
                return Err(Violation::Gap {
                    writer,
                    number,
                    last: *last,
                });
            }
            *last = number;
            written.push(Written {
                writer,
                pages: pages.clone(),
            });
            self.known.insert((writer, number), pages);
        }
        Ok(written)
    }

    /// Notes the end of a barrier, after which all nodes know the same. Those that are still in it
    /// may wait for a lock, so the intervals since the barrier before are kept.
    pub fn end_barrier(&mut self) {
        let before = std::mem::replace(&mut self.at_barrier[0], self.clock.clone());
        self.at_barrier[1] = before;
        let kept = &self.at_barrier[1];
        self.known
            .retain(|(writer, number), _| *number > kept.0[usize::from(*writer)]);
    }
}

fn interval((writer, number): (u16, u32), pages: &[Span]) -> Interval {
    Interval {
        writer,
        number,
        pages: pages.to_vec(),
    }
}
