//! The pages of this node: misses, releases and acquires.

use super::counts::{Counters, add};
use super::diffs::{Diffs, PAGES_PER_PUT};
use super::error::DsmError;
use super::fabric::{Fabric, Memory};
use super::holders::Holders;
use super::progress::Progress;
use super::refreshes::Refreshes;
use super::region::{Copies, HAS_TWIN, PAGE_BYTES, Region, VALID, View};
use super::sharing::Sharing;
use super::steady::Steady;
use super::subscriptions::Subscriptions;
use crate::protocol::{Placement, Span, Updates, Written, spans};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The pages of this node.
pub struct Pages<V> {
    me: usize,
    pub(super) nodes: usize,
    regions: RwLock<Vec<Arc<Region<V>>>>,
    pub holders: Arc<Holders>,
    progress: Mutex<Progress>,
    pub counters: Counters,
}

impl<V: View> Pages<V> {
    pub fn new(me: usize, nodes: usize) -> Self {
        let holders = Holders::new(nodes);
        Self {
            me,
            nodes,
            regions: RwLock::new(Vec::new()),
            progress: Mutex::new(Progress::new(holders.pairs())),
            holders: Arc::new(holders),
            counters: Counters::default(),
        }
    }

    pub fn regions(&self) -> Vec<Arc<Region<V>>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.clone()
    }

    /// Gives each page a replica.
    pub fn keep_replicas(&self) {
        self.holders.keep_replicas();
        *self.progress() = Progress::new(self.holders.pairs());
    }

    pub(super) fn me(&self) -> usize {
        self.me
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first regions. The others are gone.
    pub(super) fn truncate(&self, count: usize) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let kept = count.min(regions.len());
        for region in regions.drain(kept..) {
            region.is_gone.store(true, Ordering::Relaxed);
            // An access ends the process with the reason.
            let _ = region.close_all();
        }
    }

    pub(super) fn regions_with(&self, updates: Updates) -> impl Iterator<Item = Arc<Region<V>>> {
        let regions = self.regions().into_iter();
        regions.filter(move |region| region.updates == updates)
    }

    /// Adds a region whose copy is all zeros.
    pub fn add(
        &self,
        view: V,
        copies: Copies,
        placement: Placement,
        updates: Updates,
    ) -> Arc<Region<V>> {
        let bytes = view.own().bytes();
        let Copies {
            twins,
            staged,
            committed,
        } = copies;
        let flags = || (0..bytes / PAGE_BYTES).map(|_| false.into()).collect();
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let first = regions
            .last()
            .map_or(0, |last| last.first + last.pages() as u32);
        let region = Arc::new(Region {
            number: regions.len(),
            first,
            placement,
            updates,
            nodes: self.nodes,
            view,
            twins,
            staged,
            committed,
            touched: flags(),
            is_gone: AtomicBool::new(false),
            pinned: flags(),
            contended: flags(),
            holders: Arc::clone(&self.holders),
            sharing: Sharing::new(bytes / PAGE_BYTES),
            subscriptions: Subscriptions::new(bytes / PAGE_BYTES),
            steady: Steady::new(bytes / PAGE_BYTES),
            states: (0..bytes / PAGE_BYTES).map(|_| AtomicU8::new(0)).collect(),
            last_miss: Mutex::new((0, 0)),
            unnoted: Mutex::new(Vec::new()),
            suspects: Mutex::new(Vec::new()),
        });
        regions.push(Arc::clone(&region));
        region
    }

    /// Writes the bytes home in which locked pages differ from their twins. The pages that differ
    /// are noted at the next release.
    pub(super) fn write_home(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: &[usize],
        refreshes: &mut Refreshes,
    ) -> Result<(), DsmError> {
        let mut puts = Default::default();
        for pages in pages.chunks(PAGES_PER_PUT) {
            let mut diffs = Diffs::new(fabric.diff_bytes_max(), Memory::Pages);
            let changed = pages
                .iter()
                .copied()
                .filter(|page| diffs.add(region, *page, refreshes));
            let changed: Vec<usize> = changed.collect();
            if changed.is_empty() {
                continue;
            }
            add(&self.counters.diffed_pages, changed.len());
            add(&self.counters.changed_bytes, diffs.changed_bytes);
            let encoded = diffs.parts.iter().map(|part| part.runs.len()).sum();
            add(&self.counters.diff_bytes, encoded);
            fabric.start_puts(diffs.parts, &mut puts)?;
            region.note(changed.into_iter());
        }
        fabric.finish_puts(puts)
    }

    /// Writes all changed bytes home. Returns the pages that this node has written since the last
    /// call.
    /// `refreshes` gets the changes that have subscribers.
    pub fn flush(
        &self,
        fabric: &impl Fabric,
        refreshes: &mut Refreshes,
    ) -> Result<Vec<Span>, DsmError> {
        let mut noted = Vec::new();
        for region in self.regions_with(Updates::OnAccess) {
            let partial = region
                .unnoted
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            refreshes.leave_out(&partial);
            drop(partial);
            self.flush_pages(fabric, &region, 0..region.pages(), refreshes)?;
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
        refreshes: &mut Refreshes,
    ) -> Result<(), DsmError> {
        let mut written = Vec::new();
        for page in region.take_written(pages)? {
            if region.home(page) == self.me {
                // With swap, pages that were never open are reported too.
                if region.states[page].load(Ordering::Relaxed) & VALID != 0 {
                    region.note(std::iter::once(page));
                    region.add_home_to(refreshes, page);
                }
                continue;
            }
            let state = region.lock(page);
            if state & HAS_TWIN != 0 {
                written.push(page);
            } else {
                region.unlock(page, state);
            }
        }
        let outcome = self.write_home(fabric, region, &written, refreshes);
        for page in written {
            let state = region.states[page].load(Ordering::Relaxed);
            region.unlock(page, state);
        }
        outcome
    }

    /// Closes pages that others have written, but for `valid` ones. What this node has written to
    /// them goes home before.
    pub fn invalidate(
        &self,
        fabric: &impl Fabric,
        written: &[Written],
        valid: &BTreeSet<u32>,
    ) -> Result<(), DsmError> {
        for region in self.regions_with(Updates::OnAccess) {
            for Written { writer, pages } in written {
                for run in region.local_runs(pages) {
                    for page in run.clone() {
                        region.sharing.on_written(page, *writer);
                    }
                    let mut start = run.start;
                    let number = |page: usize| region.first + page as u32;
                    for kept in valid.range(number(run.start)..number(run.end)) {
                        let page = (kept - region.first) as usize;
                        self.invalidate_run(fabric, &region, start..page)?;
                        start = page + 1;
                    }
                    self.invalidate_run(fabric, &region, start..run.end)?;
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
        if pages.is_empty() {
            return Ok(());
        }
        self.flush_pages(fabric, region, pages.clone(), &mut Refreshes::default())?;
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
