//! Progress of this node: barriers and recoveries.

use super::holders::Pair;
use crate::protocol::Standing;

/// Nodes between two recoveries, and who holds which pages.
#[derive(Debug, Clone)]
pub struct Membership {
    /// Nodes that are not lost, in order.
    pub members: Vec<usize>,
    /// Holders of pages, by the pages' first home.
    pub pairs: Vec<Pair>,
}

/// Barriers and recoveries that this node has passed.
#[derive(Debug)]
pub struct Progress {
    pub standing: Standing,
    /// As of the last recovery that this node has passed.
    pub membership: Membership,
    /// That of a recovery whose last exchange this node has begun.
    pub next_membership: Option<Membership>,
}

impl Progress {
    /// Returns the progress of a job that begins.
    pub fn new(pairs: Vec<Pair>) -> Self {
        Self {
            standing: Standing::default(),
            membership: Membership {
                members: (0..pairs.len()).collect(),
                pairs,
            },
            next_membership: None,
        }
    }
}
