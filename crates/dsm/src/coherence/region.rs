//! A region on this node: the states of its pages, and their twins.
//!
//! | state of a page | the program's view | twin |
//! |---|---|---|
//! | invalid | closed | of an earlier copy, or none |
//! | valid | open | equal to the copy when it was got, or last sent |
//! | valid, at its home | open | none: the copy is the original |
//!
//! A thread that changes a page's state has it locked. Bytes that the program wrote to a page
//! between its last write home and its closing are found when it is got again.

use super::error::DsmError;
use super::fabric::{Memory, Update};
use super::holders::Holders;
use super::refreshes::Refreshes;
use super::sharing::Sharing;
use super::steady::Steady;
use super::subscriptions::Subscriptions;
use crate::protocol::{Malformed, PageRuns, Placement, Span, Updates, Violation};
use kumi_sys::compare::{BLOCK_BYTES, differing_bytes};
use kumi_sys::shared_memory::SharedMemory;
use kumi_sys::tracked_memory::TrackedMemory;
use kumi_wind::protocol::diff;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use kumi_sys::tracked_memory::PAGE_BYTES;

/// Pages that a miss gets at once, if they are missing too and have the same home. Misses behind
/// each other get twice as many each time, up to half a MiB.
const PAGES_PER_MISS: usize = 8;
const PAGES_PER_MISS_MAX: usize = 128;

/// The page is valid.
pub const VALID: u8 = 1;
const LOCKED: u8 = 2;
/// The page has a twin.
pub const HAS_TWIN: u8 = 4;

/// This node's copy of the pages of a region, with the program's view of it.
pub trait View: Send + Sync {
    /// Returns the bytes, for the library.
    fn own(&self) -> &SharedMemory;
    /// Lets the program use pages, and begins to note their writes.
    fn open(&self, pages: Range<usize>) -> io::Result<()>;
    /// Ends that. The bytes stay.
    fn close(&self, pages: Range<usize>) -> io::Result<()>;
    /// Appends the runs of written pages among `pages`, which count as unwritten then.
    fn take_written(&self, pages: Range<usize>, runs: &mut Vec<Range<usize>>) -> io::Result<()>;
}

impl View for TrackedMemory {
    fn own(&self) -> &SharedMemory {
        self.own()
    }

    fn open(&self, pages: Range<usize>) -> io::Result<()> {
        self.open(pages)
    }

    fn close(&self, pages: Range<usize>) -> io::Result<()> {
        self.close(pages)
    }

    fn take_written(&self, pages: Range<usize>, runs: &mut Vec<Range<usize>>) -> io::Result<()> {
        self.take_written(pages, runs)
    }
}

/// Returns the bytes of a page.
pub fn page_of(memory: &SharedMemory, page: usize) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    memory.read(page * PAGE_BYTES, &mut bytes);
    bytes
}

/// Stores the changed ranges of a page in `found`.
pub fn changes(twin: &[u8; PAGE_BYTES], now: &[u8; PAGE_BYTES], found: &mut Vec<Range<usize>>) {
    let mut masks = [0; PAGE_BYTES / BLOCK_BYTES];
    differing_bytes(twin, now, &mut masks);
    found.clear();
    diff::for_each_range(masks, |range| diff::extend(found, range));
}

/// Calls `write` with the offset in a page and the bytes of each of its runs.
pub(super) fn write_runs(
    runs: &PageRuns,
    mut write: impl FnMut(usize, &[u8]),
) -> Result<(), DsmError> {
    for run in diff::runs(runs) {
        let run = run.ok().filter(|(at, bytes)| {
            let end = (*at as usize).checked_add(bytes.len());
            end.is_some_and(|end| end <= PAGE_BYTES)
        });
        let malformed = || Violation::from(Malformed(runs.len()));
        let (at, bytes) = run.ok_or_else(malformed)?;
        write(at as usize, bytes);
    }
    Ok(())
}

