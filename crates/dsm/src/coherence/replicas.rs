//! Replicas: pages as of the last barrier on their homes and on one more node each, and the return
//! to them when a node is lost.
//!
//! ```text
//!   all writes are at the homes ─► staged ─► all nodes have staged ─► committed
//!                                    └──── puts to the replica
//! ```
//!
//! At a barrier each home compares the pages that were written with its staged copy, and sends what
//! has changed to the staged copy of the replica. An exchange tells that all have done so. Then
//! each node makes the staged pages committed ones, on its own: a node that has not done so when
//! another one is lost does it in the recovery, if any node has passed the exchange.

use super::diffs::{Diffs, PAGES_PER_PUT};
use super::error::DsmError;
use super::fabric::{Fabric, Memory};
use super::holders::Pair;
use super::pages::Pages;
use super::progress::Membership;
use super::region::{PAGE_BYTES, Region, VALID, View, changes, page_of};
use crate::protocol::{Span, Standing, Updates};
use std::sync::atomic::Ordering;

impl<V: View> Pages<V> {
    /// Sends what nodes have written since the last barrier, in pages whose home this node is, to
    /// their replicas.
    pub fn stage(&self, fabric: &impl Fabric, written: &[Span]) -> Result<(), DsmError> {
        let mut puts = Default::default();
        for region in self.regions_with(Updates::OnAccess) {
            let mut pages: Vec<usize> = region.local(written).collect();
            pages.retain(|page| region.home(*page) == self.me());
            pages.sort_unstable();
            pages.dedup();
            for pages in pages.chunks(PAGES_PER_PUT) {
                let mut diffs = Diffs::new(fabric.diff_bytes_max(), Memory::Replica);
                for page in pages {
                    region.stage(*page, |replica, offset, bytes| {
                        diffs.push(replica, region.number, offset, bytes);
                    });
                }
                fabric.start_puts(diffs.parts, &mut puts)?;
            }
        }
        fabric.finish_puts(puts)
    }

    /// Notes the end of a barrier: what is staged becomes committed.
    pub fn commit(&self, written: Vec<Span>, pushed: Vec<Span>) {
        self.commit_pages(&written, &pushed);
        let regions = self.regions().len() as u32;
        let mut progress = self.progress();
        let standing = &mut progress.standing;
        standing.barriers += 1;
        standing.regions = regions;
        standing.written = written;
        standing.pushed = pushed;
    }

    fn commit_pages(&self, written: &[Span], pushed: &[Span]) {
        for region in self.regions() {
            let pages = match region.updates {
                Updates::OnAccess => region.local(written),
                Updates::AtBarriers => region.local(pushed),
            };
            let (Some(staged), Some(committed)) = (&region.staged, &region.committed) else {
                continue;
            };
            for page in pages {
                // The program may have written to its pages since the barrier failed. The twin of
                // one that it has used is as the barrier left it.
                let is_used = region.states[page].load(Ordering::Relaxed) & VALID != 0;
                let from = match (region.updates, is_used) {
                    (Updates::OnAccess, _) => staged,
                    (Updates::AtBarriers, true) => &region.twins,
                    (Updates::AtBarriers, false) => region.view.own(),
                };
                region.touched[page].store(true, Ordering::Relaxed);
                if region.is_kept_by(page, self.me()) {
                    committed.write(page * PAGE_BYTES, &page_of(from, page));
                }
            }
        }
    }

    /// Returns what this node has to tell the others at a recovery.
    pub fn standing(&self, next: u64) -> Standing {
        let progress = self.progress();
        Standing {
            next,
            ..progress.standing.clone()
        }
    }

    /// Catches up with the nodes that have passed more than this one, and returns the nodes that
    /// there were after the last recovery that any has passed.
    ///
    /// # Errors
    /// They have passed more than one barrier or recovery that this one has not.
    pub fn catch_up(&self, standings: &[Standing]) -> Result<Membership, DsmError> {
        let unexplained = || {
            DsmError::Argument("nodes have passed barriers that others have not called".to_owned())
        };
        let losses = standings.iter().map(|standing| standing.losses).max();
        if losses > Some(self.progress().standing.losses) {
            self.progress()
                .next_membership
                .as_ref()
                .ok_or_else(unexplained)?;
            self.end_recovery(losses.unwrap_or_default());
        }
        let best = standings.iter().max_by_key(|standing| standing.barriers);
        let best = best.ok_or_else(unexplained)?;
        self.truncate(best.regions as usize);
        let own = self.progress().standing.barriers;
        match best.barriers - own {
            0 => {}
            1 => self.commit(best.written.clone(), best.pushed.clone()),
            _ => return Err(unexplained()),
        }
        Ok(self.progress().membership.clone())
    }

    /// Goes back to the last barrier, and returns its number. Pages have their bytes as of then at
    /// their homes among `pairs`, and all others are closed.
    pub fn go_back(&self, pairs: &[Pair]) -> Result<u64, DsmError> {
        self.holders.set(pairs);
        for region in self.regions() {
            region.go_back(self.me())?;
        }
        Ok(self.progress().standing.barriers)
    }

