//! Tickets: a caller's handles of its pending operations.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Reason that an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rank no longer runs or cannot be reached. The remaining ranks may shrink the group and
    /// continue.
    #[error("rank {rank} is lost: {reason}")]
    Lost {
        /// Current rank of the lost member.
        rank: usize,
        /// Evidence of the loss.
        reason: String,
    },
    /// The other ranks continue without this rank.
    #[error("the other ranks continue without this rank: {0}")]
    Excluded(String),
    /// Ranks made different requests. The group remains usable.
    #[error("ranks made different requests: {0}")]
    Disagree(String),
    /// A message does not fit its buffer, or a request is refused. The group remains usable.
    #[error("{0}")]
    Message(String),
    /// A system call failed, ranks did not find each other, or the group's thread ended.
    #[error("{0}")]
    System(String),
    /// The group was closed.
    #[error("the group is closed")]
    Closed,
    /// The operation has not completed within its limit. It continues.
    #[error("{0}")]
    Late(String),
    /// This process is a forked child of the group's owner.
    #[error(
        "this process was forked from process {0}, which owns the group; create another group here, or start processes by exec"
    )]
    Forked(u32),
}

/// Returns an error in a forked child of `process`, which has none of the group's threads and
/// connections.
pub(crate) fn is_own(process: u32) -> Result<(), Failure> {
    match std::process::id() == process {
        true => Ok(()),
        false => Err(Failure::Forked(process)),
    }
}

type Outcome = Result<Completion, Failure>;

/// Handle of a pending operation.
#[derive(Debug)]
pub struct Ticket {
    state: Mutex<State>,
    condvar: Condvar,
    process: u32,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    /// Queues to notify when the ticket is settled, each with the name to put into it.
    queues: Vec<(Arc<Queue>, u64)>,
}

/// Result of an operation that succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completion {
    /// Current rank of a message's sender; 0 for other operations.
    pub from: usize,
    /// Length of a message in bytes; 0 for other operations.
    pub bytes: u64,
}

impl Ticket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles the ticket. Only the first outcome counts.
    fn settle(&self, outcome: Outcome) {
        let mut state = self.state();
        state.outcome.get_or_insert(outcome);
        let queues = std::mem::take(&mut state.queues);
        drop(state);
        self.condvar.notify_all();
        for (queue, name) in queues {
            queue.push(name);
        }
    }

    /// Waits for the outcome, for `limit` at most if there is one.
    pub fn wait(&self, limit: Option<Duration>) -> Option<Outcome> {
        if let Err(failure) = is_own(self.process) {
            return Some(Err(failure));
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        loop {
            if state.outcome.is_some() {
                return state.outcome.clone();
            }
            state = match deadline {
                None => self
                    .condvar
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let remaining = deadline.saturating_duration_since(Instant::now());
                    if remaining.is_zero() {
                        return None;
                    }
                    let result = self.condvar.wait_timeout(state, remaining);
                    result.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Puts `name` into a queue when the ticket is settled. If it is settled already, this happens
    /// at once.
    pub fn notify(&self, queue: &Arc<Queue>, name: u64) {
        let is_settled = is_own(self.process).is_err() || {
            let mut state = self.state();
            if state.outcome.is_none() {
                state.queues.push((Arc::clone(queue), name));
            }
            state.outcome.is_some()
        };
        if is_settled {
            queue.push(name);
        }
    }
}

/// Names of settled tickets, in the order in which they were settled: at most one for each
/// [`Ticket::notify`].
#[derive(Debug, Default)]
pub struct Queue {
    settled: Mutex<VecDeque<u64>>,
    condvar: Condvar,
}

impl Queue {
    fn settled(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, name: u64) {
        self.settled().push_back(name);
        self.condvar.notify_one();
    }

    /// Returns the next name. Waits for one, for `limit` at most if there is one.
    pub fn next(&self, limit: Option<Duration>) -> Option<u64> {
        let is_empty = |settled: &mut VecDeque<u64>| settled.is_empty();
        let settled = self.settled();
        let mut settled = match limit {
            None => self
                .condvar
                .wait_while(settled, is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let result = self.condvar.wait_timeout_while(settled, limit, is_empty);
                result.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        settled.pop_front()
    }
}

/// The side of a ticket that settles it. Dropping it, as when the group's thread ends, fails the
/// ticket: no thread is left to complete the operation.
#[derive(Debug)]
pub struct Promise(Arc<Ticket>);

impl Promise {
    /// Creates a ticket and its other side.
    pub fn new() -> (Self, Arc<Ticket>) {
        let ticket = Arc::new(Ticket {
            state: Mutex::default(),
            condvar: Condvar::new(),
            process: std::process::id(),
        });
        (Self(Arc::clone(&ticket)), ticket)
    }

    /// Settles the ticket. Only the first outcome counts.
    pub fn settle(&self, outcome: Outcome) {
        self.0.settle(outcome);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let reason = "the group's thread has ended; the group cannot be used any more".to_owned();
        self.0.settle(Err(Failure::System(reason)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket__promise_dropped__fails() {
        let (promise, ticket) = Promise::new();
        let queue = Arc::new(Queue::default());
        ticket.notify(&queue, 7);
        assert_eq!(ticket.wait(Some(Duration::ZERO)), None);
        assert_eq!(queue.next(Some(Duration::ZERO)), None);
        drop(promise);
        let outcome = ticket.wait(None).unwrap();
        assert!(matches!(outcome, Err(Failure::System(_))), "{outcome:?}");
        ticket.notify(&queue, 8);
        let names = [(); 2].map(|()| queue.next(None).unwrap());
        assert_eq!((names, queue.next(Some(Duration::ZERO))), ([7, 8], None));
    }

    #[test]
    fn ticket__settled__keeps_its_outcome() {
        let (promise, ticket) = Promise::new();
        promise.settle(Ok(Completion::default()));
        drop(promise);
        assert_eq!(ticket.wait(None), Some(Ok(Completion::default())));
    }
}