/// Memory of a region beside the program's view and its copy. All are zeros, as many bytes.
pub struct Copies {
    /// Pages as they were when they were got, or last sent.
    pub twins: SharedMemory,
    /// Pages as they will be behind the next barrier: of regions that are updated at barriers, and
    /// of others those whose home or replica this node is, if there are replicas.
    pub staged: Option<SharedMemory>,
    /// Pages as they were at the last barrier, if there are replicas.
    pub committed: Option<SharedMemory>,
}

/// A region on this node.
pub struct Region<V> {
    pub(super) number: usize,
    pub(super) first: u32,
    pub(super) placement: Placement,
    pub(super) updates: Updates,
    pub(super) holders: Arc<Holders>,
    pub(super) nodes: usize,
    pub(super) view: V,
    pub(super) twins: SharedMemory,
    pub(super) staged: Option<SharedMemory>,
    pub(super) committed: Option<SharedMemory>,
    /// Pages that have ever been committed.
    pub(super) touched: Vec<AtomicBool>,
    /// The nodes went back to a barrier before its allocation.
    pub(super) is_gone: AtomicBool,
    /// Pages that stay valid and open.
    pub(super) pinned: Vec<AtomicBool>,
    /// Pages that several nodes have written before one barrier.
    pub(super) contended: Vec<AtomicBool>,
    pub(super) states: Vec<AtomicU8>,
    pub(super) sharing: Sharing,
    pub(super) subscriptions: Subscriptions,
    pub(super) steady: Steady,
    /// The page behind those that the last miss got, and their number.
    pub(super) last_miss: Mutex<(usize, usize)>,
    /// Valid pages that were accessed and were not in the page table.
    pub(super) suspects: Mutex<Vec<usize>>,
    /// Pages whose bytes went home before the release that will note them.
    pub(super) unnoted: Mutex<Vec<u32>>,
}

impl<V: View> Region<V> {
    /// Returns the number of the region.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the program's view.
    pub fn view(&self) -> &V {
        &self.view
    }

    /// Returns a memory into which other nodes put bytes.
    ///
    /// # Panics
    /// Panics if there are no replicas.
    pub fn memory(&self, memory: Memory) -> &SharedMemory {
        match (memory, &self.staged) {
            (Memory::Pages, Some(staged)) if self.updates == Updates::AtBarriers => staged,
            (Memory::Pages, _) => self.view.own(),
            (Memory::Replica, staged) => staged.as_ref().expect("there are replicas"),
        }
    }

    pub(super) fn pages(&self) -> usize {
        self.states.len()
    }

    /// Adds all bytes of a page whose home this node is to changes for subscribers.
    pub(super) fn add_home_to(&self, refreshes: &mut Refreshes, page: usize) {
        let number = self.first + page as u32;
        if refreshes.is_wanted(number) {
            let mut runs = Vec::new();
            diff::push_run(0, &page_of(self.view.own(), page), &mut runs);
            refreshes.add(number, &runs);
        }
    }

    /// Returns whether a page, numbered over all regions, is of this one.
    pub(super) fn has(&self, number: u32) -> bool {
        let page = number.checked_sub(self.first);
        page.is_some_and(|page| (page as usize) < self.pages())
    }

    /// Returns the node that was a page's home when all nodes were there.
    pub(super) fn first_home(&self, page: usize) -> usize {
        let pages = self.states.len() as u32;
        self.placement.home(page as u32, pages, self.nodes)
    }

    pub(super) fn home(&self, page: usize) -> usize {
        self.holders.home(self.first_home(page))
    }

    /// Returns the node that has a page as of the last barrier, beside its home.
    pub(super) fn replica(&self, page: usize) -> Option<usize> {
        self.holders.replica(self.first_home(page))
    }

