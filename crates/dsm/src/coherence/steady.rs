//! Pages that the program writes before each release. Comparison with their twins finds what has
//! changed: the kernel is not asked, and leaves them writable, so a write costs no fault.
//!
//! ```text
//!            changed at RELEASES_MIN releases in a row
//!   watched ──────────────────────────────────────────► steady
//!      ▲                                                   │
//!      └──────────────── unchanged at a release ◄──────────┘
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Releases in a row at which a page has changed, after which it is steady.
const RELEASES_MIN: u8 = 3;

/// Most runs of steady pages. Between two of them the kernel is asked, so more cost more than they
/// save.
const RUNS_MAX: usize = 32;

/// Steady pages of a region.
#[derive(Debug)]
pub struct Steady {
    /// Releases in a row at which each page has changed.
    releases: Vec<AtomicU8>,
    pages: Mutex<BTreeSet<usize>>,
}

impl Steady {
    /// Returns none among `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self {
            releases: (0..pages).map(|_| AtomicU8::new(0)).collect(),
            pages: Mutex::default(),
        }
    }

    fn pages(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether a page that was compared with its twin has changed.
    pub fn on_compared(&self, page: usize, has_changed: bool) {
        let before = self.releases[page].load(Ordering::Relaxed);
        let now = if has_changed {
            before.saturating_add(1)
        } else {
            0
        };
        self.releases[page].store(now, Ordering::Relaxed);
        if before < RELEASES_MIN && now >= RELEASES_MIN {
            self.pages().insert(page);
        } else if before >= RELEASES_MIN && now == 0 {
            self.pages().remove(&page);
        }
    }

    /// Returns the runs of steady pages in `range`; none if there are too many.
    pub fn runs(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in self.pages().range(range) {
            match runs.last_mut() {
                Some(last) if last.end == *page => last.end += 1,
                _ => runs.push(*page..page + 1),
            }
            if runs.len() > RUNS_MAX {
                return Vec::new();
            }
        }
        runs
    }

    /// Forgets all.
    pub fn clear(&self) {
        for page in std::mem::take(&mut *self.pages()) {
            self.releases[page].store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(steady: &Steady, pages: Range<usize>, has_changed: bool) {
        pages.for_each(|page| steady.on_compared(page, has_changed));
    }

    #[test]
    fn pages__changed_in_a_row__are_steady_until_they_are_not() {
        let steady = Steady::new(10);
        for _ in 1..RELEASES_MIN {
            note(&steady, 2..5, true);
            note(&steady, 7..8, true);
        }
        assert!(steady.runs(0..10).is_empty());
        note(&steady, 2..5, true);
        note(&steady, 7..8, true);
        assert_eq!(steady.runs(0..10), [2..5, 7..8]);
        assert_eq!(steady.runs(3..8), [3..5, 7..8]);
        assert_eq!(steady.runs(8..10), []);
        note(&steady, 3..4, false);
        assert_eq!(steady.runs(0..10), [2..3, 4..5, 7..8]);
        steady.clear();
        note(&steady, 2..5, true);
        assert!(steady.runs(0..10).is_empty());
    }

    #[test]
    fn runs__more_than_are_worth_it__are_none() {
        let steady = Steady::new(4 * RUNS_MAX);
        let every_second = |count: usize| (0..count).map(|page| 2 * page);
        for _ in 0..RELEASES_MIN {
            every_second(RUNS_MAX).for_each(|page| steady.on_compared(page, true));
        }
        assert_eq!(steady.runs(0..4 * RUNS_MAX).len(), RUNS_MAX);
        for _ in 0..RELEASES_MIN {
            steady.on_compared(2 * RUNS_MAX, true);
        }
        assert!(steady.runs(0..4 * RUNS_MAX).is_empty());
    }
}
