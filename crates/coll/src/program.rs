//! A plan's part of one host: what it sends and receives, piece by piece, and after what.

use crate::plan::{Operation, Plan};
use std::collections::HashMap;

/// How fine a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// Longest piece: a relay sends a piece on when it has come whole.
    pub piece_bytes: u64,
    /// What may still be missing of a transfer when the next one, of another host, is told to begin: what passes
    /// in the time of the word there and the first byte back, and a port can hold.
    pub early_bytes: u64,
    /// Bytes of the elements: no piece ends within one.
    pub element_bytes: u64,
}

impl Default for Grain {
    fn default() -> Self {
        Self {
            piece_bytes: 32 << 10,
            early_bytes: 8 << 10,
            element_bytes: 1,
        }
    }
}

/// What a step is; the numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    /// A piece is sent.
    Send = 0,
    /// A piece is received in its place.
    Receive = 1,
    /// A piece is received and combined with what is in its place.
    Combine = 2,
    /// The peer is told that it may go on: a message without content.
    Tell = 3,
    /// The peer says so.
    Hear = 4,
}

impl Action {
    /// Which stream between two hosts it belongs to: pieces and words pass each other, neither overtakes its own.
    fn stream(self) -> Stream {
        match self {
            Self::Send => Stream::PiecesOut,
            Self::Receive | Self::Combine => Stream::PiecesIn,
            Self::Tell => Stream::WordsOut,
            Self::Hear => Stream::WordsIn,
        }
    }
}

/// A direction between two hosts, for pieces or for words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stream {
    PiecesOut,
    PiecesIn,
    WordsOut,
    WordsIn,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub action: Action,
    /// With which host.
    pub peer: usize,
    /// Of which block, by number; 0 where there is none.
    pub block: usize,
    /// Where in it.
    pub offset: u64,
    /// How much of it.
    pub bytes: u64,
    /// Steps that must be over before it begins.
    pub(crate) needs: usize,
    /// Steps that need it.
    pub(crate) needed_by: Vec<usize>,
    /// Its stream, by index.
    pub(crate) stream: usize,
}

/// What one host does. Those of one stream are begun in this order, here and at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it does.
    pub steps: Vec<Step>,
    /// Blocks that it holds for others on their way, by number, ascending.
    pub relayed: Vec<usize>,
    pub(crate) streams: usize,
}

impl Program {
    /// The part of `host` in a plan that is sound.
    pub fn new(plan: &Plan, host: usize, grain: Grain) -> Self {
        let mut writer = Writer {
            plan,
            host,
            grain,
            steps: Vec::new(),
            streams: HashMap::new(),
            last_piece: HashMap::new(),
            pieces_here: HashMap::new(),
            sent_here: HashMap::new(),
        };
        for at in 0..plan.transfers.len() {
            writer.add(at);
        }
        let streams = writer.streams.len();
        Self {
            steps: writer.steps,
            relayed: relayed(plan, host),
            streams,
        }
    }
}

/// Blocks that come to a host and that the operation does not want there.
fn relayed(plan: &Plan, host: usize) -> Vec<usize> {
    let has_place = |block: usize| match plan.operation {
        Operation::Gather { root } => root == host || plan.order[block] == host,
        Operation::Scatter { root } => root == host || plan.order[block] == host,
        Operation::ReduceScatter => plan.order[block] == host,
        Operation::Reduce { root } => root == host,
        Operation::AllToAll => {
            let hosts = plan.order.len();
            block / hosts == host || block % hosts == host
        }
        Operation::Broadcast { .. } | Operation::AllGather | Operation::AllReduce => true,
    };
    let here = plan.transfers.iter().filter(|transfer| transfer.to == host);
    let came = here.flat_map(|transfer| transfer.blocks.numbers());
    let mut relayed: Vec<usize> = came.filter(|block| !has_place(*block)).collect();
    relayed.sort_unstable();
    relayed.dedup();
    relayed
}

struct Writer<'a> {
    plan: &'a Plan,
    host: usize,
    grain: Grain,
    steps: Vec<Step>,
    streams: HashMap<(usize, Stream), usize>,
    /// Of each transfer from here or to here, the steps of its pieces.
    last_piece: HashMap<usize, Vec<usize>>,
    /// Of each block that has come here, the steps that brought each piece.
    pieces_here: HashMap<usize, Vec<Vec<usize>>>,
    /// Of each block that was sent from here, the steps that sent it.
    sent_here: HashMap<usize, Vec<usize>>,
}

