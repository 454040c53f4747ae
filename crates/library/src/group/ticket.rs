//! What a caller holds of what it has started.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    /// It is not done within its limit, and goes on.
    #[error("{0}")]
    Late(String),
    /// This process is a child of the one that began it.
    #[error(
        "this process was forked from process {0}, which has the group; begin another group here, or start processes by exec"
    )]
    Forked(u32),
}

/// Fails in a process forked from `process`, which has none of its threads and connections.
pub(crate) fn is_own(process: u32) -> Result<(), Failure> {
    match std::process::id() == process {
        true => Ok(()),
        false => Err(Failure::Forked(process)),
    }
}

type Outcome = Result<Done, Failure>;

/// What is waited for.
#[derive(Debug)]
pub struct Ticket {
    state: Mutex<State>,
    comes: Condvar,
    process: u32,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    /// Who is told when it is settled, and as what.
    told: Vec<(Arc<Queue>, u64)>,
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles it; the first outcome counts.
    fn settle(&self, outcome: Outcome) {
        let mut state = self.state();
        state.outcome.get_or_insert(outcome);
        let told = std::mem::take(&mut state.told);
        drop(state);
        self.comes.notify_all();
        for (queue, name) in told {
            queue.push(name);
        }
    }

    /// Waits for its outcome; no longer than `limit`, if there is one.
    pub fn wait(&self, limit: Option<Duration>) -> Option<Outcome> {
        if let Err(failure) = is_own(self.process) {
            return Some(Err(failure));
        }
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        loop {
            if state.outcome.is_some() {
                return state.outcome.clone();
            }
            state = match until {
                None => self
                    .comes
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.comes.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Puts `name` into a queue when it is settled, or now if it is.
    pub fn tell(&self, queue: &Arc<Queue>, name: u64) {
        let is_settled = is_own(self.process).is_err() || {
            let mut state = self.state();
            if state.outcome.is_none() {
                state.told.push((Arc::clone(queue), name));
            }
            state.outcome.is_some()
        };
        if is_settled {
            queue.push(name);
        }
    }
}

/// Names of tickets that are settled, in the order in which they were: at most one for each [`Ticket::tell`].
#[derive(Debug, Default)]
pub struct Queue {
    settled: Mutex<VecDeque<u64>>,
    comes: Condvar,
}

impl Queue {
    fn settled(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, name: u64) {
        self.settled().push_back(name);
        self.comes.notify_one();
    }

    /// Takes the next name; waits for one, no longer than `limit` if there is one.
    pub fn next(&self, limit: Option<Duration>) -> Option<u64> {
        let is_empty = |settled: &mut VecDeque<u64>| settled.is_empty();
        let settled = self.settled();
        let mut settled = match limit {
            None => self
                .comes
                .wait_while(settled, is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.comes.wait_timeout_while(settled, limit, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        settled.pop_front()
    }
}

/// The side of a ticket that settles it. Dropped, as when the group's thread ends, it fails the ticket: nobody waits for
/// what nobody does any more.
#[derive(Debug)]
pub struct Promise(Arc<Ticket>);

impl Promise {
    /// Makes a ticket and its other side.
    pub fn new() -> (Self, Arc<Ticket>) {
        let ticket = Arc::new(Ticket {
            state: Mutex::default(),
            comes: Condvar::new(),
            process: std::process::id(),
        });
        (Self(Arc::clone(&ticket)), ticket)
    }

    /// Says what came of it; the first outcome counts.
    pub fn settle(&self, outcome: Outcome) {
        self.0.settle(outcome);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let why = "the group's thread has ended; the group does nothing more".to_owned();
        self.0.settle(Err(Failure::System(why)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket__that_nobody_settles_any_more__fails() {
        let (promise, ticket) = Promise::new();
        let queue = Arc::new(Queue::default());
        ticket.tell(&queue, 7);
        assert_eq!(ticket.wait(Some(Duration::ZERO)), None);
        assert_eq!(queue.next(Some(Duration::ZERO)), None);
        drop(promise);
        let failed = ticket.wait(None).unwrap();
        assert!(matches!(failed, Err(Failure::System(_))), "{failed:?}");
        ticket.tell(&queue, 8);
        let told = [(); 2].map(|()| queue.next(None).unwrap());
        assert_eq!((told, queue.next(Some(Duration::ZERO))), ([7, 8], None));
    }

    #[test]
    fn ticket__that_is_settled__keeps_its_outcome() {
        let (promise, ticket) = Promise::new();
        promise.settle(Ok(Done::default()));
        drop(promise);
        assert_eq!(ticket.wait(None), Some(Ok(Done::default())));
    }
}
