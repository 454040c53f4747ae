//! Runs of pages. Pages of all regions have one numbering.

use std::ops::Range;

/// A run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Number of the first page.
    pub first: u32,
    /// Number of pages, at least one.
    pub count: u32,
}

impl Span {
    /// Returns the pages.
    pub fn pages(self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// Adds a page behind all others, or in a run of its own.
pub fn push(spans: &mut Vec<Span>, page: u32) {
    match spans.last_mut() {
        Some(last) if last.first + last.count == page => last.count += 1,
        _ => spans.push(Span {
            first: page,
            count: 1,
        }),
    }
}
