//! Computes the bytes of a transfer that may be missing when another one starts, by the waits of
//! the plan alone.
//!
//! ```text
//!   m(t, u)  most bytes of t that are missing when u starts
//!   D(u)     transfers that are complete when u starts
//!   W(u)     transfers that are complete when u is
//!   b(t)     bytes of t
//!
//!   m(t, u) = 0    if t is in D(u)
//!             x    if u awaits t except for x bytes, and x < b(t)
//!             –    otherwise: t may not have begun
//!
//!   D(u) = union, over the waits of u for a transfer t, of
//!            W(t)   if it awaits all bytes of t
//!            D(t)   if t has begun: it may lack x < b(t) bytes, or it has u's sender, and u awaits
//!                   the end of its sending
//!            W(e)   for all e before t with t's receiver, if the wait includes earlier transfers
//!   W(u) = D(u), u itself, and W(f) of all f that feed u
//! ```

use super::Set;
use crate::plan::{Plan, Progress, Transfer};
use std::cell::OnceCell;

/// Most transfers for which the complete order is computed, with two bits for each pair: 64 MB. In
/// a longer plan, each transfer must itself wait for those that it follows on a link, as in an
/// all-to-all.
const ORDERED_MAX: usize = 16_384;

/// The order of a plan's transfers.
pub(super) struct Order<'a> {
    transfers: &'a [Transfer],
    bytes: Vec<u64>,
    feeds: &'a [Vec<usize>],
    /// For each transfer, those that are complete when it starts. Computed on first use.
    complete: OnceCell<Vec<Set>>,
}

impl<'a> Order<'a> {
    pub fn new(plan: &'a Plan, feeds: &'a [Vec<usize>]) -> Self {
        let bytes = plan
            .transfers
            .iter()
            .map(|transfer| plan.bytes_of(transfer));
        Self {
            transfers: &plan.transfers,
            bytes: bytes.collect(),
            feeds,
            complete: OnceCell::new(),
        }
    }

    /// Returns the size of a transfer in bytes.
    pub fn bytes(&self, transfer: usize) -> u64 {
        self.bytes[transfer]
    }

    /// Returns the most bytes of `first` that are missing when `second` starts, by a wait of its
    /// own. Returns `None` if `first` may not have begun.
    pub fn own_missing(&self, first: usize, second: usize) -> Option<u64> {
        let waits = self.transfers[second].after.iter();
        let missing = waits.filter_map(|wait| {
            let Progress::Received { missing_bytes, .. } = wait.until else {
                return None;
            };
            let has_begun = missing_bytes == 0 || missing_bytes < self.bytes[first];
            (first == wait.transfer && has_begun).then_some(missing_bytes)
        });
        missing.min()
    }

    /// Returns the most bytes of `first` that are missing when `second` starts, by all waits of the
    /// plan. Returns `None` if `first` may not have begun.
    pub fn missing(&self, first: usize, second: usize) -> Option<u64> {
        let is_complete = || {
            let is_small = self.transfers.len() <= ORDERED_MAX;
            is_small && self.complete.get_or_init(|| self.complete())[second].has(first)
        };
        match self.own_missing(first, second) {
            Some(0) => Some(0),
            _ if self.is_earlier(first, second) || is_complete() => Some(0),
            missing => missing,
        }
    }

    /// Returns whether `first` precedes a transfer that `second` awaits together with all earlier
    /// ones to the same receiver.
    fn is_earlier(&self, first: usize, second: usize) -> bool {
        let receiver = |transfer: usize| self.transfers[transfer].to;
        self.transfers[second].after.iter().any(|wait| {
            let Progress::Received { with_earlier, .. } = wait.until else {
                return false;
            };
            with_earlier && first < wait.transfer && receiver(first) == receiver(wait.transfer)
        })
    }

    /// Returns whether one host sends both, and `second` awaits `first`. They share their path from
    /// that host on, and a host sends in starting order. On every link of both, `second` therefore
    /// follows `first`.
    pub fn is_sequel(&self, first: usize, second: usize) -> bool {
        let mut waits = self.transfers[second].after.iter();
        self.transfers[first].from == self.transfers[second].from
            && (waits.any(|wait| wait.transfer == first && wait.until == Progress::Sent)
                || self.own_missing(first, second).is_some())
    }

    fn complete(&self) -> Vec<Set> {
        let count = self.transfers.len();
        let empty = Set::new(count);
        let mut start_sets: Vec<Set> = Vec::with_capacity(count);
        // Transfers that are complete when this one is: itself, those that feed it, and those that
        // were complete when it started.
        let mut end_sets: Vec<Set> = Vec::with_capacity(count);
        let hosts = self.transfers.iter().map(|transfer| transfer.to + 1).max();
        let mut to_host: Vec<Vec<usize>> = vec![Vec::new(); hosts.unwrap_or(0)];
        for (index, transfer) in self.transfers.iter().enumerate() {
            let mut start_set = empty.clone();
            for wait in &transfer.after {
                let predecessor = wait.transfer;
                match wait.until {
                    Progress::Received {
                        missing_bytes: 0, ..
                    } => start_set.add_all(&end_sets[predecessor]),
                    Progress::Received { missing_bytes, .. }
                        if missing_bytes >= self.bytes[predecessor] => {}
                    // It has begun.
                    _ => start_set.add_all(&start_sets[predecessor]),
                }
                if let Progress::Received {
                    with_earlier: true, ..
                } = wait.until
                {
                    let earlier = to_host[self.transfers[predecessor].to].iter();
                    for earlier in earlier.take_while(|earlier| **earlier < predecessor) {
                        start_set.add_all(&end_sets[*earlier]);
                    }
                }
            }
            let mut end_set = start_set.clone();
            end_set.add(index);
            for feed in &self.feeds[index] {
                end_set.add_all(&end_sets[*feed]);
            }
            start_sets.push(start_set);
            end_sets.push(end_set);
            to_host[transfer.to].push(index);
        }
        start_sets
    }
}