    /// Forgets what the next release would note.
    pub(super) fn forget_writes(&self) {
        let suspects = self.suspects.lock();
        suspects.unwrap_or_else(PoisonError::into_inner).clear();
        let unnoted = self.unnoted.lock();
        unnoted.unwrap_or_else(PoisonError::into_inner).clear();
        let last_miss = self.last_miss.lock();
        *last_miss.unwrap_or_else(PoisonError::into_inner) = (0, 0);
    }

    pub(super) fn try_lock(&self, page: usize) -> Option<u8> {
        let state = self.states[page].fetch_or(LOCKED, Ordering::Acquire);
        (state & LOCKED == 0).then_some(state)
    }

    pub(super) fn lock(&self, page: usize) -> u8 {
        loop {
            if let Some(state) = self.try_lock(page) {
                return state;
            }
            // The other thread gets the page from its home.
            std::thread::yield_now();
        }
    }

    pub(super) fn unlock(&self, page: usize, state: u8) {
        self.states[page].store(state & !LOCKED, Ordering::Release);
    }

    /// Returns the number of pages that a miss at `page` gets.
    pub(super) fn pages_of_miss(&self, page: usize) -> usize {
        let last = self
            .last_miss
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *last {
            (next, count) if next == page && count > 0 => (2 * count).min(PAGES_PER_MISS_MAX),
            _ => PAGES_PER_MISS,
        }
    }

    /// Returns the runs of this region's pages among `spans`.
    pub(super) fn local_runs(&self, spans: &[Span]) -> Vec<Range<usize>> {
        let (first, end) = (self.first, self.first + self.pages() as u32);
        let local = spans.iter().filter_map(|span| {
            let start = span.first.max(first);
            let stop = (span.first + span.count).min(end);
            (start < stop).then(|| (start - first) as usize..(stop - first) as usize)
        });
        local.collect()
    }

    pub(super) fn local(&self, spans: &[Span]) -> impl Iterator<Item = usize> {
        self.local_runs(spans).into_iter().flatten()
    }

    /// Notes what others have changed on a locked page that was got as `bytes`.
    pub(super) fn note_got(&self, page: usize, bytes: &[u8]) {
        let before = page_of(self.view.own(), page);
        let mut masks = [0; PAGE_BYTES / BLOCK_BYTES];
        differing_bytes(&before, bytes, &mut masks);
        let blocks = masks.iter().enumerate();
        let changed = blocks.map(|(block, mask)| u64::from(*mask != 0) << block);
        self.sharing.on_got(page, changed.sum());
    }

    /// Returns the region's pages that this node may use, and those whose home it is.
    pub fn pages_here(&self, me: usize) -> (usize, usize) {
        let valid = self.states.iter();
        let valid = valid.filter(|state| state.load(Ordering::Relaxed) & VALID != 0);
        let homes = (0..self.pages()).filter(|page| self.home(*page) == me);
        (valid.count(), homes.count())
    }

    /// Returns the notes about its pages.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Returns the way in which changes reach other nodes.
    pub fn updates(&self) -> Updates {
        self.updates
    }

