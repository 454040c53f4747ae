//! Pages of this node: which are valid, their twins, and the bytes that changed.
//!
//! | state of a page | the program's view | twin |
//! |---|---|---|
//! | invalid | closed | of an earlier copy, or none |
//! | valid | open | equal to the copy when it was got, or last written home |
//! | valid, at its home | open | none: the copy is the original |
//!
//! A thread that changes a page's state has it locked. Bytes that the program wrote to a page
//! between its last write home and its closing are found when it is got again.

use super::counts::{Counters, add};
use super::error::DsmError;
use crate::protocol::{Placement, Span, spans};
use kumi_sys::shared_memory::SharedMemory;
use kumi_sys::tracked_memory::TrackedMemory;
use kumi_wind::protocol::diff;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use kumi_sys::tracked_memory::PAGE_BYTES;

/// Pages that a miss gets at once, if they are missing too and have the same home. Misses behind
/// each other get twice as many each time, up to half a MiB.
const PAGES_PER_MISS: usize = 8;
const PAGES_PER_MISS_MAX: usize = 128;

/// Pages that a prefetch gets at once.
const PAGES_PER_PREFETCH: usize = 256;

const VALID: u8 = 1;
const LOCKED: u8 = 2;
const HAS_TWIN: u8 = 4;

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

/// Changed bytes of a region, for one home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedDiff {
    /// Node that is the home of all pages in it.
    pub home: usize,
    /// Number of the region.
    pub region: usize,
    /// Offset in the region from which the runs count, in bytes.
    pub offset: u64,
    /// Runs, as [`diff`] encodes them.
    pub runs: Vec<u8>,
}

/// Means by which nodes reach each other.
pub trait Fabric: Send + Sync {
    /// Reads bytes of a region's copy at `home`.
    ///
    /// # Errors
    /// The node is lost.
    fn get(&self, home: usize, region: usize, offset: u64, into: &mut [u8])
    -> Result<(), DsmError>;

    /// Applies diffs at their homes. They are there when this returns.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn put(&self, diffs: Vec<EncodedDiff>) -> Result<(), DsmError>;

    /// Returns the most bytes of the runs of a diff.
    fn diff_bytes_max(&self) -> usize;

    /// Returns an error if a node is lost: no call can succeed then.
    ///
    /// # Errors
    /// A node is lost.
    fn check(&self) -> Result<(), DsmError>;

    /// Sends a message. Messages to a node arrive in order.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError>;

    /// Waits until `is_done` returns true. It is called again after each message that was handled.
    ///
    /// # Errors
    /// A node is lost.
    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError>;
}

/// A region on this node.
pub struct Region<V> {
    number: usize,
    first: u32,
    placement: Placement,
    nodes: usize,
    view: V,
    twins: SharedMemory,
    states: Vec<AtomicU8>,
    /// The page behind those that the last miss got, and their number.
    last_miss: Mutex<(usize, usize)>,
    /// Pages whose bytes went home before the release that will note them.
    unnoted: Mutex<Vec<u32>>,
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

    fn pages(&self) -> usize {
        self.states.len()
    }

    fn home(&self, page: usize) -> usize {
        let pages = self.states.len() as u32;
        self.placement.home(page as u32, pages, self.nodes)
    }

    fn try_lock(&self, page: usize) -> Option<u8> {
        let state = self.states[page].fetch_or(LOCKED, Ordering::Acquire);
        (state & LOCKED == 0).then_some(state)
    }

    fn lock(&self, page: usize) -> u8 {
        loop {
            if let Some(state) = self.try_lock(page) {
                return state;
            }
            // The other thread gets the page from its home.
            std::thread::yield_now();
        }
    }

    fn unlock(&self, page: usize, state: u8) {
        self.states[page].store(state & !LOCKED, Ordering::Release);
    }

    /// Returns the number of pages that a miss at `page` gets.
    fn pages_of_miss(&self, page: usize) -> usize {
        let last = self
            .last_miss
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *last {
            (next, count) if next == page && count > 0 => (2 * count).min(PAGES_PER_MISS_MAX),
            _ => PAGES_PER_MISS,
        }
    }

    fn note(&self, pages: impl Iterator<Item = usize>) {
        let mut unnoted = self.unnoted.lock().unwrap_or_else(PoisonError::into_inner);
        unnoted.extend(pages.map(|page| self.first + page as u32));
    }
}

/// The pages of this node.
pub struct Pages<V> {
    me: usize,
    nodes: usize,
    regions: RwLock<Vec<Arc<Region<V>>>>,
    pub counters: Counters,
}

impl<V: View> Pages<V> {
    pub fn new(me: usize, nodes: usize) -> Self {
        Self {
            me,
            nodes,
            regions: RwLock::new(Vec::new()),
            counters: Counters::default(),
        }
    }