    /// Closes all pages.
    pub fn close_all(&self) -> Result<(), DsmError> {
        self.regions()
            .iter()
            .try_for_each(|region| region.close_all())
    }

    /// Sends the pages of this node to replicas that have not been theirs before.
    pub fn replicate_again(
        &self,
        fabric: &impl Fabric,
        before: &[Pair],
        pairs: &[Pair],
    ) -> Result<(), DsmError> {
        let mut puts = Default::default();
        for region in self.regions_with(Updates::OnAccess) {
            let pages = (0..region.pages()).filter(|page| {
                let first = region.first_home(*page);
                let (before, now) = (before[first], pairs[first]);
                now.home == self.me()
                    && now
                        .replica
                        .is_some_and(|node| node != before.home && Some(node) != before.replica)
                    && region.touched[*page].load(Ordering::Relaxed)
            });
            for pages in pages.collect::<Vec<_>>().chunks(PAGES_PER_PUT) {
                let mut diffs = Diffs::new(fabric.diff_bytes_max(), Memory::Replica);
                for page in pages {
                    let offset = (page * PAGE_BYTES) as u64;
                    if let Some(replica) = region.replica(*page) {
                        diffs.push(replica, region.number, offset, &region.committed(*page));
                    }
                }
                fabric.start_puts(diffs.parts, &mut puts)?;
            }
        }
        fabric.finish_puts(puts)
    }

    /// Notes that this node begins the last exchange of a recovery.
    pub fn announce(&self, membership: Membership) {
        self.progress().next_membership = Some(membership);
    }

    /// Ends a recovery: all homes have sent their pages to new replicas.
    pub fn end_recovery(&self, losses: u16) {
        for region in self.regions_with(Updates::OnAccess) {
            let (Some(staged), Some(committed)) = (&region.staged, &region.committed) else {
                continue;
            };
            for page in 0..region.pages() {
                let is_kept = region.replica(page) == Some(self.me());
                if is_kept && region.touched[page].load(Ordering::Relaxed) {
                    committed.write(page * PAGE_BYTES, &page_of(staged, page));
                }
            }
        }
        let mut progress = self.progress();
        progress.standing.losses = losses;
        if let Some(membership) = progress.next_membership.take() {
            progress.membership = membership;
        }
    }
}

impl<V: View> Region<V> {
    /// Returns whether a node has a committed copy of a page.
    fn is_kept_by(&self, page: usize, node: usize) -> bool {
        self.updates == Updates::AtBarriers
            || self.home(page) == node
            || self.replica(page) == Some(node)
    }

    /// Calls `changed` for the runs in which a page of this home differs from its staged copy,
    /// which has them then, if the page has a replica.
    fn stage(&self, page: usize, mut changed: impl FnMut(usize, u64, &[u8])) {
        let Some(staged) = &self.staged else { return };
        let at = page * PAGE_BYTES;
        let (now, before) = (page_of(self.view.own(), page), page_of(staged, page));
        staged.write(at, &now);
        let Some(replica) = self.replica(page) else {
            return;
        };
        let mut found = Vec::new();
        changes(&before, &now, &mut found);
        for range in found {
            changed(replica, (at + range.start) as u64, &now[range]);
        }
    }

    /// Returns the committed bytes of a page.
    fn committed(&self, page: usize) -> [u8; PAGE_BYTES] {
        let is_touched = self.touched[page].load(Ordering::Relaxed);
        let committed = self.committed.as_ref().filter(|_| is_touched);
        committed.map_or([0; PAGE_BYTES], |committed| page_of(committed, page))
    }

    /// Gives the pages that this node keeps their committed bytes, and closes all.
    fn go_back(&self, me: usize) -> Result<(), DsmError> {
        self.close_all()?;
        for page in 0..self.pages() {
            self.lock(page);
            if self.is_kept_by(page, me) {
                let bytes = self.committed(page);
                let is_used = self.updates == Updates::AtBarriers || self.home(page) == me;
                let memories = [is_used.then_some(self.view.own()), self.staged.as_ref()];
                for memory in memories.into_iter().flatten() {
                    if page_of(memory, page) != bytes {
                        memory.write(page * PAGE_BYTES, &bytes);
                    }
                }
            }
            self.contended[page].store(false, Ordering::Relaxed);
            self.unlock(page, 0);
        }
        self.forget_writes();
        self.subscriptions.clear();
        Ok(())
    }

    /// Closes all pages. What the program has written to them is forgotten.
    pub(super) fn close_all(&self) -> Result<(), DsmError> {
        for page in 0..self.pages() {
            self.lock(page);
        }
        let closed = self.view.close(0..self.pages());
        self.steady.clear();
        let mut runs = Vec::new();
        let taken = self.view.take_written(0..self.pages(), &mut runs);
        for page in 0..self.pages() {
            self.unlock(page, 0);
        }
        closed.and(taken).map_err(DsmError::memory)
    }
}
