//! Messages of a node: who has written what, exchanges, and locks.

use super::error::{Malformed, Mismatch, Violation};
use super::exchange::{Call, Exchange};
use super::intervals::{Interval, Intervals, Written};
use super::locks::{Locks, Step};
use super::spans::Span;
use super::wire::{self, Message};
use std::collections::{BTreeMap, VecDeque};

/// Pages that others have written before a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BarrierEnd {
    /// Writes of which this node did not know, whose bytes are at the pages' homes.
    pub written: Vec<Written>,
    /// Pages whose bytes nodes have sent to all others, this one among them.
    pub pushed: Vec<Written>,
}

/// Protocol state of a node.
#[derive(Debug)]
pub struct Engine {
    me: usize,
    nodes: usize,
    intervals: Intervals,
    exchange: Exchange,
    locks: Locks,
    /// Pages that others wrote before each lock that was granted and not yet taken.
    granted: BTreeMap<u32, Vec<Written>>,
    outgoing: VecDeque<(usize, Vec<u8>)>,
}

impl Engine {
    /// Returns the state of node `me` of `nodes`, before any write.
    ///
    /// # Panics
    /// Panics if there is no such node, or if there are more than 65 535.
    pub fn new(me: usize, nodes: usize) -> Self {
        assert!(
            me < nodes && nodes <= usize::from(u16::MAX),
            "{me} of {nodes}"
        );
        Self {
            me,
            nodes,
            intervals: Intervals::new(me, nodes),
            exchange: Exchange::new(me, (0..nodes).collect()),
            locks: Locks::new(me, nodes),
            granted: BTreeMap::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Ends an interval of this node, in which it has written `pages`. Their homes have the bytes.
    pub fn close_interval(&mut self, pages: Vec<Span>) {
        self.intervals.close(pages);
    }

    /// Begins a call that all nodes make. [`Self::take_exchange`] returns the data of all.
    ///
    /// # Panics
    /// Panics if another one is active.
    pub fn start_exchange(&mut self, call: Call) {
        let outgoing = &mut self.outgoing;
        self.exchange.start(call, &mut |to, message| {
            push(outgoing, to, &message);
        });
    }

    /// Returns the data of all nodes, when all have begun the call.
    pub fn take_exchange(&mut self) -> Option<Result<Vec<Vec<u8>>, Mismatch>> {
        self.exchange.take()
    }

    /// Begins a barrier, before which this node has sent `pushed` pages to all others.
    ///
    /// # Panics
    /// As [`Self::start_exchange`].
    pub fn start_barrier(&mut self, pushed: Vec<Span>) {
        let mut data = Vec::new();
        let mut intervals = self.intervals.own();
        if !pushed.is_empty() {
            // No interval has the number 0.
            intervals.push(Interval {
                writer: self.me as u16,
                number: 0,
                pages: pushed,
            });
        }
        wire::push_intervals(&intervals, &mut data);
        self.start_exchange(Call {
            text: "barrier".to_owned(),
            data,
        });
    }

    /// Ends a barrier with the data of all nodes.
    ///
    /// # Errors
    /// The data is malformed.
    pub fn end_barrier(&mut self, data: &[Vec<u8>]) -> Result<BarrierEnd, Violation> {
        let mut end = BarrierEnd::default();
        let mut intervals = Vec::new();
        for (node, bytes) in data.iter().enumerate() {
            let own = wire::read_intervals(bytes).ok_or(Malformed(bytes.len()))?;
            if let Some(other) = own.iter().find(|own| usize::from(own.writer) != node) {
                return Err(Violation::Writer(other.writer));
            }
            for own in own {
                match own.number {
                    0 => end.pushed.push(Written {
                        writer: own.writer,
                        pages: own.pages,
                    }),
                    _ if node != self.me => intervals.push(own),
                    _ => {}
                }
            }
        }
        end.written = self.intervals.learn(intervals)?;
        self.intervals.end_barrier();
        Ok(end)
    }

    /// Takes a lock, or begins to wait for it. [`Self::take_grant`] tells when this node has it.
    ///
    /// # Errors
    /// This node holds it, or waits for it already.
    pub fn acquire(&mut self, lock: u32) -> Result<(), Violation> {
        match self.locks.acquire(lock)? {
            Step::Request => {
                let manager = self.locks.manager(lock);
                let clock = self.intervals.clock().clone();
                self.deliver(manager, Message::Request { lock, clock })
            }
            _ => {
                self.granted.insert(lock, Vec::new());
                Ok(())
            }
        }
    }

    /// Returns what others wrote before they released the lock, when this node has it.
    pub fn take_grant(&mut self, lock: u32) -> Option<Vec<Written>> {
        self.granted.remove(&lock)
    }

    /// Returns whether this node holds the lock.
    pub fn is_held(&self, lock: u32) -> bool {
        self.locks.is_held(lock)
    }

    /// Releases a lock. The interval before it is closed.
    ///
    /// # Errors
    /// This node does not hold it.
    pub fn release(&mut self, lock: u32) -> Result<(), Violation> {
        let step = self.locks.release(lock)?;
        self.follow(lock, step)
    }

    /// Handles a message of node `from`.
    ///
    /// # Errors
    /// It breaks the protocol.
    pub fn handle(&mut self, from: usize, bytes: &[u8]) -> Result<(), Violation> {
        let message = Message::decode(bytes, self.nodes)?;
        self.on_message(from, message)
    }

    fn on_message(&mut self, from: usize, message: Message) -> Result<(), Violation> {
        match message {
            Message::Exchange {
                sequence,
                direction,
                blobs,
            } => {
                let outgoing = &mut self.outgoing;
                let mut send = |to, message| push(outgoing, to, &message);
                self.exchange
                    .on_message(from, sequence, direction, blobs, &mut send)
            }
            Message::Request { lock, clock } => {
                let step = self.locks.on_request(lock, from, clock)?;
                self.follow(lock, step)
            }
            Message::Forward {
                lock,
                requester,
                clock,
            } => {
                if from != self.locks.manager(lock) {
                    return Err(Violation::NotManager(lock));
                }
                let step = self.locks.on_forward(lock, requester.into(), clock)?;
                self.follow(lock, step)
            }
            Message::Grant { lock, intervals } => {
                self.locks.on_grant(lock)?;
                let written = self.intervals.learn(intervals)?;
                self.granted.insert(lock, written);
                Ok(())
            }
        }
    }

    fn follow(&mut self, lock: u32, step: Step) -> Result<(), Violation> {
        let (to, message) = match step {
            Step::None | Step::Request => return Ok(()),
            Step::Forward {
                to,
                requester,
                clock,
            } => (
                to,
                Message::Forward {
                    lock,
                    requester: requester as u16,
                    clock,
                },
            ),
            Step::Grant { to, clock } => (
                to,
                Message::Grant {
                    lock,
                    intervals: self.intervals.after(&clock),
                },
            ),
        };
        self.deliver(to, message)
    }

    /// Sends a message, or handles it if it is for this node.
    fn deliver(&mut self, to: usize, message: Message) -> Result<(), Violation> {
        if to == self.me {
            return self.on_message(to, message);
        }
        push(&mut self.outgoing, to, &message);
        Ok(())
    }

    /// Returns whether a message waits to be sent.
    pub fn has_transmit(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns the next message to send, with its receiver. Messages to one receiver stay in order.
    pub fn poll_transmit(&mut self) -> Option<(usize, Vec<u8>)> {
        self.outgoing.pop_front()
    }
}

fn push(outgoing: &mut VecDeque<(usize, Vec<u8>)>, to: usize, message: &Message) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    outgoing.push_back((to, bytes));
}