    /// Notes a page whose writes may have been forgotten.
    pub(super) fn suspect(&self, page: usize) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.push(page);
    }

    /// Returns the pages in `range` that may have been written since the last call, in order.
    pub(super) fn take_written(&self, range: Range<usize>) -> Result<Vec<usize>, DsmError> {
        let mut runs = Vec::new();
        let mut from = range.start;
        for steady in self.steady.runs(range.clone()) {
            let taken = self.view.take_written(from..steady.start, &mut runs);
            taken.map_err(DsmError::memory)?;
            from = steady.end;
            runs.push(steady);
        }
        let taken = self.view.take_written(from..range.end, &mut runs);
        taken.map_err(DsmError::memory)?;
        Ok(self.with_suspects(runs, range))
    }

    /// Returns the pages of `runs`, and those in `range` whose writes may have been forgotten.
    fn with_suspects(&self, runs: Vec<Range<usize>>, range: Range<usize>) -> Vec<usize> {
        let mut pages: Vec<usize> = runs.into_iter().flatten().collect();
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if !suspects.is_empty() {
            let (taken, left) = suspects.drain(..).partition(|page| range.contains(page));
            *suspects = left;
            pages.extend::<Vec<usize>>(taken);
            pages.sort_unstable();
            pages.dedup();
        }
        pages
    }

    /// Makes the twin of a locked page equal to the page.
    pub(super) fn renew_twin(&self, page: usize) {
        let bytes = page_of(self.view.own(), page);
        self.twins.write(page * PAGE_BYTES, &bytes);
    }

    /// Calls `changed` with the offset in the region and the bytes of each run in which a locked
    /// page differs from its twin, which has them then. Returns the number of bytes.
    pub(super) fn take_changes(&self, page: usize, mut changed: impl FnMut(u64, &[u8])) -> usize {
        let at = page * PAGE_BYTES;
        let (now, twin) = (page_of(self.view.own(), page), page_of(&self.twins, page));
        let mut found = Vec::new();
        changes(&twin, &now, &mut found);
        self.steady.on_compared(page, !found.is_empty());
        if found.is_empty() {
            return 0;
        }
        let (mut changed_bytes, mut blocks) = (0, 0_u64);
        for range in found {
            changed_bytes += range.len();
            for block in range.start / BLOCK_BYTES..=(range.end - 1) / BLOCK_BYTES {
                blocks |= 1 << block;
            }
            changed((at + range.start) as u64, &now[range]);
        }
        self.sharing.on_write(page, blocks);
        self.twins.write(at, &now);
        changed_bytes
    }

    /// Appends what [`Self::take_changes`] finds, joined with what stands before it. Returns the
    /// number of bytes.
    pub(super) fn take_update(&self, page: usize, updates: &mut Vec<Update>) -> usize {
        self.take_changes(page, |offset, bytes| {
            self.memory(Memory::Pages).write(offset as usize, bytes);
            match updates.last_mut() {
                Some(last)
                    if last.region == self.number
                        && last.offset + last.bytes.len() as u64 == offset =>
                {
                    last.bytes.extend_from_slice(bytes);
                }
                _ => updates.push(Update {
                    region: self.number,
                    offset,
                    bytes: bytes.to_vec(),
                }),
            }
        })
    }

    /// Takes what has arrived for a locked page in.
    pub(super) fn take_arrivals(&self, page: usize, state: u8) {
        let at = page * PAGE_BYTES;
        // Nodes that have passed the barrier may send for the next one already. The same bytes go
        // to the copy and the twin, so that they are no changes of this node.
        let bytes = page_of(self.memory(Memory::Pages), page);
        self.view.own().write(at, &bytes);
        if state & VALID != 0 {
            self.twins.write(at, &bytes);
        }
    }

    pub(super) fn note(&self, pages: impl Iterator<Item = usize>) {
        let mut unnoted = self.unnoted.lock().unwrap_or_else(PoisonError::into_inner);
        unnoted.extend(pages.map(|page| self.first + page as u32));
    }

    /// Takes in what the only writer of a page has changed before a barrier. Returns whether the
    /// page is valid with it.
    pub(super) fn refresh(&self, page: usize, runs: &PageRuns) -> Result<bool, DsmError> {
        let state = self.lock(page);
        if state & VALID == 0 {
            self.unlock(page, state);
            return Ok(false);
        }
        let at = page * PAGE_BYTES;
        let written = write_runs(runs, |offset, bytes| {
            self.view.own().write(at + offset, bytes);
            self.twins.write(at + offset, bytes);
        });
        let is_pinned = self.pinned[page].load(Ordering::Relaxed);
        let is_watched = !is_pinned && written.is_ok() && self.subscriptions.on_refresh(page);
        let closed = match is_watched {
            true => self.view.close(page..page + 1).map_err(DsmError::memory),
            false => Ok(()),
        };
        self.unlock(page, state);
        written.and(closed).map(|()| true)
    }
}
