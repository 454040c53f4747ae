//! What of a transfer may still be missing when another begins, by what the plan says alone.

use super::Set;
use crate::plan::{Plan, Transfer, Until};
use std::cell::OnceCell;

/// Most transfers of which the whole order is worked out, two bits for each pair: 64 MB. Of more, each must wait
/// by itself for those that it follows on a link, as it does in an all-to-all.
const ORDERED_MAX: usize = 16_384;

/// The order of a plan's transfers.
pub(super) struct Order<'a> {
    transfers: &'a [Transfer],
    bytes: Vec<u64>,
    feeds: &'a [Vec<usize>],
    /// For each transfer, those that are complete when it begins: worked out when first asked for.
    complete: OnceCell<Vec<Set>>,
}

impl<'a> Order<'a> {
    pub fn new(plan: &'a Plan, feeds: &'a [Vec<usize>]) -> Self {
        let bytes = plan.transfers.iter().map(|one| plan.bytes_of(one));
        Self {
            transfers: &plan.transfers,
            bytes: bytes.collect(),
            feeds,
            complete: OnceCell::new(),
        }
    }

    /// Bytes that a transfer carries.
    pub fn bytes(&self, transfer: usize) -> u64 {
        self.bytes[transfer]
    }

    /// Most bytes of `first` that are missing when `second` begins, by a wait of its own; none if it may not have begun.
    pub fn waited(&self, first: usize, second: usize) -> Option<u64> {
        let waits = self.transfers[second].after.iter();
        let missing = waits.filter_map(|wait| {
            let Until::Come { missing_bytes, .. } = wait.until else {
                return None;
            };
            let has_begun = missing_bytes == 0 || missing_bytes < self.bytes[first];
            (first == wait.transfer && has_begun).then_some(missing_bytes)
        });
        missing.min()
    }

    /// The same, by all that the plan says.
    pub fn missing(&self, first: usize, second: usize) -> Option<u64> {
        let is_complete = || {
            let is_small = self.transfers.len() <= ORDERED_MAX;
            is_small && self.complete.get_or_init(|| self.complete())[second].has(first)
        };
        match self.waited(first, second) {
            Some(0) => Some(0),
            _ if self.is_earlier(first, second) || is_complete() => Some(0),
            waited => waited,
        }
    }

    /// Whether one stands before another that `second` waits for with all earlier ones to the same receiver.
    fn is_earlier(&self, first: usize, second: usize) -> bool {
        let to = |transfer: usize| self.transfers[transfer].to;
        self.transfers[second].after.iter().any(|wait| {
            let Until::Come { with_earlier, .. } = wait.until else {
                return false;
            };
            with_earlier && first < wait.transfer && to(first) == to(wait.transfer)
        })
    }

    /// Whether one host sends both, and waits with `second` until `first` is sent. They share their way from the host on, and
    /// a host sends first what it begins first: on every link that both pass, `second` follows in sequence.
    pub fn is_sequel(&self, first: usize, second: usize) -> bool {
        let mut waits = self.transfers[second].after.iter();
        self.transfers[first].from == self.transfers[second].from
            && (waits.any(|wait| wait.transfer == first && wait.until == Until::Sent)
                || self.waited(first, second).is_some())
    }

    fn complete(&self) -> Vec<Set> {
        let count = self.transfers.len();
        let empty = Set::new(count);
        let mut complete: Vec<Set> = Vec::with_capacity(count);
        // Complete when this one is: itself, what feeds it, and what was complete when it began.
        let mut with: Vec<Set> = Vec::with_capacity(count);
        let hosts = self.transfers.iter().map(|one| one.to + 1).max();
        let mut to_host: Vec<Vec<usize>> = vec![Vec::new(); hosts.unwrap_or(0)];
        for (at, transfer) in self.transfers.iter().enumerate() {
            let mut begins = empty.clone();
            for wait in &transfer.after {
                let after = wait.transfer;
                match wait.until {
                    Until::Come {
                        missing_bytes: 0, ..
                    } => begins.add_all(&with[after]),
                    Until::Come { missing_bytes, .. } if missing_bytes >= self.bytes[after] => {}
                    // It has begun.
                    _ => begins.add_all(&complete[after]),
                }
                if let Until::Come {
                    with_earlier: true, ..
                } = wait.until
                {
                    let earlier = to_host[self.transfers[after].to].iter();
                    for earlier in earlier.take_while(|earlier| **earlier < after) {
                        begins.add_all(&with[*earlier]);
                    }
                }
            }
            let mut whole = begins.clone();
            whole.add(at);
            for fed_by in &self.feeds[at] {
                whole.add_all(&with[*fed_by]);
            }
            complete.push(begins);
            with.push(whole);
            to_host[transfer.to].push(at);
        }
        complete
    }
}