    pub fn regions(&self) -> Vec<Arc<Region<V>>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.clone()
    }

    /// Adds a region whose copy is all zeros.
    pub fn add(&self, view: V, placement: Placement) -> io::Result<Arc<Region<V>>> {
        let bytes = view.own().bytes();
        let twins = SharedMemory::new(bytes)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let first = regions
            .last()
            .map_or(0, |last| last.first + last.pages() as u32);
        let region = Arc::new(Region {
            number: regions.len(),
            first,
            placement,
            nodes: self.nodes,
            view,
            twins,
            states: (0..bytes / PAGE_BYTES).map(|_| AtomicU8::new(0)).collect(),
            last_miss: Mutex::new((0, 0)),
            unnoted: Mutex::new(Vec::new()),
        });
        regions.push(Arc::clone(&region));
        Ok(region)
    }

    /// Makes a page valid that the program has accessed, and some behind it, and opens them.
    pub fn fault(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        page: usize,
    ) -> Result<(), DsmError> {
        let got = self.get(fabric, region, page, region.pages_of_miss(page))?;
        if got > 0 {
            add(&self.counters.misses, 1);
            let mut last = region
                .last_miss
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *last = (page + got, got);
        }
        Ok(())
    }

    /// Makes a page valid, and up to `pages_max - 1` behind it that are missing too and have the
    /// same home, and opens them. Returns the number of pages that it got.
    fn get(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        page: usize,
        pages_max: usize,
    ) -> Result<usize, DsmError> {
        let state = region.lock(page);
        let home = region.home(page);
        if home == self.me || state & VALID != 0 {
            let opened = region.view.open(page..page + 1);
            region.unlock(page, state | VALID);
            return opened.map(|()| 0).map_err(DsmError::memory);
        }
        let mut run = vec![state];
        while run.len() < pages_max {
            let next = page + run.len();
            if next >= region.pages() || region.home(next) != home {
                break;
            }
            let Some(state) = region.try_lock(next) else {
                break;
            };
            if state & VALID != 0 {
                region.unlock(next, state);
                break;
            }
            run.push(state);
        }
        let pages = page..page + run.len();
        let outcome = self.fetch(fabric, region, home, pages.clone(), &run);
        let count = run.len();
        add(&self.counters.fetched_pages, count);
        for (page, state) in pages.zip(run) {
            let state = match &outcome {
                Ok(()) => VALID | HAS_TWIN,
                Err(_) => state,
            };
            region.unlock(page, state);
        }
        outcome.map(|()| count)
    }

    /// Makes pages valid, before the program accesses them.
    pub fn prefetch(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: Range<usize>,
    ) -> Result<(), DsmError> {
        for page in pages.clone() {
            if region.states[page].load(Ordering::Relaxed) & VALID == 0 {
                let pages_max = (pages.end - page).min(PAGES_PER_PREFETCH);
                self.get(fabric, region, page, pages_max)?;
            }
        }
        Ok(())
    }

    /// Gets locked pages from their home, and opens them.
    fn fetch(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        home: usize,
        pages: Range<usize>,
        states: &[u8],
    ) -> Result<(), DsmError> {
        let strays: Vec<usize> = pages
            .clone()
            .zip(states)
            .filter(|(_, state)| **state & HAS_TWIN != 0)
            .map(|(page, _)| page)
            .collect();
        self.write_home(fabric, region, &strays)?;
        let mut bytes = vec![0; pages.len() * PAGE_BYTES];
        let offset = pages.start * PAGE_BYTES;
        fabric.get(home, region.number, offset as u64, &mut bytes)?;
        region.view.own().write(offset, &bytes);
        region.twins.write(offset, &bytes);
        region.view.open(pages).map_err(DsmError::memory)
    }

    /// Writes the bytes home in which locked pages differ from their twins. The pages that differ
    /// are noted at the next release.
    fn write_home(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: &[usize],
    ) -> Result<(), DsmError> {
        let mut diffs = Diffs::new(fabric.diff_bytes_max());
        let changed = pages
            .iter()
            .copied()
            .filter(|page| diffs.add(region, *page));
        let changed: Vec<usize> = changed.collect();
        if !changed.is_empty() {
            add(&self.counters.diffed_pages, changed.len());
            add(&self.counters.changed_bytes, diffs.changed_bytes);
            let encoded = diffs.parts.iter().map(|part| part.runs.len()).sum();
            add(&self.counters.diff_bytes, encoded);
            fabric.put(diffs.finish())?;
            region.note(changed.into_iter());
        }
        Ok(())
    }

    /// Writes all changed bytes home. Returns the pages that this node has written since the last
    /// call.
    pub fn flush(&self, fabric: &impl Fabric) -> Result<Vec<Span>, DsmError> {
        let mut noted = Vec::new();
        for region in self.regions() {
            self.flush_pages(fabric, &region, 0..region.pages())?;
            let mut unnoted = region
                .unnoted
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            unnoted.sort_unstable();
            unnoted.dedup();
            for page in unnoted.drain(..) {
                spans::push(&mut noted, page);
            }
        }
        Ok(noted)
    }

    fn flush_pages(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: Range<usize>,
    ) -> Result<(), DsmError> {
        let mut runs = Vec::new();
        let taken = region.view.take_written(pages, &mut runs);
        taken.map_err(DsmError::memory)?;
        let mut written = Vec::new();
        for page in runs.into_iter().flatten() {
            if region.home(page) == self.me {
                region.note(std::iter::once(page));
                continue;
            }
            let state = region.lock(page);
            if state & HAS_TWIN != 0 {
                written.push(page);
            } else {
                region.unlock(page, state);
            }
        }
        let outcome = self.write_home(fabric, region, &written);
        for page in written {
            let state = region.states[page].load(Ordering::Relaxed);
            region.unlock(page, state);
        }
        outcome
    }

    /// Closes pages that others have written. What this node has written to them goes home before.
    pub fn invalidate(&self, fabric: &impl Fabric, spans: &[Span]) -> Result<(), DsmError> {
        for region in self.regions() {
            let (first, end) = (region.first, region.first + region.pages() as u32);
            for span in spans {
                let start = span.first.max(first);
                let stop = (span.first + span.count).min(end);
                if start < stop {
                    let local = (start - first) as usize..(stop - first) as usize;
                    self.invalidate_run(fabric, &region, local)?;
                }
            }
        }
        Ok(())
    }

    fn invalidate_run(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: Range<usize>,
    ) -> Result<(), DsmError> {
        self.flush_pages(fabric, region, pages.clone())?;
        let mut closing: Option<Range<usize>> = None;
        for page in pages {
            let state = region.lock(page);
            if region.home(page) == self.me || state & VALID == 0 {
                region.unlock(page, state);
                continue;
            }
            add(&self.counters.invalidated_pages, 1);
            match &mut closing {
                Some(run) if run.end == page => run.end += 1,
                _ => {
                    if let Some(run) = closing.replace(page..page + 1) {
                        close(region, run)?;
                    }
                }
            }
        }
        closing.map_or(Ok(()), |run| close(region, run))
    }
}

