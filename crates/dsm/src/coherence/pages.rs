//! The pages of this node: misses, releases and acquires.

use super::counts::{Counters, add};
use super::diffs::{Diffs, PAGES_PER_PUT};
use super::error::DsmError;
use super::fabric::{Fabric, Memory, Update};
use super::holders::Holders;
use super::progress::Progress;
use super::refreshes::Refreshes;
use super::region::{Copies, HAS_TWIN, PAGE_BYTES, Region, VALID, View};
use super::sharing::Sharing;
use super::subscriptions::Subscriptions;
use crate::protocol::{Placement, Span, Updates, Written, spans};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Longest run of bytes that have not changed which joins two that have.
const GAP_BYTES_MAX: usize = 64;

/// The pages of this node.
pub struct Pages<V> {
    me: usize,
    nodes: usize,
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
        let mut runs = Vec::new();
        let taken = region.view.take_written(pages.clone(), &mut runs);
        taken.map_err(DsmError::memory)?;
        let mut written = Vec::new();
        for page in region.with_suspects(runs, pages) {
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

    /// Returns the bytes that this node sends to all others, and the pages that have them. They
    /// count as sent.
    pub fn take_updates(&self) -> Result<(Vec<Update>, Vec<Span>), DsmError> {
        let (mut updates, mut pages) = (Vec::new(), Vec::new());
        for region in self.regions_with(Updates::AtBarriers) {
            let mut runs = Vec::new();
            let taken = region.view.take_written(0..region.pages(), &mut runs);
            taken.map_err(DsmError::memory)?;
            for page in region.with_suspects(runs, 0..region.pages()) {
                let state = region.lock(page);
                // A page that was never open has no twin yet.
                let changed_bytes = match state & VALID {
                    0 => 0,
                    _ => region.take_update(page, &mut updates),
                };
                region.unlock(page, state);
                if changed_bytes > 0 {
                    spans::push(&mut pages, region.first + page as u32);
                    add(&self.counters.diffed_pages, 1);
                    add(&self.counters.changed_bytes, changed_bytes);
                    add(
                        &self.counters.pushed_bytes,
                        changed_bytes * (self.nodes - 1),
                    );
                }
            }
        }
        Ok((updates, pages))
    }

    /// Joins updates with short gaps of bytes that have not changed, so that numbers that change in
    /// a few of their bytes are one run. Pages that several nodes have written before are left out:
    /// the gaps may have changes of others. If a page turns out to be one,
    /// [`Self::note_contended`] returns it.
    pub fn join_updates(&self, updates: &[Update]) -> Vec<Update> {
        let regions = self.regions();
        let mut joined: Vec<Update> = Vec::new();
        for update in updates {
            let region = &regions[update.region];
            let gap = joined.last().and_then(|last| {
                let end = last.offset as usize + last.bytes.len();
                let gap = (update.offset as usize).checked_sub(end)?;
                let mut pages = end / PAGE_BYTES..(end + gap).div_ceil(PAGE_BYTES);
                let is_contended = |page: usize| region.contended[page].load(Ordering::Relaxed);
                let is_joined = last.region == update.region
                    && gap <= GAP_BYTES_MAX
                    && !pages.any(is_contended);
                is_joined.then_some((end, gap))
            });
            match (gap, joined.last_mut()) {
                (Some((end, gap)), Some(last)) => {
                    let at = last.bytes.len();
                    last.bytes.resize(at + gap, 0);
                    region.twins.read(end, &mut last.bytes[at..]);
                    last.bytes.extend_from_slice(&update.bytes);
                }
                _ => joined.push(update.clone()),
            }
        }
        joined
    }

    /// Returns the pages among those that nodes sent before a barrier which several have sent, and
    /// which were not known as such. They are known then.
    pub fn note_contended(&self, pushed: &[Written]) -> Vec<Span> {
        let mut found = Vec::new();
        for region in self.regions_with(Updates::AtBarriers) {
            let mut pages: Vec<usize> = pushed
                .iter()
                .flat_map(|written| region.local(&written.pages))
                .collect();
            pages.sort_unstable();
            let several = pages.windows(2).filter(|pair| pair[0] == pair[1]);
            let mut several: Vec<usize> = several.map(|pair| pair[0]).collect();
            several.dedup();
            for page in several {
                if !region.contended[page].swap(true, Ordering::Relaxed) {
                    spans::push(&mut found, region.first + page as u32);
                }
            }
        }
        found
    }

    /// Returns the parts of updates that are in the pages. This node's own arrivals have them too.
    pub fn updates_in(&self, updates: &[Update], pages: &[Span]) -> Vec<Update> {
        let regions = self.regions();
        let mut parts = Vec::new();
        for update in updates {
            let region = &regions[update.region];
            let (start, end) = (
                update.offset as usize,
                update.offset as usize + update.bytes.len(),
            );
            for run in region.local_runs(pages) {
                let from = start.max(run.start * PAGE_BYTES);
                let to = end.min(run.end * PAGE_BYTES);
                if from >= to {
                    continue;
                }
                let bytes = &update.bytes[from - start..to - start];
                region.memory(Memory::Pages).write(from, bytes);
                parts.push(Update {
                    region: update.region,
                    offset: from as u64,
                    bytes: bytes.to_vec(),
                });
            }
        }
        parts
    }

    /// Takes in what others have sent to pages of this node. It has written nothing since it took
    /// its own updates.
    pub fn end_updates(&self, pushed: &[Written]) {
        let pushed = pushed
            .iter()
            .filter(|written| usize::from(written.writer) != self.me);
        for Written { pages, .. } in pushed {
            for region in self.regions_with(Updates::AtBarriers) {
                for page in region.local(pages) {
                    let state = region.lock(page);
                    region.take_arrivals(page, state);
                    region.unlock(page, state);
                }
            }
        }
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
