//! Exchanges: every node gets the call of every other one, over a tree of the nodes. An exchange
//! ends on a node after it has begun on all, so it is a barrier.
//!
//! ```text
//!             0
//!      ┌──────┼──────┐      calls go up to the root as subtrees are complete,
//!      1      2 ...  16     and those of all nodes come down
//!   ┌──┴──┐
//!   17 .. 32
//! ```
//!
//! Each node is woken once, and up to 17 nodes need two messages in a row. Dissemination (Hensgen
//! et al., 1988) has ⌈log₂ nodes⌉ in a row, and wakes each node as often.

use super::error::{Mismatch, Violation};
use super::wire::{Call, Calls, Direction, Message};
use std::collections::BTreeMap;

/// Most children of a node.
const CHILDREN_MAX: usize = 16;

/// The exchange of this node.
#[derive(Debug)]
pub struct Exchange {
    /// Nodes of the tree, by position. The first one is the root.
    members: Vec<usize>,
    /// Position of this node.
    position: usize,
    /// Number of the exchange that is active, or was last.
    sequence: u32,
    is_active: bool,
    is_complete: bool,
    calls: BTreeMap<usize, Call>,
    /// Positions of the children whose calls of this exchange have arrived.
    arrived: Vec<usize>,
    /// Calls of the subtrees of children that are ahead, by the child's position.
    early: BTreeMap<usize, Calls>,
}

impl Exchange {
    /// Returns the state of node `me`, before the first exchange of `members`.
    pub fn new(me: usize, members: Vec<usize>) -> Self {
        let position = members.iter().position(|member| *member == me);
        Self {
            position: position.expect("a node is a member of its own job"),
            members,
            sequence: 0,
            is_active: false,
            is_complete: false,
            calls: BTreeMap::new(),
            arrived: Vec::new(),
            early: BTreeMap::new(),
        }
    }

    fn parent(position: usize) -> Option<usize> {
        Some(position.checked_sub(1)? / CHILDREN_MAX)
    }

    fn children(&self) -> std::ops::Range<usize> {
        let first = (self.position * CHILDREN_MAX + 1).min(self.members.len());
        first..(first + CHILDREN_MAX).min(self.members.len())
    }

    /// Returns whether a position is `top` or below it.
    fn is_below(mut position: usize, top: usize) -> bool {
        while position > top {
            position = (position - 1) / CHILDREN_MAX;
        }
        position == top
    }

    /// Returns the number of the exchange that is active, or was last.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Begins an exchange.
    ///
    /// # Panics
    /// Panics if one is active.
    pub fn start(&mut self, call: Call, send: &mut dyn FnMut(usize, Message)) {
        assert!(!self.is_active, "one exchange at a time");
        self.sequence += 1;
        self.is_active = true;
        self.is_complete = false;
        self.arrived.clear();
        self.calls.insert(self.members[self.position], call);
        for (child, calls) in std::mem::take(&mut self.early) {
            self.add(child, calls);
        }
        self.go_up(send);
    }

    fn add(&mut self, child: usize, calls: Calls) {
        self.arrived.push(child);
        self.calls.extend(calls);
    }

    /// Sends the calls of this subtree to the parent when it has them all. The root sends those of
    /// all nodes down instead.
    fn go_up(&mut self, send: &mut dyn FnMut(usize, Message)) {
        if self.arrived.len() < self.children().len() {
            return;
        }
        match Self::parent(self.position) {
            Some(parent) => {
                let message = self.message(Direction::Up, |_| true);
                send(self.members[parent], message);
            }
            None => self.go_down(send),
        }
    }

    fn go_down(&mut self, send: &mut dyn FnMut(usize, Message)) {
        self.is_complete = true;
        for child in self.children() {
            let message = self.message(Direction::Down, |node| !self.is_in(node, child));
            send(self.members[child], message);
        }
    }

    /// Returns whether a member is in the subtree of a position.
    fn is_in(&self, node: usize, top: usize) -> bool {
        let position = self.members.binary_search(&node);
        position.is_ok_and(|position| Self::is_below(position, top))
    }

    fn message(&self, direction: Direction, is_sent: impl Fn(usize) -> bool) -> Message {
        let calls = self.calls.iter().filter(|(node, _)| is_sent(**node));
        Message::Exchange {
            sequence: self.sequence,
            direction,
            calls: calls.map(|(node, call)| (*node, call.clone())).collect(),
        }
    }

