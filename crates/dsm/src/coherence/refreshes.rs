//! Refreshes: changes that go to the subscribers of pages at a barrier, beside those that go home.

use crate::protocol::{PageRuns, Subscribers};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Changes for subscribers.
#[derive(Debug, Default)]
pub struct Refreshes {
    me: usize,
    subscribers: Arc<Subscribers>,
    /// Pages of which some changes went home before, numbered over all regions.
    partial: BTreeSet<u32>,
    /// Pages with their changes, by subscriber.
    pub by_node: BTreeMap<u16, Vec<(u32, PageRuns)>>,
}

impl Refreshes {
    /// Returns no changes of node `me`. All of a page that it has written since the last barrier
    /// are added, unless it is one of [`Self::leave_out`].
    pub fn new(me: usize, subscribers: Arc<Subscribers>) -> Self {
        Self {
            me,
            subscribers,
            ..Self::default()
        }
    }

    /// Leaves pages out.
    pub fn leave_out(&mut self, pages: &[u32]) {
        self.partial.extend(pages);
    }

    /// Returns whether the changes of a page have subscribers.
    pub fn is_wanted(&self, page: u32) -> bool {
        let mut subscribers = self.subscribers.of(page, self.me);
        subscribers.next().is_some() && !self.partial.contains(&page)
    }

    /// Adds the changes of a page.
    pub fn add(&mut self, page: u32, runs: &PageRuns) {
        for node in self.subscribers.of(page, self.me) {
            let pages = self.by_node.entry(node).or_default();
            pages.push((page, runs.clone()));
        }
    }
}
