//! Locks: a queue that its members pass on themselves, in the order of their requests.
//!
//! ```text
//!   requester ── request ──► manager ── forward ──► last of the queue ── grant ──► requester
//! ```
//!
//! The manager of a lock knows the last one in the queue only. A node that has released a lock
//! keeps it until another one asks, and takes it again without a message.

use super::error::Violation;
use super::intervals::Clock;
use std::collections::BTreeMap;

/// State of a lock on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Another node has it.
    #[default]
    Away,
    /// Requested, and not yet granted.
    Waiting,
    /// A program of this node holds it.
    Held,
    /// Released, and still here.
    Free,
}

#[derive(Debug, Default)]
struct Lock {
    state: State,
    /// The node that comes next, and its clock.
    next: Option<(usize, Clock)>,
}

/// Step that follows a change of a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nobody is told anything.
    None,
    /// Ask the manager.
    Request,
    /// Tell a node who comes after it.
    Forward {
        to: usize,
        requester: usize,
        clock: Clock,
    },
    /// Pass the lock on.
    Grant { to: usize, clock: Clock },
}

/// Locks of a node: its own part, and the queues of those that it manages.
#[derive(Debug)]
pub struct Locks {
    me: usize,
    members: Vec<usize>,
    locks: BTreeMap<u32, Lock>,
    /// Last node in the queue of each managed lock; this node at first.
    last: BTreeMap<u32, usize>,
}

impl Locks {
    pub fn new(me: usize, members: Vec<usize>) -> Self {
        Self {
            me,
            members,
            locks: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    /// Returns the node that manages a lock.
    pub fn manager(&self, lock: u32) -> usize {
        self.members[lock as usize % self.members.len()]
    }

    fn lock(&mut self, number: u32) -> &mut Lock {
        let is_manager = self.manager(number) == self.me;
        self.locks.entry(number).or_insert_with(|| Lock {
            state: if is_manager { State::Free } else { State::Away },
            next: None,
        })
    }

    /// Takes a lock, or begins to wait for it.
    ///
    /// # Errors
    /// This node holds it, or waits for it already.
    pub fn acquire(&mut self, number: u32) -> Result<Step, Violation> {
        let lock = self.lock(number);
        let (state, step) = match lock.state {
            State::Free => (State::Held, Step::None),
            State::Away => (State::Waiting, Step::Request),
            State::Held | State::Waiting => return Err(Violation::HeldTwice(number)),
        };
        lock.state = state;
        Ok(step)
    }

    /// Returns whether this node holds the lock.
    pub fn is_held(&self, number: u32) -> bool {
        let lock = self.locks.get(&number);
        lock.is_some_and(|lock| lock.state == State::Held)
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// This node does not hold it.
    pub fn release(&mut self, number: u32) -> Result<Step, Violation> {
        if !self.is_held(number) {
            return Err(Violation::NotHeld(number));
        }
        let lock = self.lock(number);
        lock.state = State::Free;
        Ok(lock.pass_on())
    }

    /// Handles the request of a node, as the manager.
    ///
    /// # Errors
    /// This node is not the manager, or the requester is the last one in the queue.
    pub fn on_request(
        &mut self,
        number: u32,
        requester: usize,
        clock: Clock,
    ) -> Result<Step, Violation> {
        let me = self.me;
        if self.manager(number) != me {
            return Err(Violation::NotManager(number));
        }
        let last = self.last.entry(number).or_insert(me);
        if *last == requester {
            return Err(Violation::HeldTwice(number));
        }
        let to = std::mem::replace(last, requester);
        if to == me {
            return self.on_forward(number, requester, clock);
        }
        Ok(Step::Forward {
            to,
            requester,
            clock,
        })
    }

    /// Handles the message that `requester` comes after this node.
    ///
    /// # Errors
    /// This node is not in the queue, or another one comes after it.
    pub fn on_forward(
        &mut self,
        number: u32,
        requester: usize,
        clock: Clock,
    ) -> Result<Step, Violation> {
        let is_node = self.members.contains(&requester) && requester != self.me;
        let lock = self.lock(number);
        if lock.state == State::Away || lock.next.is_some() || !is_node {
            return Err(Violation::Queue(number));
        }
        lock.next = Some((requester, clock));
        Ok(match lock.state {
            State::Free => lock.pass_on(),
            _ => Step::None,
        })
    }

    /// Handles the arrival of a lock.
    ///
    /// # Errors
    /// This node does not wait for it.
    pub fn on_grant(&mut self, number: u32) -> Result<(), Violation> {
        let lock = self.lock(number);
        if lock.state != State::Waiting {
            return Err(Violation::Queue(number));
        }
        lock.state = State::Held;
        Ok(())
    }
}

impl Lock {
    fn pass_on(&mut self) -> Step {
        match self.next.take() {
            Some((to, clock)) => {
                self.state = State::Away;
                Step::Grant { to, clock }
            }
            None => Step::None,
        }
    }
}
