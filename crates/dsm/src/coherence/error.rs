//! Failures of calls.

use crate::protocol::{Mismatch, Violation};
use std::io;

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum DsmError {
    /// A node is lost. No call of this job succeeds any more, but for a recovery.
    #[error("node {node} is lost: {reason}")]
    Lost {
        /// Number of the node.
        node: usize,
        /// Event that showed it.
        reason: String,
    },
    /// Pages are lost with all nodes that had them.
    #[error("pages are lost with node {home}{}: each page has one replica", replica_text(*.replica))]
    PagesLost {
        /// Node that was their home.
        home: usize,
        /// Node that had their replica.
        replica: Option<usize>,
    },
    /// Too few nodes are left: the others may go on without them.
    #[error(
        "{left} of {members} nodes are left: the others may go on, so these do not (expected more \
         than half, or half with the lowest number)"
    )]
    Minority {
        /// Nodes that are left.
        left: usize,
        /// Nodes before the loss.
        members: usize,
    },
    /// Nodes made different calls.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The program or a message broke the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// Action that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn replica_text(replica: Option<usize>) -> String {
    replica.map_or_else(String::new, |node| {
        format!(" and node {node}, which had their replica")
    })
}

impl DsmError {
    pub(crate) fn memory(source: io::Error) -> Self {
        Self::System {
            what: "cannot change the pages of shared memory",
            source,
        }
    }
}
