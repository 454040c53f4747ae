//! Subscriptions of this node: pages that it got again after one barrier and the next. Their
//! writers send what they have changed before a barrier ends, so that no access waits.
//!
//! ```text
//!            got again, twice          a refresh that nobody looked at
//!   closed ───────────────────► subscribed ───────────────► closed, and twice as patient
//! ```
//!
//! Some refreshed pages stay closed to the program, though they are valid: an access to such a page
//! costs a signal, and shows that the program still reads it.

use crate::protocol::{Report, spans};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Times that a page is got again before this node subscribes to it, and the most after refreshes
/// that nobody looked at.
const PATIENCE: u8 = 2;
const PATIENCE_MAX: u8 = 64;

/// Refreshes of which one leaves the page closed.
const REFRESHES_PER_LOOK: u8 = 8;

/// A page, as this node reads it.
#[derive(Debug)]
struct Reading {
    /// Times that it was got again since the last change of the subscription.
    times: AtomicU8,
    patience: AtomicU8,
    is_subscribed: AtomicBool,
    /// Refreshed and left closed, and not accessed since.
    is_watched: AtomicBool,
    refreshes: AtomicU8,
}

/// Subscriptions to the pages of a region.
#[derive(Debug)]
pub struct Subscriptions {
    pages: Vec<Reading>,
    /// Pages to subscribe to at the next barrier.
    wanted: Mutex<Vec<usize>>,
    /// Pages that are watched, or were.
    watched: Mutex<Vec<usize>>,
}

fn guard(list: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriptions {
    /// Returns no subscriptions to `pages` pages.
    pub fn new(pages: usize) -> Self {
        let reading = |_| Reading {
            times: AtomicU8::new(0),
            patience: AtomicU8::new(PATIENCE),
            is_subscribed: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            refreshes: AtomicU8::new(0),
        };
        Self {
            pages: (0..pages).map(reading).collect(),
            wanted: Mutex::default(),
            watched: Mutex::default(),
        }
    }

    /// Notes that a page was got of which this node had an earlier copy.
    pub fn on_got_again(&self, page: usize) {
        let reading = &self.pages[page];
        let times = reading.times.load(Ordering::Relaxed).saturating_add(1);
        reading.times.store(times, Ordering::Relaxed);
        let is_wanted = times >= reading.patience.load(Ordering::Relaxed);
        if is_wanted && !reading.is_subscribed.swap(true, Ordering::Relaxed) {
            guard(&self.wanted).push(page);
        }
    }

    /// Notes an access to a page that is valid and was closed.
    pub fn on_access(&self, page: usize) {
        self.pages[page].is_watched.store(false, Ordering::Relaxed);
    }

    /// Returns whether a page is valid and was left closed.
    pub fn is_watched(&self, page: usize) -> bool {
        self.pages[page].is_watched.load(Ordering::Relaxed)
    }

    /// Notes a refresh. Returns whether the page is left closed.
    pub fn on_refresh(&self, page: usize) -> bool {
        let reading = &self.pages[page];
        let number = reading.refreshes.fetch_add(1, Ordering::Relaxed);
        let is_watched = number % REFRESHES_PER_LOOK == 0;
        if is_watched && !reading.is_watched.swap(true, Ordering::Relaxed) {
            guard(&self.watched).push(page);
        }
        is_watched
    }

    /// Appends the pages to subscribe to, and those to which this node subscribes no more.
    pub fn take_report(&self, first: u32, report: &mut Report) {
        let number = |page: usize| first + page as u32;
        let mut wanted = std::mem::take(&mut *guard(&self.wanted));
        wanted.sort_unstable();
        for page in wanted {
            spans::push(&mut report.subscribed, number(page));
        }
        let mut watched = std::mem::take(&mut *guard(&self.watched));
        watched.sort_unstable();
        for page in watched {
            let reading = &self.pages[page];
            if reading.is_watched.swap(false, Ordering::Relaxed) {
                let patience = reading.patience.load(Ordering::Relaxed);
                let patience = patience.saturating_mul(2).min(PATIENCE_MAX);
                reading.patience.store(patience, Ordering::Relaxed);
                reading.times.store(0, Ordering::Relaxed);
                reading.is_subscribed.store(false, Ordering::Relaxed);
                spans::push(&mut report.unsubscribed, number(page));
            }
        }
    }

    /// Forgets all subscriptions.
    pub fn clear(&self) {
        guard(&self.wanted).clear();
        guard(&self.watched).clear();
        for reading in &self.pages {
            reading.times.store(0, Ordering::Relaxed);
            reading.is_subscribed.store(false, Ordering::Relaxed);
            reading.is_watched.store(false, Ordering::Relaxed);
        }
    }
}
