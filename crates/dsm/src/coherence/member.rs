//! A node: what the program calls, and what messages do.

use super::counts::{Counts, add};
use super::error::DsmError;
use super::fabric::Fabric;
use super::pages::Pages;
use super::region::{Copies, Region, View};
use crate::protocol::{Call, Engine, Placement, Updates, Violation};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node of a job.
pub struct Member<F, V> {
    fabric: F,
    engine: Mutex<Engine>,
    /// Held by the thread that sends what the engine has to send.
    sending: Mutex<()>,
    pages: Pages<V>,
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
        }
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
        loop {
            // Another thread sends, or this one does so further up.
            let Ok(turn) = self.sending.try_lock() else {
                return Ok(());
            };
            let next = || self.engine().poll_transmit();
            while let Some((to, message)) = next() {
                add(&self.pages.counters.messages, 1);
                add(&self.pages.counters.message_bytes, message.len());
                self.fabric.send(to, message)?;
            }
            drop(turn);
            if !self.engine().has_transmit() {
                return Ok(());
            }
        }
    }

    /// Handles a message of another node.
    ///
    /// # Errors
    /// It breaks the protocol, or an answer cannot be sent.
    pub fn handle(&self, from: usize, message: &[u8]) -> Result<(), DsmError> {
        Ok(self.act(|engine| engine.handle(from, message))??)
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
        self.pages.add(view, copies, placement, updates)
    }

    /// Waits until all nodes have called it. What any of them wrote before is seen by all.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    pub fn barrier(&self) -> Result<(), DsmError> {
        self.fabric.check()?;
        let written = self.pages.flush(&self.fabric)?;
        let (updates, pushed) = self.pages.take_updates()?;
        self.fabric.push(self.pages.join_updates(&updates))?;
        self.act(|engine| {
            engine.close_interval(written);
            engine.start_barrier(pushed);
        })?;
        let data = self.wait(Engine::take_exchange)??;
        let end = self.engine().end_barrier(&data)?;
        add(&self.pages.counters.barriers, 1);
        let contended = self.pages.note_contended(&end.pushed);
        if !contended.is_empty() {
            // Gaps of one node may have come over changes of another one, which are sent again.
            self.fabric
                .push(self.pages.updates_in(&updates, &contended))?;
            self.exchange(Call {
                text: "barrier, sent again".to_owned(),
                data: Vec::new(),
            })?;
        }
        self.pages.end_updates(&end.pushed);
        self.pages.invalidate(&self.fabric, &end.written)
    }

    /// Takes a lock. What its holders before wrote until they released it is seen.
    ///
    /// # Errors
    /// This node holds it, or waits for it already; or a node is lost.
    pub fn lock(&self, lock: u32) -> Result<(), DsmError> {
        self.fabric.check()?;
        self.act(|engine| engine.acquire(lock))??;
        let others = self.wait(|engine| engine.take_grant(lock))?;
        add(&self.pages.counters.locks, 1);
        self.pages.invalidate(&self.fabric, &others)
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
        let written = self.pages.flush(&self.fabric)?;
        self.act(|engine| {
            engine.close_interval(written);
            engine.release(lock)
        })??;
        Ok(())
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
}