    /// Takes calls in.
    ///
    /// # Errors
    /// They are not those that the sender has to send, or of another exchange.
    pub fn on_message(
        &mut self,
        from: usize,
        sequence: u32,
        direction: Direction,
        calls: Calls,
        send: &mut dyn FnMut(usize, Message),
    ) -> Result<(), Violation> {
        let wrong = Violation::Exchange { sequence };
        let from = self
            .members
            .binary_search(&from)
            .map_err(|_| wrong.clone())?;
        let is_now = sequence == self.sequence && self.is_active && !self.is_complete;
        let has = |top: usize| {
            let below =
                (0..self.members.len()).filter(move |position| Self::is_below(*position, top));
            below.map(|position| self.members[position])
        };
        let sent = calls.iter().map(|(node, _)| *node);
        match direction {
            Direction::Up => {
                // A node begins an exchange after the one before has begun on all nodes, so it is
                // ahead by one at most.
                let is_next =
                    sequence == self.sequence + 1 && (!self.is_active || self.is_complete);
                let is_child = self.children().contains(&from);
                let is_new = match is_now {
                    true => !self.arrived.contains(&from),
                    false => is_next && !self.early.contains_key(&from),
                };
                if !is_child || !is_new || !sent.eq(has(from)) {
                    return Err(wrong);
                }
                if is_now {
                    self.add(from, calls);
                    self.go_up(send);
                } else {
                    self.early.insert(from, calls);
                }
            }
            Direction::Down => {
                let others = self.members.iter().copied();
                let others = others.filter(|node| !self.is_in(*node, self.position));
                let is_awaited = is_now && self.arrived.len() == self.children().len();
                if !is_awaited || Self::parent(self.position) != Some(from) || !sent.eq(others) {
                    return Err(wrong);
                }
                self.calls.extend(calls);
                self.go_down(send);
            }
        }
        Ok(())
    }

    /// Returns the data of all members, in the order of their numbers, when the exchange is done.
    pub fn take(&mut self) -> Option<Result<Vec<Vec<u8>>, Mismatch>> {
        if !self.is_active || !self.is_complete {
            return None;
        }
        self.is_active = false;
        let calls = std::mem::take(&mut self.calls).into_values();
        let (texts, data): (Vec<String>, Vec<Vec<u8>>) =
            calls.map(|call| (call.text, call.data)).unzip();
        let is_same = texts.iter().all(|text| *text == texts[0]);
        Some(if is_same {
            Ok(data)
        } else {
            let members = self.members.iter().copied();
            Err(Mismatch {
                calls: members.zip(texts).collect(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(node: usize, sequence: u32) -> Call {
        Call {
            text: format!("call {sequence}"),
            data: vec![node as u8; node % 5],
        }
    }

    /// Exchanges in a row, of `members` whose messages arrive in any order. Nodes begin the next
    /// one as soon as they can.
    fn exchange_in_a_row(members: &[usize], rng: &mut fastrand::Rng) {
        const EXCHANGES: u32 = 4;
        let new = |member: &usize| Exchange::new(*member, members.to_vec());
        let mut nodes: Vec<Exchange> = members.iter().map(new).collect();
        let mut messages: Vec<(usize, usize, Message)> = Vec::new();
        let expected: Vec<Vec<u8>> = members.iter().map(|node| call(*node, 0).data).collect();
        let mut ended = 0;
        while ended < members.len() {
            let at = rng.usize(..nodes.len());
            let (me, node) = (members[at], &mut nodes[at]);
            if let Some(data) = node.take() {
                assert_eq!(data.unwrap(), expected);
                ended += usize::from(node.sequence == EXCHANGES);
            }
            if !node.is_active && node.sequence < EXCHANGES {
                let call = call(me, node.sequence + 1);
                node.start(call, &mut |to, message| messages.push((me, to, message)));
            }
            if messages.is_empty() {
                continue;
            }
            // Those between two nodes stay in order.
            let next = rng.usize(..messages.len());
            let pair = (messages[next].0, messages[next].1);
            let next = messages
                .iter()
                .position(|(from, to, _)| (*from, *to) == pair);
            let (from, to, message) = messages.remove(next.unwrap());
            let Message::Exchange {
                sequence,
                direction,
                calls,
            } = message
            else {
                panic!("an exchange sends no {message:?}");
            };
            let at = members.binary_search(&to).unwrap();
            let mut send = |next, message| messages.push((to, next, message));
            let handled = nodes[at].on_message(from, sequence, direction, calls.clone(), &mut send);
            handled.unwrap();
            let again = nodes[at].on_message(from, sequence, direction, calls, &mut send);
            assert_eq!(again, Err(Violation::Exchange { sequence }));
        }
    }

    #[test]
    fn exchange__of_any_number_of_nodes__gives_each_the_data_of_all() {
        let mut rng = fastrand::Rng::with_seed(19);
        for count in (1..40).chain([272, 273, 274, 300]) {
            exchange_in_a_row(&(0..count).collect::<Vec<_>>(), &mut rng);
        }
    }

    #[test]
    fn exchange__of_the_nodes_that_are_left__gives_each_the_data_of_all() {
        let mut rng = fastrand::Rng::with_seed(20);
        for _ in 0..50 {
            let members: Vec<usize> = (0..60).filter(|_| rng.bool()).collect();
            exchange_in_a_row(&members, &mut rng);
        }
    }
}
