//! What a caller holds of what it has started.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rank no longer runs, or is out of reach. Those that are left may shrink the group and go on.
    #[error("rank {rank} is lost: {why}")]
    Lost {
        /// Its number among the members of now.
        rank: usize,
        /// How that is known.
        why: String,
    },
    /// The others go on without this rank.
    #[error("the others have lost this rank: {0}")]
    Excluded(String),
    /// Ranks have asked for different things. The group stands.
    #[error("ranks disagree on what is to be done: {0}")]
    Disagree(String),
    /// A message does not fit. The group stands.
    #[error("{0}")]
    Message(String),
    /// The kernel refuses something that the group cannot be without.
    #[error("{0}")]
    System(String),
    /// The group was closed.
    #[error("the group is closed")]
    Closed,
}

/// What is waited for.
#[derive(Debug, Default)]
pub struct Ticket {
    outcome: Mutex<Option<Result<Done, Failure>>>,
    comes: Condvar,
}

/// What is known when it is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Of a message: who sent it.
    pub from: usize,
    /// Of a message: how long it is.
    pub bytes: u64,
}

impl Ticket {
    /// Says what came of it; the first word counts.
    pub(crate) fn settle(&self, outcome: Result<Done, Failure>) {
        let mut standing = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        standing.get_or_insert(outcome);
        drop(standing);
        self.comes.notify_all();
    }

    /// Waits for what comes of it; no longer than `limit`, if there is one.
    pub fn wait(&self, limit: Option<Duration>) -> Option<Result<Done, Failure>> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut standing = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if standing.is_some() {
                return standing.clone();
            }
            standing = match until {
                None => self
                    .comes
                    .wait(standing)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.comes.wait_timeout(standing, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
