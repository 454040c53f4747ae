//! Totals of a node, for `kumi dsm show` and for measurements.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the node joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Accesses to pages that were not valid.
    pub misses: u64,
    /// Pages that were got from their homes.
    pub fetched_pages: u64,
    /// Pages whose changed bytes went home.
    pub diffed_pages: u64,
    /// Bytes that had changed in them.
    pub changed_bytes: u64,
    /// The same with the offsets and lengths of their runs.
    pub diff_bytes: u64,
    /// Bytes that were sent to all other nodes, for each of them.
    pub pushed_bytes: u64,
    /// Pages that writers sent to this node before a barrier, because it reads them after each one.
    pub refreshed_pages: u64,
    /// Pages that were closed because others had written them.
    pub invalidated_pages: u64,
    /// Barriers that this node has passed.
    pub barriers: u64,
    /// Locks that were taken.
    pub locks: u64,
    /// Messages of the protocol that were sent, without pages and diffs.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
}

/// The totals, as threads change them.
#[derive(Debug, Default)]
pub struct Counters {
    pub misses: AtomicU64,
    pub fetched_pages: AtomicU64,
    pub diffed_pages: AtomicU64,
    pub changed_bytes: AtomicU64,
    pub diff_bytes: AtomicU64,
    pub pushed_bytes: AtomicU64,
    pub refreshed_pages: AtomicU64,
    pub invalidated_pages: AtomicU64,
    pub barriers: AtomicU64,
    pub locks: AtomicU64,
    pub messages: AtomicU64,
    pub message_bytes: AtomicU64,
}

impl Counters {
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            misses: of(&self.misses),
            fetched_pages: of(&self.fetched_pages),
            diffed_pages: of(&self.diffed_pages),
            changed_bytes: of(&self.changed_bytes),
            diff_bytes: of(&self.diff_bytes),
            pushed_bytes: of(&self.pushed_bytes),
            refreshed_pages: of(&self.refreshed_pages),
            invalidated_pages: of(&self.invalidated_pages),
            barriers: of(&self.barriers),
            locks: of(&self.locks),
            messages: of(&self.messages),
            message_bytes: of(&self.message_bytes),
        }
    }
}

/// Adds to a total.
pub fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
