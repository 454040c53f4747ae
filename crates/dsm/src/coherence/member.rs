//! A node: what the program calls, and what messages do.

use super::counts::{Counts, add};
use super::error::DsmError;
use super::fabric::Fabric;
use super::holders::{Pair, without};
use super::pages::Pages;
use super::progress::Membership;
use super::refreshes::Refreshes;
use super::region::{Copies, Region, View};
use crate::protocol::{Call, Engine, Placement, Span, Standing, UpdateWay, Updates, Violation};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node of a job.
pub struct Member<F, V> {
    fabric: F,
    engine: Mutex<Engine>,
    /// Held by the thread that sends what the engine has to send.
    sending: Mutex<()>,
    pages: Pages<V>,
    has_replicas: AtomicBool,
    /// Pages are pinned, or were.
    has_pins: AtomicBool,
    /// Nodes have sent updates by messages at the last barrier.
    has_message_updates: AtomicBool,
}

/// Outcome of a recovery. All nodes that are left have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Nodes that are lost since the job began, in order.
    pub lost: Vec<usize>,
    /// Nodes that are left, in order.
    pub left: Vec<usize>,
    /// Number of the barrier to which the memory has gone back. All nodes that are left have passed
    /// it, or it has failed there.
    pub barriers: u64,
}

