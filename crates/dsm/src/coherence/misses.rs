//! Pages that are got from their homes: at an access, before one, and pinned ones again and again.

use super::counts::add;
use super::error::DsmError;
use super::fabric::{Fabric, Memory};
use super::pages::Pages;
use super::refreshes::Refreshes;
use super::region::{HAS_TWIN, PAGE_BYTES, Region, VALID, View};
use crate::protocol::Updates;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Pages that a prefetch gets at once.
const PAGES_PER_PREFETCH: usize = 256;

impl<V: View> Pages<V> {
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
            region.sharing.on_miss(page);
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
        if region.is_gone.load(Ordering::Relaxed) {
            return Err(DsmError::Argument(
                "the region was allocated after the barrier to which a recovery went back: \
                 allocate it again"
                    .to_owned(),
            ));
        }
        let state = region.lock(page);
        let home = region.home(page);
        let is_updated = region.updates == Updates::AtBarriers;
        if is_updated || home == self.me() || state & VALID != 0 {
            // The bytes are here.
            let mut state = state;
            if state & VALID != 0 {
                // The kernel has taken it out of the page table, and may have forgotten a write.
                region.suspect(page);
                region.subscriptions.on_access(page);
            } else if is_updated {
                region.renew_twin(page);
                state |= HAS_TWIN;
            }
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
            } else if region.subscriptions.is_watched(page) {
                self.get(fabric, region, page, 1)?;
            }
        }
        Ok(())
    }

    /// Makes pages valid, and keeps them so behind each lock and barrier from now on; or ends that.
    pub fn pin(
        &self,
        fabric: &impl Fabric,
        region: &Region<V>,
        pages: Range<usize>,
        is_pinned: bool,
    ) -> Result<(), DsmError> {
        for flag in &region.pinned[pages.clone()] {
            flag.store(is_pinned, Ordering::Relaxed);
        }
        if !is_pinned {
            return Ok(());
        }
        // One that is valid may be closed.
        let valid = |page: &usize| region.states[*page].load(Ordering::Relaxed) & VALID != 0;
        for page in pages.clone().filter(valid) {
            self.get(fabric, region, page, 1)?;
        }
        self.prefetch(fabric, region, pages)
    }

    /// Gets the pinned pages again that were closed.
    pub fn get_pinned(&self, fabric: &impl Fabric) -> Result<(), DsmError> {
        for region in self.regions() {
            let mut from = 0;
            let is_pinned = |page: usize| region.pinned[page].load(Ordering::Relaxed);
            while let Some(first) = (from..region.pages()).find(|page| is_pinned(*page)) {
                let end = (first..region.pages()).find(|page| !is_pinned(*page));
                let end = end.unwrap_or(region.pages());
                self.prefetch(fabric, &region, first..end)?;
                from = end;
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
        let mut bytes = vec![0; pages.len() * PAGE_BYTES];
        let offset = pages.start * PAGE_BYTES;
        let mut from_home = || -> Result<(), DsmError> {
            self.write_home(fabric, region, &strays, &mut Refreshes::default())?;
            let place = (region.number, Memory::Pages);
            fabric.get(home, place, offset as u64, &mut bytes)
        };
        match (from_home(), region.replica(pages.start)) {
            (Err(DsmError::Lost { .. }), Some(replica)) if replica != home => {
                // The program goes on until it synchronises, which fails. Pages are there as of the
                // last barrier, to which it goes back then.
                if replica == self.me() {
                    region.memory(Memory::Replica).read(offset, &mut bytes);
                } else {
                    let place = (region.number, Memory::Replica);
                    fabric.get(replica, place, offset as u64, &mut bytes)?;
                }
            }
            (outcome, _) => outcome?,
        }
        for (page, (state, bytes)) in pages
            .clone()
            .zip(states.iter().zip(bytes.chunks(PAGE_BYTES)))
        {
            if state & HAS_TWIN != 0 {
                region.note_got(page, bytes);
                region.subscriptions.on_got_again(page);
            }
        }
        region.view.own().write(offset, &bytes);
        region.twins.write(offset, &bytes);
        region.view.open(pages).map_err(DsmError::memory)
    }
}
