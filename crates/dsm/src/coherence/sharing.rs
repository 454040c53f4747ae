//! Use of the pages of a region by several nodes: which are missed most, and which two nodes write
//! without sharing a byte.
//!
//! Two nodes that write different parts of one page make each other get it again and again (false
//! sharing). A node notes the blocks of 64 bytes of a page that it has written since it got the
//! page. When it gets the page again, the blocks that have changed otherwise are those of others.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Number that stands for no node.
const NOBODY: u16 = u16::MAX;

/// Notes about a page.
#[derive(Debug)]
struct Page {
    misses: AtomicU32,
    /// Times that another node had written other blocks.
    false_shared: AtomicU32,
    /// Blocks that this node has written since it got the page, a bit for each.
    mine: AtomicU64,
    /// Last other node that wrote it.
    other: AtomicU16,
}

/// A page that stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notable {
    /// Number of the page in its region.
    pub page: usize,
    /// Times that it was missed, or that its writers shared no byte.
    pub count: u32,
    /// The other writer, of false sharing.
    pub other: Option<usize>,
}

/// Misses of a region's pages, in cells of as many pages each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heat {
    /// Pages of a cell. The last one may have fewer.
    pub pages_per_cell: usize,
    /// Misses in each cell.
    pub misses: Vec<u64>,
    /// Times of false sharing in each cell.
    pub false_sharing: Vec<u64>,
}

/// Notes about the pages of a region.
#[derive(Debug)]
pub struct Sharing(Vec<Page>);

impl Sharing {
    /// Returns the notes of a region of `pages` pages that nobody has used.
    pub fn new(pages: usize) -> Self {
        let page = |_| Page {
            misses: AtomicU32::new(0),
            false_shared: AtomicU32::new(0),
            mine: AtomicU64::new(0),
            other: AtomicU16::new(NOBODY),
        };
        Self((0..pages).map(page).collect())
    }

    /// Notes a miss.
    pub fn on_miss(&self, page: usize) {
        self.0[page].misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes blocks that this node has written.
    pub fn on_write(&self, page: usize, blocks: u64) {
        self.0[page].mine.fetch_or(blocks, Ordering::Relaxed);
    }

    /// Notes that another node has written the page.
    pub fn on_written(&self, page: usize, writer: u16) {
        self.0[page].other.store(writer, Ordering::Relaxed);
    }

    /// Notes that the page was got, with the blocks that differ from those before.
    pub fn on_got(&self, page: usize, changed: u64) {
        let notes = &self.0[page];
        let mine = notes.mine.swap(0, Ordering::Relaxed);
        if mine != 0 && changed != 0 && mine & changed == 0 {
            notes.false_shared.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a map of the region of at most `cells_max` cells.
    pub fn heat(&self, cells_max: usize) -> Heat {
        let pages_per_cell = self.0.len().div_ceil(cells_max).max(1);
        let sums = |of: &dyn Fn(&Page) -> u32| {
            let cells = self.0.chunks(pages_per_cell);
            let sums = cells.map(|cell| cell.iter().map(|page| u64::from(of(page))).sum());
            sums.collect()
        };
        Heat {
            pages_per_cell,
            misses: sums(&|page| page.misses.load(Ordering::Relaxed)),
            false_sharing: sums(&|page| page.false_shared.load(Ordering::Relaxed)),
        }
    }

    /// Returns the pages with most misses, at most `count`.
    pub fn hottest(&self, count: usize) -> Vec<Notable> {
        self.most(count, |page| page.misses.load(Ordering::Relaxed), false)
    }

    /// Returns the pages with most false sharing, at most `count`.
    pub fn false_sharing(&self, count: usize) -> Vec<Notable> {
        self.most(
            count,
            |page| page.false_shared.load(Ordering::Relaxed),
            true,
        )
    }

    fn most(&self, count: usize, of: impl Fn(&Page) -> u32, with_other: bool) -> Vec<Notable> {
        let pages = self.0.iter().enumerate().filter(|(_, page)| of(page) > 0);
        let notable = pages.map(|(number, page)| {
            let other = page.other.load(Ordering::Relaxed);
            Notable {
                page: number,
                count: of(page),
                other: (with_other && other != NOBODY).then_some(usize::from(other)),
            }
        });
        let mut notable: Vec<Notable> = notable.collect();
        notable.sort_by_key(|notable| std::cmp::Reverse(notable.count));
        notable.truncate(count);
        notable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing__of_other_blocks_and_of_the_same__counts_the_first_with_its_writer() {
        let sharing = Sharing::new(8);
        for _ in 0..3 {
            sharing.on_write(2, 0b11);
            sharing.on_written(2, 5);
            sharing.on_got(2, 0b1100);
            sharing.on_write(4, 0b11);
            sharing.on_got(4, 0b110);
            sharing.on_got(6, 0b110);
            sharing.on_miss(6);
        }
        let expected = Notable {
            page: 2,
            count: 3,
            other: Some(5),
        };
        assert_eq!(sharing.false_sharing(9), [expected]);
        assert_eq!(sharing.hottest(1)[0].page, 6);
        assert_eq!(sharing.hottest(0), []);
        let heat = Heat {
            pages_per_cell: 3,
            misses: vec![0, 0, 3],
            false_sharing: vec![3, 0, 0],
        };
        assert_eq!(sharing.heat(3), heat);
    }
}
