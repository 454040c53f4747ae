//! Failures of calls.

use crate::protocol::{Mismatch, Violation};
use std::io;

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum DsmError {
    /// A node is lost. No call of this job succeeds any more.
    #[error("node {node} is lost: {reason}")]
    Lost {
        /// Number of the node.
        node: usize,
        /// Event that showed it.
        reason: String,
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

impl DsmError {
    pub(crate) fn memory(source: io::Error) -> Self {
        Self::System {
            what: "cannot change the pages of shared memory",
            source,
        }
    }
}
