//! Exchanges: every node gets a blob of every other one, in ⌈log₂ nodes⌉ rounds (dissemination;
//! Hensgen et al., 1988). An exchange ends on a node after it has begun on all, so it is a barrier.

use super::error::{Mismatch, Violation};
use super::wire::Message;
use std::collections::BTreeMap;

/// Call that all nodes make together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name and arguments, as messages show them.
    pub text: String,
    /// Data of this node.
    pub data: Vec<u8>,
}

impl Call {
    /// Returns the call's blob: the length of the text in 16 bits, the text, and the data.
    fn blob(self) -> Vec<u8> {
        let text = self.text.as_bytes();
        let mut blob = (text.len() as u16).to_be_bytes().to_vec();
        blob.extend(text);
        blob.extend(self.data);
        blob
    }

    fn parse(blob: &[u8]) -> Option<Self> {
        let (length, rest) = blob.split_first_chunk()?;
        let (text, data) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        Some(Self {
            text: String::from_utf8(text.to_vec()).ok()?,
            data: data.to_vec(),
        })
    }
}

/// Blobs by node.
type Blobs = Vec<(u16, Vec<u8>)>;

/// The exchange of this node.
#[derive(Debug)]
pub struct Exchange {
    me: usize,
    nodes: usize,
    /// Number of the exchange that is active, or was last.
    sequence: u32,
    is_active: bool,
    /// Round whose blobs are awaited.
    round: u8,
    blobs: BTreeMap<usize, Vec<u8>>,
    /// Blobs that arrived, by sequence and round.
    early: BTreeMap<(u32, u8), Blobs>,
}

impl Exchange {
    pub fn new(me: usize, nodes: usize) -> Self {
        Self {
            me,
            nodes,
            sequence: 0,
            is_active: false,
            round: 0,
            blobs: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    fn rounds(&self) -> u8 {
        self.nodes.next_power_of_two().trailing_zeros() as u8
    }

    /// Begins an exchange.
    ///
    /// # Panics
    /// Panics if one is active.
    pub fn start(&mut self, call: Call, send: &mut dyn FnMut(usize, Message)) {
        assert!(!self.is_active, "one exchange at a time");
        self.sequence += 1;
        self.is_active = true;
        self.round = 0;
        self.blobs.insert(self.me, call.blob());
        if self.rounds() > 0 {
            self.send_round(send);
        }
        self.advance(send);
    }

    /// Sends what the receiver of this round does not have.
    fn send_round(&self, send: &mut dyn FnMut(usize, Message)) {
        let step = 1 << self.round;
        let has = |node: usize| (node + self.nodes - self.me - 1) % self.nodes < step;
        let blobs = self.blobs.iter().filter(|(node, _)| !has(**node));
        let blobs = blobs.map(|(node, bytes)| (*node as u16, bytes.clone()));
        let message = Message::Exchange {
            sequence: self.sequence,
            round: self.round,
            blobs: blobs.collect(),
        };
        send((self.me + step) % self.nodes, message);
    }

    fn advance(&mut self, send: &mut dyn FnMut(usize, Message)) {
        while self.is_active && self.round < self.rounds() {
            let Some(blobs) = self.early.remove(&(self.sequence, self.round)) else {
                return;
            };
            self.blobs
                .extend(blobs.into_iter().map(|(node, bytes)| (node.into(), bytes)));
            self.round += 1;
            if self.round < self.rounds() {
                self.send_round(send);
            }
        }
    }

    /// Takes the blobs of a round in.
    ///
    /// # Errors
    /// They are not from the node that sends in this round, or of another exchange.
    pub fn on_message(
        &mut self,
        from: usize,
        (sequence, round): (u32, u8),
        blobs: Blobs,
        send: &mut dyn FnMut(usize, Message),
    ) -> Result<(), Violation> {
        // A node begins an exchange after the one before has begun on all nodes, so it is ahead by
        // one at most.
        let is_near = sequence == self.sequence && self.is_active && round >= self.round
            || sequence == self.sequence + 1;
        let is_round = round < self.rounds() && (from + (1 << round)) % self.nodes == self.me;
        let are_nodes = blobs
            .iter()
            .all(|(node, _)| usize::from(*node) < self.nodes);
        let name = (sequence, round);
        if !is_near || !is_round || !are_nodes || self.early.contains_key(&name) {
            return Err(Violation::Exchange { sequence, round });
        }
        self.early.insert(name, blobs);
        self.advance(send);
        Ok(())
    }

    /// Returns the data of all nodes when the exchange is complete.
    pub fn take(&mut self) -> Option<Result<Vec<Vec<u8>>, Mismatch>> {
        if !self.is_active || self.round < self.rounds() {
            return None;
        }
        self.is_active = false;
        let blobs = std::mem::take(&mut self.blobs);
        let calls = (0..self.nodes).map(|node| {
            let blob = blobs.get(&node).map(Vec::as_slice);
            blob.and_then(Call::parse).unwrap_or(Call {
                text: "something unreadable".to_owned(),
                data: Vec::new(),
            })
        });
        let (texts, data): (Vec<String>, Vec<Vec<u8>>) =
            calls.map(|call| (call.text, call.data)).unzip();
        let is_same = texts.iter().all(|text| *text == texts[0]);
        Some(if is_same {
            Ok(data)
        } else {
            Err(Mismatch { calls: texts })
        })
    }
}
