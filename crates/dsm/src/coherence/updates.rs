//! Regions that are updated at barriers: each node sends its changes to all others.
//!
//! ```text
//!   a few short runs   with the messages of the exchange, and applied when it has ended
//!   others             puts to all before the exchange; behind it if messages of the barrier
//!                      before may not be taken in yet
//! ```

use super::counts::add;
use super::error::DsmError;
use super::fabric::{Memory, Update};
use super::pages::Pages;
use super::refreshes::Refreshes;
use super::region::{PAGE_BYTES, VALID, View, write_runs};
use crate::protocol::{PageRuns, Span, Updates, Written, spans};
use kumi_wind::protocol::diff;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Longest run of bytes that have not changed which joins two that have.
const GAP_BYTES_MAX: usize = 64;

impl<V: View> Pages<V> {
    /// Returns the bytes that this node sends to all others, and the pages that have them. They
    /// count as sent.
    pub fn take_updates(&self) -> Result<(Vec<Update>, Vec<Span>), DsmError> {
        let (mut updates, mut pages) = (Vec::new(), Vec::new());
        for region in self.regions_with(Updates::AtBarriers) {
            for page in region.take_written(0..region.pages())? {
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
            .filter(|written| usize::from(written.writer) != self.me());
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

    /// Adds updates to what goes to the others with the messages of the exchange.
    pub fn add_updates(&self, updates: &[Update], others: &[usize], refreshes: &mut Refreshes) {
        let regions = self.regions();
        let mut pages: BTreeMap<u32, PageRuns> = BTreeMap::new();
        for update in updates {
            let first = regions[update.region].first;
            let (mut at, mut rest) = (update.offset as usize, update.bytes.as_slice());
            while !rest.is_empty() {
                let room = PAGE_BYTES - at % PAGE_BYTES;
                let (now, later) = rest.split_at(room.min(rest.len()));
                let runs = pages.entry(first + (at / PAGE_BYTES) as u32).or_default();
                diff::push_run((at % PAGE_BYTES) as u32, now, runs);
                at += now.len();
                rest = later;
            }
        }
        if pages.is_empty() {
            return;
        }
        for node in others {
            let sent = refreshes.by_node.entry(*node as u16).or_default();
            sent.extend(pages.iter().map(|(page, runs)| (*page, runs.clone())));
        }
    }

    /// Takes in what others have sent of updated pages with the messages of the exchange.
    /// `contended` pages are sent again.
    pub fn receive_updates(
        &self,
        refreshes: &[(usize, u32, PageRuns)],
        contended: &[Span],
    ) -> Result<(), DsmError> {
        for region in self.regions_with(Updates::AtBarriers) {
            let of_region = refreshes.iter().filter(|(_, page, _)| region.has(*page));
            for (_, page, runs) in of_region {
                if !contended.iter().any(|span| span.pages().contains(page)) {
                    let at = (page - region.first) as usize * PAGE_BYTES;
                    write_runs(runs, |offset, bytes| {
                        region.memory(Memory::Pages).write(at + offset, bytes);
                    })?;
                }
            }
        }
        Ok(())
    }
}
