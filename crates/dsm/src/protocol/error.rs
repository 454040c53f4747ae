//! Breaks of the protocol, and calls that differ.

use std::fmt;

/// Break of the protocol, by the program of this node or by a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A lock that this node has is taken again.
    #[error("lock {0} is held or waited for by this node already")]
    HeldTwice(u32),
    /// A lock is released by a node that does not hold it.
    #[error("lock {0} is not held by this node: only the holder may release it")]
    NotHeld(u32),
    /// A request for a lock that another node manages.
    #[error("a request for lock {0}, which another node manages")]
    NotManager(u32),
    /// A message that does not fit the queue of a lock.
    #[error("a message about lock {0} does not fit its queue")]
    Queue(u32),
    /// A message that does not fit the exchange.
    #[error("a message of exchange {sequence} does not fit")]
    Exchange {
        /// Number of the exchange.
        sequence: u32,
    },
    /// The other nodes go on without this one.
    #[error("it has taken this node for lost, and goes on without it")]
    GivenUp,
    /// A message about lost nodes that do not exist, or about its sender.
    #[error("a message about lost nodes does not fit")]
    Losses,
    /// A message of nodes that have recovered, to one that has not, for which it is too early.
    #[error("a message is ahead of a recovery")]
    Ahead,
    /// A refresh that belongs to no barrier which this node expects, or a second one.
    #[error("a refresh of pages before exchange {0} does not fit")]
    Refresh(u32),
    /// Subscriptions to pages that do not exist.
    #[error("subscriptions to pages that do not exist, of node {0}")]
    Subscription(usize),
    /// An interval whose writer is no node.
    #[error("an interval of node {0}, which does not exist")]
    Writer(u16),
    /// An interval before this one is missing.
    #[error("interval {number} of node {writer} follows {last}")]
    Gap {
        /// Node that wrote it.
        writer: u16,
        /// Its number.
        number: u32,
        /// The last one that is known.
        last: u32,
    },
    /// A message that cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Nodes that made different calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Nodes with their calls.
    pub calls: Vec<(usize, String)>,
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, call) = &self.calls[0];
        let (other, different) = self
            .calls
            .iter()
            .find(|(_, other)| other != call)
            .unwrap_or(&self.calls[0]);
        write!(
            out,
            "node {first} calls {call}, node {other} calls {different}: all nodes make the same calls in the same order"
        )
    }
}

/// A message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes is malformed")]
pub struct Malformed(pub usize);