impl Writer<'_> {
    fn add(&mut self, at: usize) {
        let plan = self.plan;
        let transfer = &plan.transfers[at];
        let mut begins_after = Vec::new();
        for waited in transfer.after.iter().copied() {
            let of = &plan.transfers[waited];
            if of.from == transfer.from || of.to == transfer.from {
                if transfer.from == self.host {
                    begins_after.extend(self.last_piece[&waited].last().copied());
                }
            } else if of.to == self.host {
                let told = self.step(Action::Tell, transfer.from, 0, (0, 0));
                if let Some(piece) = self.early_piece(waited) {
                    self.need(told, piece);
                }
            } else if transfer.from == self.host {
                begins_after.push(self.step(Action::Hear, of.to, 0, (0, 0)));
            }
        }
        if transfer.from == self.host {
            self.send(at, &begins_after);
        } else if transfer.to == self.host {
            self.receive(at);
        }
    }

    fn send(&mut self, at: usize, begins_after: &[usize]) {
        let transfer = &self.plan.transfers[at];
        let mut sent = Vec::new();
        for block in transfer.blocks.numbers() {
            for (piece, span) in self.pieces(block).into_iter().enumerate() {
                let step = self.step(Action::Send, transfer.to, block, span);
                if sent.is_empty() {
                    for after in begins_after {
                        self.need(step, *after);
                    }
                }
                let brought = self.pieces_here.get(&block);
                for by in brought.map_or(Vec::new(), |pieces| pieces[piece].clone()) {
                    self.need(step, by);
                }
                sent.push(step);
                self.sent_here.entry(block).or_default().push(step);
            }
        }
        self.last_piece.insert(at, sent);
    }

    fn receive(&mut self, at: usize) {
        let transfer = &self.plan.transfers[at];
        let action = match transfer.combines {
            true => Action::Combine,
            false => Action::Receive,
        };
        let mut came = Vec::new();
        for block in transfer.blocks.numbers() {
            let spans = self.pieces(block);
            let here = self.pieces_here.entry(block).or_default();
            here.resize(spans.len(), Vec::new());
            for (piece, span) in spans.into_iter().enumerate() {
                let step = self.step(action, transfer.from, block, span);
                // What is written over has been sent; what is added to has not.
                if action == Action::Receive {
                    for sent in self.sent_here.get(&block).cloned().unwrap_or_default() {
                        self.need(step, sent);
                    }
                }
                let here = self.pieces_here.entry(block).or_default();
                if action == Action::Receive {
                    here[piece].clear();
                }
                here[piece].push(step);
                came.push(step);
            }
        }
        self.last_piece.insert(at, came);
    }

    /// Offset and bytes of a block's pieces: the last is the one that may come after others are told.
    fn pieces(&self, block: usize) -> Vec<(u64, u64)> {
        let whole = |bytes: u64| bytes - bytes % self.grain.element_bytes;
        let bytes = self.plan.block_bytes[block];
        let piece_bytes = whole(self.grain.piece_bytes).max(self.grain.element_bytes);
        let early_bytes = whole(self.grain.early_bytes);
        let tail = if early_bytes > 0 && bytes > 2 * early_bytes {
            early_bytes
        } else {
            0
        };
        let mut spans = Vec::new();
        let mut offset = 0;
        while offset < bytes - tail {
            let length = piece_bytes.min(bytes - tail - offset);
            spans.push((offset, length));
            offset += length;
        }
        if tail > 0 || bytes == 0 {
            spans.push((offset, tail));
        }
        spans
    }

    /// The piece of a transfer to here with which others may be told: all but what may come late has come then.
    fn early_piece(&self, transfer: usize) -> Option<usize> {
        let pieces = self.last_piece.get(&transfer)?;
        let mut missing = 0;
        let mut told_by = *pieces.last()?;
        for step in pieces.iter().rev() {
            told_by = *step;
            missing += self.steps[*step].bytes;
            if missing > self.grain.early_bytes {
                break;
            }
        }
        Some(told_by)
    }

    fn step(&mut self, action: Action, peer: usize, block: usize, span: (u64, u64)) -> usize {
        let streams = self.streams.len();
        let stream = self.streams.entry((peer, action.stream()));
        self.steps.push(Step {
            action,
            peer,
            block,
            offset: span.0,
            bytes: span.1,
            needs: 0,
            needed_by: Vec::new(),
            stream: *stream.or_insert(streams),
        });
        self.steps.len() - 1
    }

    fn need(&mut self, step: usize, needed: usize) {
        self.steps[step].needs += 1;
        self.steps[needed].needed_by.push(step);
    }
}
