//! Subscribers of pages: nodes that read a page after each barrier, and get what its writer has
//! changed before the barrier ends.

use super::spans::Span;
use std::collections::BTreeMap;

/// Subscribers by page.
#[derive(Debug, Clone, Default)]
pub struct Subscribers {
    by_page: BTreeMap<u32, Vec<u16>>,
}

impl Subscribers {
    /// Adds a node to pages.
    pub fn add(&mut self, node: u16, pages: &[Span]) {
        for page in pages.iter().flat_map(|span| span.pages()) {
            let nodes = self.by_page.entry(page).or_default();
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
    }

    /// Removes a node from pages.
    pub fn remove(&mut self, node: u16, pages: &[Span]) {
        for page in pages.iter().flat_map(|span| span.pages()) {
            if let Some(nodes) = self.by_page.get_mut(&page) {
                nodes.retain(|other| *other != node);
                if nodes.is_empty() {
                    self.by_page.remove(&page);
                }
            }
        }
    }

    /// Returns the subscribers of a page other than `writer`.
    pub fn of(&self, page: u32, writer: usize) -> impl Iterator<Item = u16> {
        let nodes = self.by_page.get(&page).map_or(&[][..], Vec::as_slice);
        let nodes = nodes.iter().copied();
        nodes.filter(move |node| usize::from(*node) != writer)
    }
}
