//! Holders of pages: the node that has the pages of each home, and that of their replica.

use std::sync::atomic::{AtomicU16, Ordering};

/// Stands for no node.
const NONE: u16 = u16::MAX;

/// Nodes that hold pages, by the pages' first home.
#[derive(Debug)]
pub struct Holders {
    homes: Vec<AtomicU16>,
    replicas: Vec<AtomicU16>,
}

/// Nodes that hold the pages of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Node that has the pages.
    pub home: usize,
    /// Node that has them as of the last barrier.
    pub replica: Option<usize>,
}

/// Returns the node behind `home` in a ring of all nodes that is not lost.
fn next(home: usize, nodes: usize, lost: &[usize]) -> Option<usize> {
    let others = (1..nodes).map(|step| (home + step) % nodes);
    others.into_iter().find(|node| !lost.contains(node))
}

/// Returns the holders without lost nodes, by the pages' first home.
///
/// # Errors
/// Returns the holders of pages that no node has any more.
pub fn without(pairs: &[Pair], lost: &[usize]) -> Result<Vec<Pair>, Pair> {
    let pair = |pair: &Pair| {
        let held = [Some(pair.home), pair.replica];
        let mut left = held
            .into_iter()
            .flatten()
            .filter(|node| !lost.contains(node));
        let home = left.next().ok_or(*pair)?;
        Ok(Pair {
            home,
            replica: next(home, pairs.len(), lost),
        })
    };
    pairs.iter().map(pair).collect()
}

impl Holders {
    /// Returns the holders while no node is lost, without replicas.
    pub fn new(nodes: usize) -> Self {
        Self {
            homes: (0..nodes).map(|home| AtomicU16::new(home as u16)).collect(),
            replicas: (0..nodes).map(|_| AtomicU16::new(NONE)).collect(),
        }
    }

    /// Gives each home's pages a replica on the next node.
    pub fn keep_replicas(&self) {
        let mut pairs = self.pairs();
        for pair in &mut pairs {
            pair.replica = next(pair.home, self.homes.len(), &[]);
        }
        self.set(&pairs);
    }

    /// Returns the node that has the pages whose first home is `first`.
    pub fn home(&self, first: usize) -> usize {
        self.homes[first].load(Ordering::Relaxed).into()
    }

    /// Returns the node that has the replica of the pages whose first home is `first`.
    pub fn replica(&self, first: usize) -> Option<usize> {
        let replica = self.replicas[first].load(Ordering::Relaxed);
        (replica != NONE).then_some(replica.into())
    }

    /// Returns the holders, by the pages' first home.
    pub fn pairs(&self) -> Vec<Pair> {
        let firsts = 0..self.homes.len();
        let pair = |first| Pair {
            home: self.home(first),
            replica: self.replica(first),
        };
        firsts.map(pair).collect()
    }

    /// Replaces the holders.
    pub fn set(&self, pairs: &[Pair]) {
        for (first, pair) in pairs.iter().enumerate() {
            self.homes[first].store(pair.home as u16, Ordering::Relaxed);
            let replica = pair.replica.map_or(NONE, |node| node as u16);
            self.replicas[first].store(replica, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders__of_nodes_lost_one_by_one__move_to_the_replica_and_the_next_node() {
        let holders = Holders::new(4);
        holders.keep_replicas();
        let pairs = without(&holders.pairs(), &[1]).unwrap();
        assert_eq!((pairs[0].home, pairs[0].replica), (0, Some(2)));
        assert_eq!((pairs[1].home, pairs[1].replica), (2, Some(3)));
        holders.set(&pairs);
        assert_eq!((holders.home(1), holders.replica(1)), (2, Some(3)));
        let pairs = without(&pairs, &[1, 2]).unwrap();
        assert_eq!((pairs[1].home, pairs[1].replica), (3, Some(0)));
        let pairs = without(&pairs, &[1, 2, 3]).unwrap();
        let alone = Pair {
            home: 0,
            replica: None,
        };
        assert_eq!(pairs, [alone; 4]);
    }

    #[test]
    fn holders__of_a_home_lost_with_its_replica__are_named() {
        let pair = Pair {
            home: 2,
            replica: Some(3),
        };
        let holders = Holders::new(4);
        assert!(without(&holders.pairs(), &[3]).is_err());
        holders.keep_replicas();
        assert_eq!(without(&holders.pairs(), &[2, 3]), Err(pair));
    }
}
