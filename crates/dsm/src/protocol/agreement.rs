//! Agreement on the nodes that are lost: each node tells all others which ones it knows to be
//! lost, again whenever it learns of one more. It has agreed when all that are left have told it
//! the same.
//!
//! A node that is lost for one node becomes so for all: what it still sends has no effect. The sets
//! on which nodes agree one after the other only grow, so their sizes are names for them.

use super::error::Violation;
use super::wire::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Lost nodes, as this node knows of them.
#[derive(Debug)]
pub struct Agreement {
    me: usize,
    nodes: usize,
    lost: BTreeSet<usize>,
    /// The program waits for an agreement.
    is_active: bool,
    /// Lost nodes that each node has told last.
    told: BTreeMap<usize, BTreeSet<usize>>,
}

impl Agreement {
    pub fn new(me: usize, nodes: usize) -> Self {
        Self {
            me,
            nodes,
            lost: BTreeSet::new(),
            is_active: false,
            told: BTreeMap::new(),
        }
    }

    /// Returns the nodes that are known to be lost.
    pub fn lost(&self) -> &BTreeSet<usize> {
        &self.lost
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes).filter(|node| *node != self.me && !self.lost.contains(node))
    }

    fn tell(&self, send: &mut dyn FnMut(usize, Message)) {
        for node in self.others() {
            let lost = self.lost.iter().map(|lost| *lost as u16).collect();
            send(node, Message::Lost { lost });
        }
    }

    /// Begins to agree with the others. [`Self::take`] tells when it is done.
    pub fn start(&mut self, send: &mut dyn FnMut(usize, Message)) {
        self.is_active = true;
        self.tell(send);
    }

    /// Notes that nodes are lost.
    pub fn lose(&mut self, nodes: &[usize], send: &mut dyn FnMut(usize, Message)) {
        let before = self.lost.len();
        self.lost.extend(nodes);
        if self.is_active && self.lost.len() > before {
            self.tell(send);
        }
    }

    /// Takes in what a node knows.
    ///
    /// # Errors
    /// A node does not exist, or it is this one: the others go on without it.
    pub fn on_message(
        &mut self,
        from: usize,
        lost: &[u16],
        send: &mut dyn FnMut(usize, Message),
    ) -> Result<(), Violation> {
        if self.lost.contains(&from) {
            return Ok(());
        }
        let lost: Vec<usize> = lost.iter().copied().map(usize::from).collect();
        if lost.contains(&self.me) {
            return Err(Violation::GivenUp);
        }
        if lost.iter().any(|node| *node >= self.nodes || *node == from) {
            return Err(Violation::Losses);
        }
        self.told.insert(from, lost.iter().copied().collect());
        self.lose(&lost, send);
        Ok(())
    }

    /// Returns whether all nodes that are left know the same.
    pub fn is_agreed(&self) -> bool {
        self.is_active
            && self
                .others()
                .all(|node| self.told.get(&node) == Some(&self.lost))
    }

    /// Returns the lost nodes when all that are left know the same.
    pub fn take(&mut self) -> Option<Vec<usize>> {
        let is_agreed = self.is_agreed();
        self.is_active &= !is_agreed;
        is_agreed.then(|| self.lost.iter().copied().collect())
    }
}