impl<F: Fabric, V: View> Member<F, V> {
    /// Returns node `me` of `nodes`.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn new(fabric: F, me: usize, nodes: usize) -> Self {
        Self {
            fabric,
            engine: Mutex::new(Engine::new(me, nodes)),
            sending: Mutex::new(()),
            pages: Pages::new(me, nodes),
            has_replicas: AtomicBool::new(false),
            has_pins: AtomicBool::new(false),
            has_message_updates: AtomicBool::new(false),
        }
    }

    /// Keeps a replica of each page on another node from now on, as all nodes do. There is no
    /// region yet.
    pub fn keep_replicas(&self) {
        self.pages.keep_replicas();
        self.has_replicas.store(true, Ordering::Relaxed);
    }

    /// Returns whether each page has a replica.
    pub fn has_replicas(&self) -> bool {
        self.has_replicas.load(Ordering::Relaxed)
    }

    /// Returns the nodes that are left, in order.
    pub fn left(&self) -> Vec<usize> {
        self.engine().members().to_vec()
    }

    fn others(&self) -> Vec<usize> {
        let left = self.left().into_iter();
        left.filter(|node| *node != self.pages.me()).collect()
    }

    /// Returns the way to the other nodes.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the engine, and sends what follows.
    fn act<T>(&self, change: impl FnOnce(&mut Engine) -> T) -> Result<T, DsmError> {
        let result = change(&mut self.engine());
        self.transmit()?;
        Ok(result)
    }

    /// Sends what the engine has to send, in order. The engine is not locked meanwhile: a fabric
    /// that must wait may handle messages.
    fn transmit(&self) -> Result<(), DsmError> {
        let mut outcome = Ok(());
        loop {
            // Another thread sends, or this one does so further up.
            let Ok(turn) = self.sending.try_lock() else {
                return outcome;
            };
            let next = || self.engine().poll_transmit();
            while let Some((to, message)) = next() {
                add(&self.pages.counters.messages, 1);
                add(&self.pages.counters.message_bytes, message.len());
                // A node that is lost does not keep the others from their messages.
                outcome = outcome.and(self.fabric.send(to, message));
            }
            self.fabric.transmit();
            drop(turn);
            // A message of a thread that could not take the turn goes out also after a failure.
            if !self.engine().has_transmit() {
                return outcome;
            }
        }
    }

    /// Handles a message of another node.
    ///
    /// # Errors
    /// It breaks the protocol, or an answer cannot be sent.
    pub fn handle(&self, from: usize, message: &[u8]) -> Result<(), DsmError> {
        let mut handled = Ok(Vec::new());
        let sent = self.act(|engine| {
            handled = engine.handle(from, message).map(|()| engine.lost());
        });
        for node in handled? {
            self.fabric.lose(node, &format!("node {from} has lost it"));
        }
        sent
    }

    /// Waits until `take` returns a value.
    fn wait<T>(&self, mut take: impl FnMut(&mut Engine) -> Option<T>) -> Result<T, DsmError> {
        let taken = Mutex::new(None);
        let take = Mutex::new(&mut take);
        self.fabric.wait(&|| {
            let mut take = take.lock().unwrap_or_else(PoisonError::into_inner);
            let value = take(&mut self.engine());
            let is_done = value.is_some();
            *taken.lock().unwrap_or_else(PoisonError::into_inner) = value;
            is_done
        })?;
        let value = taken.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(value.expect("the wait ends with a value"))
    }

    /// Makes a call that all nodes make, and returns the data of each.
    ///
    /// # Errors
    /// The nodes made different calls, or one is lost.
    pub fn exchange(&self, call: Call) -> Result<Vec<Vec<u8>>, DsmError> {
        self.fabric.check()?;
        let _waits = self.fabric.expect_wait();
        self.act(|engine| engine.start_exchange(call))?;
        Ok(self.wait(Engine::take_exchange)??)
    }

    /// Adds a region of zeros, with the same number and placement on all nodes.
    pub fn add_region(
        &self,
        view: V,
        copies: Copies,
        placement: Placement,
        updates: Updates,
    ) -> Arc<Region<V>> {
        let region = self.pages.add(view, copies, placement, updates);
        self.engine()
            .set_pages(region.first + region.pages() as u32);
        region
    }

    /// Waits until all nodes have called it. What any of them wrote before is seen by all.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    pub fn barrier(&self) -> Result<(), DsmError> {
        self.fabric.check()?;
        let subscribers = self.engine().subscribers();
        let mut refreshes = Refreshes::new(self.pages.me(), subscribers.unwrap_or_default());
        let written = self.pages.flush(&self.fabric, &mut refreshes)?;
        let report = self.pages.take_report();
        let (updates, pushed) = self.pages.take_updates()?;
        let joined = self.pages.join_updates(&updates);
        let way = match joined.as_slice() {
            [] => UpdateWay::Before,
            joined if self.fabric.prefers_messages(joined) => UpdateWay::Messages,
            _ if self.has_message_updates.load(Ordering::Relaxed) => UpdateWay::Behind,
            _ => UpdateWay::Before,
        };
        match way {
            UpdateWay::Before => self.fabric.push(&joined)?,
            UpdateWay::Messages => {
                let others = self.others();
                self.pages.add_updates(&joined, &others, &mut refreshes);
            }
            UpdateWay::Behind => {}
        }
        let waits = self.fabric.expect_wait();
        self.act(|engine| {
            engine.close_interval(written);
            engine.start_barrier((pushed, way), report, refreshes.by_node);
        })?;
        let data = self.wait(Engine::take_exchange)??;
        drop(waits);
        let end = self.engine().end_barrier(&data)?;
        add(&self.pages.counters.barriers, 1);
        let contended = self.pages.note_contended(&end.pushed);
        let valid = match end.refreshed_by.as_slice() {
            [] => BTreeSet::new(),
            nodes => {
                let refreshes = self.wait(|engine| engine.take_refreshes(nodes))?;
                self.pages.receive_updates(&refreshes, &contended)?;
                self.pages.refresh(refreshes, &end.all)?
            }
        };
        // A further exchange shows that all nodes have taken the messages in.
        let is_last = !end.has_puts_behind && contended.is_empty() && !self.has_replicas();
        self.has_message_updates
            .store(end.has_messages && is_last, Ordering::Relaxed);
        if end.has_puts_behind {
            if way == UpdateWay::Behind {
                self.fabric.push(&joined)?;
            }
            self.exchange(Call {
                text: "barrier, put".to_owned(),
                data: Vec::new(),
            })?;
        }
        self.fabric.end_exchange();
        if !contended.is_empty() {
            // Gaps of one node may have come over changes of another one, which are sent again.
            let exact = self.pages.updates_in(&updates, &contended);
            self.fabric.push(&exact)?;
            self.exchange(Call {
                text: "barrier, sent again".to_owned(),
                data: Vec::new(),
            })?;
        }
        self.pages.end_updates(&end.pushed);
        if self.has_replicas() {
            let written = end.all.into_iter().flat_map(|written| written.pages);
            let written: Vec<Span> = written.collect();
            self.pages.stage(&self.fabric, &written)?;
            self.exchange(Call {
                text: "barrier, replicated".to_owned(),
                data: Vec::new(),
            })?;
            let pushed = end.pushed.into_iter().flat_map(|written| written.pages);
            self.pages.commit(written, pushed.collect());
        }
        self.pages.invalidate(&self.fabric, &end.written, &valid)?;
        self.get_pinned()
    }

    /// Takes a lock. What its holders before wrote until they released it is seen.
    ///
    /// # Errors
    /// This node holds it, or waits for it already; or a node is lost.
    pub fn lock(&self, lock: u32) -> Result<(), DsmError> {
        self.fabric.check()?;
        let waits = self.fabric.expect_wait();
        self.act(|engine| engine.acquire(lock))??;
        let others = self.wait(|engine| engine.take_grant(lock))?;
        drop(waits);
        add(&self.pages.counters.locks, 1);
        self.pages
            .invalidate(&self.fabric, &others, &BTreeSet::new())?;
        self.get_pinned()
    }

    fn get_pinned(&self) -> Result<(), DsmError> {
        if !self.has_pins.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.pages.get_pinned(&self.fabric)
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// This node does not hold it, or a node is lost.
    pub fn unlock(&self, lock: u32) -> Result<(), DsmError> {
        self.fabric.check()?;
        if !self.engine().is_held(lock) {
            return Err(Violation::NotHeld(lock).into());
        }
        let written = self.pages.flush(&self.fabric, &mut Refreshes::default())?;
        self.act(|engine| {
            engine.close_interval(written);
            engine.release(lock)
        })??;
        Ok(())
    }

    /// Goes on without lost nodes, when a call has failed because of one: all nodes that are left
    /// call it. The memory goes back to the last barrier, all locks are free, and regions that were
    /// allocated since then are gone. `next` is a number of the caller, of which the highest of all
    /// nodes is returned.
    ///
    /// # Errors
    /// There are no replicas, no node is lost, or pages were lost with a node and their replica; or
    /// half of the nodes are lost, and the others may go on.
    pub fn recover(&self, next: u64) -> Result<(Recovery, u64), DsmError> {
        if !self.has_replicas() {
            return Err(DsmError::Argument(
                "there are no replicas: all nodes call keep_replicas before the first allocation"
                    .to_owned(),
            ));
        }
        if self.fabric.check().is_ok() {
            return Err(DsmError::Argument(
                "no node is lost: expected a call that has failed because of one".to_owned(),
            ));
        }
        loop {
            let lost = self.agree()?;
            match self.go_on_without(&lost, next) {
                // Another one is lost.
                Err(DsmError::Lost { .. }) => {}
                outcome => {
                    let recovered = outcome?;
                    self.get_pinned()?;
                    return Ok(recovered);
                }
            }
        }
    }

    /// Waits until all nodes that are left know of the same lost ones, and returns these.
    fn agree(&self) -> Result<Vec<usize>, DsmError> {
        let mut is_first = true;
        loop {
            let known = self.fabric.lost();
            let told = self.act(|engine| {
                engine.lose(&known);
                if std::mem::take(&mut is_first) {
                    engine.start_agreement();
                }
            });
            match told {
                // A message to a node that is lost.
                Ok(()) | Err(DsmError::Lost { .. }) => {}
                Err(error) => return Err(error),
            }
            if let Some(lost) = self.engine().take_agreement() {
                return Ok(lost);
            }
            self.fabric.wait_despite_losses(&|| {
                self.fabric.lost().len() > known.len() || self.engine().is_agreed()
            });
        }
    }

    fn go_on_without(&self, lost: &[usize], next: u64) -> Result<(Recovery, u64), DsmError> {
        self.fabric.give_up(lost)?;
        self.act(|engine| engine.renew(lost))??;
        let members = self.left();
        let exchange = |text: &str, data| {
            self.exchange(Call {
                text: text.to_owned(),
                data,
            })
        };
        let data = exchange("recover", self.pages.standing(next).encode())?;
        let standings = data.iter().map(|data| Standing::decode(data));
        let standings = standings.collect::<Result<Vec<_>, _>>();
        let standings = standings.map_err(Violation::from)?;
        let before = self.pages.catch_up(&standings)?;
        let (left, all) = (members.len(), before.members.len());
        if 2 * left < all || 2 * left == all && members[0] != before.members[0] {
            return Err(DsmError::Minority { left, members: all });
        }
        let pairs = without(&before.pairs, lost)
            .map_err(|Pair { home, replica }| DsmError::PagesLost { home, replica })?;
        self.fabric.drop_regions(self.pages.regions().len());
        let barriers = self.pages.go_back(&pairs)?;
        // Nobody has sent anything to a replica before it has gone back.
        exchange("recover, back", Vec::new())?;
        // A thread of the program may have got pages from a home that had not gone back.
        self.pages.close_all()?;
        self.pages
            .replicate_again(&self.fabric, &before.pairs, &pairs)?;
        self.pages.announce(Membership {
            members: members.clone(),
            pairs,
        });
        exchange("recover, replicated", Vec::new())?;
        self.pages.end_recovery(lost.len() as u16);
        let next = standings.iter().map(|standing| standing.next).max();
        let recovery = Recovery {
            lost: lost.to_vec(),
            left: members,
            barriers,
        };
        Ok((recovery, next.unwrap_or_default()))
    }

    /// Returns the regions.
    pub fn regions(&self) -> Vec<Arc<Region<V>>> {
        self.pages.regions()
    }

    /// Returns the totals of this node.
    pub fn counts(&self) -> Counts {
        self.pages.counters.counts()
    }

    /// Makes a page valid that the program has accessed, and opens it.
    ///
    /// # Errors
    /// The page's home is lost.
    pub fn fault(&self, region: &Region<V>, page: usize) -> Result<(), DsmError> {
        self.pages.fault(&self.fabric, region, page)
    }

    /// Makes pages valid before the program accesses them.
    ///
    /// # Errors
    /// A home is lost.
    ///
    /// # Panics
    /// Panics if the pages are out of range.
    pub fn prefetch(&self, region: &Region<V>, pages: Range<usize>) -> Result<(), DsmError> {
        self.pages.prefetch(&self.fabric, region, pages)
    }

    /// Keeps pages valid and open behind each lock and barrier, or ends that.
    ///
    /// # Errors
    /// A home is lost.
    ///
    /// # Panics
    /// Panics if the pages are out of range.
    pub fn pin(
        &self,
        region: &Region<V>,
        pages: Range<usize>,
        is_pinned: bool,
    ) -> Result<(), DsmError> {
        self.has_pins.fetch_or(is_pinned, Ordering::Relaxed);
        self.pages.pin(&self.fabric, region, pages, is_pinned)
    }
}