/// Closes locked pages, and unlocks them.
fn close<V: View>(region: &Region<V>, pages: Range<usize>) -> Result<(), DsmError> {
    let closed = region.view.close(pages.clone());
    for page in pages {
        let state = region.states[page].load(Ordering::Relaxed);
        region.unlock(page, state & !VALID);
    }
    closed.map_err(DsmError::memory)
}

/// Diffs of pages, joined by home as far as they fit a part.
struct Diffs {
    bytes_max: usize,
    parts: Vec<EncodedDiff>,
    /// The part of each home and region that may have room.
    open: HashMap<(usize, usize), usize>,
    changed_bytes: usize,
}

impl Diffs {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            parts: Vec::new(),
            open: HashMap::new(),
            changed_bytes: 0,
        }
    }

    /// Adds the bytes of a locked page that differ from its twin, which has them then. Returns
    /// whether there are any.
    fn add<V: View>(&mut self, region: &Region<V>, page: usize) -> bool {
        let (mut now, mut twin) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let at = page * PAGE_BYTES;
        region.view.own().read(at, &mut now);
        region.twins.read(at, &mut twin);
        let changes = diff::changes(&twin, &now);
        if changes.is_empty() {
            return false;
        }
        let (home, bytes_max) = (region.home(page), self.bytes_max);
        for change in changes {
            self.changed_bytes += change.len();
            let mut rest = change;
            while !rest.is_empty() {
                let part = self.part(home, region.number, (at + rest.start) as u64);
                let room = bytes_max - part.runs.len() - diff::RUN_HEADER_BYTES;
                let end = rest.end.min(rest.start + room);
                let offset = (at + rest.start) as u64 - part.offset;
                diff::push_run(offset as u32, &now[rest.start..end], &mut part.runs);
                rest.start = end;
            }
        }
        region.twins.write(at, &now);
        true
    }

    /// Returns a part for the home that has room for a run of one byte.
    fn part(&mut self, home: usize, region: usize, offset: u64) -> &mut EncodedDiff {
        let fits = |part: &EncodedDiff| {
            part.runs.len() + diff::RUN_HEADER_BYTES < self.bytes_max
                && offset >= part.offset
                && offset - part.offset <= u64::from(u32::MAX)
        };
        let open = self.open.get(&(home, region)).copied();
        let index = open.filter(|index| fits(&self.parts[*index]));
        let index = index.unwrap_or_else(|| {
            self.parts.push(EncodedDiff {
                home,
                region,
                offset,
                runs: Vec::new(),
            });
            let index = self.parts.len() - 1;
            self.open.insert((home, region), index);
            index
        });
        &mut self.parts[index]
    }

    fn finish(self) -> Vec<EncodedDiff> {
        self.parts
    }
}
