//! Messages of a node: who has written what, exchanges, and locks.

use super::agreement::Agreement;
use super::error::{Malformed, Mismatch, Violation};
use super::exchange::Exchange;
use super::intervals::{Interval, Intervals, Written};
use super::locks::{Locks, Step};
use super::spans::Span;
use super::subscribers::Subscribers;
use super::wire::{Arrival, Call, Message, PageRuns, Report, UpdateWay};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pages that others have written before a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BarrierEnd {
    /// Writes of which this node did not know, whose bytes are at the pages' homes.
    pub written: Vec<Written>,
    /// All writes since the barrier before whose bytes are at the pages' homes.
    pub all: Vec<Written>,
    /// Nodes that have sent this one a refresh.
    pub refreshed_by: Vec<usize>,
    /// Pages whose bytes nodes send to all others, this one among them.
    pub pushed: Vec<Written>,
    /// Some of them are messages.
    pub has_messages: bool,
    /// Some of them are put behind this exchange, and another one follows.
    pub has_puts_behind: bool,
}

/// Protocol state of a node.
#[derive(Debug)]
pub struct Engine {
    me: usize,
    nodes: usize,
    /// Nodes that are not lost, in order.
    members: Vec<usize>,
    agreement: Agreement,
    /// Messages of nodes that have agreed on more lost nodes than this one.
    ahead: Vec<(usize, u16, Vec<u8>)>,
    intervals: Intervals,
    exchange: Exchange,
    locks: Locks,
    /// Pages that others wrote before each lock that was granted and not yet taken.
    granted: BTreeMap<u32, Vec<Written>>,
    /// Pages of all regions.
    pages: u32,
    subscribers: Arc<Subscribers>,
    /// Refreshes that have arrived, by sender and number of the exchange.
    refreshes: BTreeMap<(usize, u32), Vec<(u32, PageRuns)>>,
    outbox: Outbox,
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
        let members: Vec<usize> = (0..nodes).collect();
        Self {
            me,
            nodes,
            agreement: Agreement::new(me, nodes),
            ahead: Vec::new(),
            intervals: Intervals::new(me, nodes),
            exchange: Exchange::new(me, members.clone()),
            locks: Locks::new(me, members.clone()),
            members,
            granted: BTreeMap::new(),
            pages: 0,
            subscribers: Arc::default(),
            refreshes: BTreeMap::new(),
            outbox: Outbox::default(),
        }
    }

    /// Returns the nodes that are not lost, in order.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Notes that nodes are lost.
    pub fn lose(&mut self, nodes: &[usize]) {
        let outbox = &mut self.outbox;
        let mut send = |to, message| outbox.push(to, &message);
        self.agreement.lose(nodes, &mut send);
    }

    /// Returns the nodes that this one knows to be lost.
    pub fn lost(&self) -> Vec<usize> {
        self.agreement.lost().iter().copied().collect()
    }

    /// Begins to agree with the other nodes on those that are lost.
    pub fn start_agreement(&mut self) {
        let outbox = &mut self.outbox;
        let mut send = |to, message| outbox.push(to, &message);
        self.agreement.start(&mut send);
    }

    /// Returns whether all nodes that are left know of the same lost ones.
    pub fn is_agreed(&self) -> bool {
        self.agreement.is_agreed()
    }

    /// Returns the lost nodes when all that are left have agreed on them.
    pub fn take_agreement(&mut self) -> Option<Vec<usize>> {
        self.agreement.take()
    }

    /// Begins anew without the lost nodes: no interval is known, and all locks are free.
    ///
    /// # Errors
    /// A message of a node that has done so already breaks the protocol.
    pub fn renew(&mut self, lost: &[usize]) -> Result<(), Violation> {
        self.members = (0..self.nodes)
            .filter(|node| !lost.contains(node))
            .collect();
        self.intervals = Intervals::new(self.me, self.nodes);
        self.exchange = Exchange::new(self.me, self.members.clone());
        self.locks = Locks::new(self.me, self.members.clone());
        self.granted.clear();
        self.subscribers = Arc::default();
        self.refreshes.clear();
        let losses = (self.nodes - self.members.len()) as u16;
        self.outbox.renew(losses);
        for (from, ahead, bytes) in std::mem::take(&mut self.ahead) {
            match ahead.cmp(&losses) {
                Ordering::Less => {}
                Ordering::Equal => {
                    let message = Message::decode(&bytes, self.nodes)?;
                    self.on_message(from, message)?;
                }
                Ordering::Greater => self.ahead.push((from, ahead, bytes)),
            }
        }
        Ok(())
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
        let outbox = &mut self.outbox;
        let mut send = |to, message| outbox.push(to, &message);
        self.exchange.start(call, &mut send);
    }

    /// Returns the data of all nodes, when all have begun the call.
    pub fn take_exchange(&mut self) -> Option<Result<Vec<Vec<u8>>, Mismatch>> {
        self.exchange.take()
    }

    /// Begins a barrier, at which this node sends `pushed` pages to all others.
    ///
    /// # Panics
    /// As [`Self::start_exchange`].
    pub fn start_barrier(
        &mut self,
        (pushed, updates): (Vec<Span>, UpdateWay),
        report: Report,
        refreshes: BTreeMap<u16, Vec<(u32, PageRuns)>>,
    ) {
        let mut intervals = self.intervals.own();
        if !pushed.is_empty() {
            // No interval has the number 0.
            intervals.push(Interval {
                writer: self.me as u16,
                number: 0,
                pages: pushed,
            });
        }
        let refreshed = refreshes.keys().copied().collect();
        let sequence = self.exchange.sequence() + 1;
        for (node, pages) in refreshes {
            let message = Message::Refresh { sequence, pages };
            self.outbox.push(node.into(), &message);
        }
        let arrival = Arrival {
            intervals,
            report,
            refreshed,
            updates,
        };
        self.start_exchange(Call {
            text: "barrier".to_owned(),
            data: arrival.encode(),
        });
    }

    /// Notes the number of pages of all regions.
    pub fn set_pages(&mut self, pages: u32) {
        self.pages = pages;
    }

    /// Returns the subscribers of pages, if what this node writes home now is all that it has
    /// written since the last barrier.
    pub fn subscribers(&self) -> Option<Arc<Subscribers>> {
        let is_all = self.intervals.own().is_empty();
        is_all.then(|| Arc::clone(&self.subscribers))
    }

    /// Returns the refreshes that `nodes` have sent before the last exchange, with their senders,
    /// when all have arrived.
    pub fn take_refreshes(&mut self, nodes: &[usize]) -> Option<Vec<(usize, u32, PageRuns)>> {
        let sequence = self.exchange.sequence();
        let has_arrived = |node: &usize| self.refreshes.contains_key(&(*node, sequence));
        if !nodes.iter().all(has_arrived) {
            return None;
        }
        let mut taken = Vec::new();
        for node in nodes {
            let pages = self
                .refreshes
                .remove(&(*node, sequence))
                .unwrap_or_default();
            taken.extend(pages.into_iter().map(|(page, runs)| (*node, page, runs)));
        }
        Some(taken)
    }

    /// Ends a barrier with the data of all nodes.
    ///
    /// # Errors
    /// The data is malformed.
    pub fn end_barrier(&mut self, data: &[Vec<u8>]) -> Result<BarrierEnd, Violation> {
        let mut end = BarrierEnd::default();
        let mut intervals = Vec::new();
        for (node, bytes) in self.members.iter().copied().zip(data) {
            let Arrival {
                intervals: own,
                report,
                refreshed,
                updates,
            } = Arrival::decode(bytes)?;
            let pages = report.subscribed.iter().chain(&report.unsubscribed);
            if pages.into_iter().any(|span| span.pages().end > self.pages) {
                return Err(Violation::Subscription(node));
            }
            end.has_messages |= updates == UpdateWay::Messages;
            end.has_puts_behind |= updates == UpdateWay::Behind;
            if refreshed.contains(&(self.me as u16)) {
                end.refreshed_by.push(node);
            }
            if report != Report::default() {
                let subscribers = Arc::make_mut(&mut self.subscribers);
                subscribers.add(node as u16, &report.subscribed);
                subscribers.remove(node as u16, &report.unsubscribed);
            }
            if let Some(other) = own.iter().find(|own| usize::from(own.writer) != node) {
                return Err(Violation::Writer(other.writer));
            }
            for own in own {
                match own.number {
                    0 => end.pushed.push(Written {
                        writer: own.writer,
                        pages: own.pages,
                    }),
                    _ => {
                        end.all.push(Written {
                            writer: own.writer,
                            pages: own.pages.clone(),
                        });
                        if node != self.me {
                            intervals.push(own);
                        }
                    }
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
        let malformed = Malformed(bytes.len());
        let (losses, bytes) = bytes.split_first_chunk().ok_or(malformed)?;
        let message = Message::decode(bytes, self.nodes)?;
        if matches!(message, Message::Lost { .. }) {
            return self.on_message(from, message);
        }
        let losses = u16::from_be_bytes(*losses);
        match losses.cmp(&self.outbox.losses) {
            _ if self.agreement.lost().contains(&from) => Ok(()),
            // It was sent before a recovery.
            Ordering::Less => Ok(()),
            Ordering::Equal => self.on_message(from, message),
            Ordering::Greater => {
                // The sender waits for this node after its first message, or begins anew because
                // another one is lost.
                let is_repeated =
                    |ahead: &(usize, u16, Vec<u8>)| ahead.0 == from && ahead.1 >= losses;
                if self.ahead.iter().any(is_repeated) {
                    return Err(Violation::Ahead);
                }
                self.ahead.retain(|(sender, ..)| *sender != from);
                self.ahead.push((from, losses, bytes.to_vec()));
                Ok(())
            }
        }
    }

    fn on_message(&mut self, from: usize, message: Message) -> Result<(), Violation> {
        match message {
            Message::Exchange {
                sequence,
                direction,
                calls,
            } => {
                let outbox = &mut self.outbox;
                let mut send = |to, message| outbox.push(to, &message);
                self.exchange
                    .on_message(from, sequence, direction, calls, &mut send)
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
            Message::Refresh { sequence, pages } => {
                // The sender is ahead by one exchange at most.
                let last = self.exchange.sequence();
                let is_near = sequence == last || sequence == last + 1;
                let name = (from, sequence);
                if !is_near || self.refreshes.contains_key(&name) {
                    return Err(Violation::Refresh(sequence));
                }
                // An earlier one was for a barrier that has failed.
                self.refreshes.retain(|(_, number), _| *number >= last);
                self.refreshes.insert(name, pages);
                Ok(())
            }
            Message::Lost { lost } => {
                let outbox = &mut self.outbox;
                let mut send = |to, message| outbox.push(to, &message);
                self.agreement.on_message(from, &lost, &mut send)
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
        self.outbox.push(to, &message);
        Ok(())
    }

    /// Returns whether a message waits to be sent.
    pub fn has_transmit(&self) -> bool {
        !self.outbox.messages.is_empty()
    }

    /// Returns the next message to send, with its receiver. Messages to one receiver stay in order.
    pub fn poll_transmit(&mut self) -> Option<(usize, Vec<u8>)> {
        self.outbox.messages.pop_front()
    }
}

/// Messages to send.
#[derive(Debug, Default)]
struct Outbox {
    /// Number of lost nodes on which this node has agreed. It stands for all of them: the sets only
    /// grow.
    losses: u16,
    messages: VecDeque<(usize, Vec<u8>)>,
}

impl Outbox {
    fn push(&mut self, to: usize, message: &Message) {
        let mut bytes = self.losses.to_be_bytes().to_vec();
        message.encode(&mut bytes);
        self.messages.push_back((to, bytes));
    }

    /// Drops all messages but those about lost nodes.
    fn renew(&mut self, losses: u16) {
        self.losses = losses;
        self.messages
            .retain(|(_, bytes)| Message::is_about_losses(&bytes[2..]));
    }
}
