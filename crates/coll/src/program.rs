//! A plan's part of one host: what it sends and receives, piece by piece, and after what.

use crate::grain::{Grain, flight_bytes};
use crate::plan::{Plan, Until};
use crate::uniform::cut;
use kumi_topo::{Network, Paths};
use std::collections::{BTreeSet, HashMap};

/// What is sent on a long path at first to one who has been waited for: ten segments, as TCP begins with after a pause
/// (RFC 6928, RFC 5681 §4.1), in whole pieces.
pub(crate) const RAMP_BYTES: u64 = 16 << 10;

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
    /// Of a word: what the host must have received by then, of whomever.
    pub(crate) received_bytes: u64,
    /// Steps that must be over, or begun, before it begins.
    pub(crate) needs: usize,
    /// Steps that need it over.
    pub(crate) needed_by: Vec<usize>,
    /// Steps that need it begun.
    pub(crate) begun_lets: Vec<usize>,
    /// Its stream, by index.
    pub(crate) stream: usize,
}

/// What one host does. Those of one stream are begun in this order, here and at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it does.
    pub steps: Vec<Step>,
    /// What may be sent and not yet received.
    pub window_bytes: u64,
    /// By host, how much more where the path there and back holds as much; nothing of those that are not named.
    flight_bytes: Vec<u64>,
    piece_bytes: u64,
    pub(crate) streams: usize,
    /// Streams of a gather that a word from elsewhere lets begin.
    ramped: BTreeSet<usize>,
}

/// Receives, or words, of one stream that may be under way at once: more than a window has pieces.
const UNDER_WAY_MAX: usize = 8;

impl Program {
    /// The part of `host` in a plan that is sound.
    pub fn new(plan: &Plan, host: usize, grain: Grain) -> Self {
        let mut writer = Writer {
            plan,
            host,
            grain,
            come_by: come_by(plan),
            steps: Vec::new(),
            streams: HashMap::new(),
            steps_of: HashMap::new(),
            pieces_here: HashMap::new(),
            sent_here: HashMap::new(),
            ramped: BTreeSet::new(),
        };
        for at in 0..plan.transfers.len() {
            writer.add(at);
        }
        let streams = writer.streams.len();
        Self {
            steps: writer.steps,
            window_bytes: grain.window_bytes,
            flight_bytes: Vec::new(),
            piece_bytes: grain.piece_bytes.max(1),
            streams,
            ramped: writer.ramped,
        }
    }

    /// The part of `host` in a sound plan, as fine as the network asks for, of elements of so many bytes.
    pub fn on(network: &Network, plan: &Plan, host: usize, element_bytes: u64) -> Self {
        let grain = Grain::on(network, element_bytes);
        let flight_bytes = flight_bytes(&Paths::new(network), host, grain.piece_bytes);
        Self::new(plan, host, grain).with_flight(flight_bytes)
    }

    /// The same, on paths that by themselves hold so many bytes, there and back, by host.
    #[must_use]
    pub fn with_flight(self, flight_bytes: Vec<u64>) -> Self {
        Self {
            flight_bytes,
            ..self
        }
    }

    /// What may be sent and not yet received when a piece goes to this host.
    pub(crate) fn window_to(&self, peer: usize) -> u64 {
        self.window_bytes + self.flight_to(peer)
    }

    /// Receives or words with this host that may be under way at once, of one stream.
    pub(crate) fn under_way_max(&self, peer: usize) -> usize {
        UNDER_WAY_MAX + (self.flight_to(peer) / self.piece_bytes) as usize
    }

    /// What a stream may have on its way before anything has come: all that it can, or, granted from afar, a ramp.
    pub(crate) fn first_bytes(&self, stream: usize, peer: usize) -> u64 {
        match self.flight_to(peer) {
            flight if flight > 0 && self.ramped.contains(&stream) => RAMP_BYTES,
            _ => u64::MAX,
        }
    }

    fn flight_to(&self, peer: usize) -> u64 {
        self.flight_bytes.get(peer).copied().unwrap_or(0)
    }
}

/// Of each transfer, the bytes of all to the same host up to it. Transfers into one port may come interleaved: not
/// which of them has come says how much can still come, but how much of all.
fn come_by(plan: &Plan) -> Vec<u64> {
    let mut came = vec![0; plan.order.len()];
    let transfers = plan.transfers.iter().map(|transfer| {
        came[transfer.to] += plan.bytes_of(transfer);
        came[transfer.to]
    });
    transfers.collect()
}

struct Writer<'a> {
    plan: &'a Plan,
    host: usize,
    grain: Grain,
    /// Of each transfer, what has come to its receiver when it has come, and all before it in the plan.
    come_by: Vec<u64>,
    steps: Vec<Step>,
    streams: HashMap<(usize, Stream), usize>,
    /// Of each transfer from here or to here, the steps of its pieces.
    steps_of: HashMap<usize, Vec<usize>>,
    /// Of each block that has come here, the steps that brought each piece.
    pieces_here: HashMap<usize, Vec<Vec<usize>>>,
    /// Of each block that was sent from here, the steps that sent it.
    sent_here: HashMap<usize, Vec<usize>>,
    ramped: BTreeSet<usize>,
}

impl Writer<'_> {
    fn add(&mut self, at: usize) {
        let plan = self.plan;
        let transfer = &plan.transfers[at];
        let (mut begins_after, mut begun_after) = (Vec::new(), Vec::new());
        for wait in &transfer.after {
            let waited = wait.transfer;
            let of = &plan.transfers[waited];
            let missing_bytes = match wait.until {
                Until::Come { missing_bytes } if of.to != transfer.from => missing_bytes,
                until => {
                    if transfer.from == self.host {
                        let last = self.steps_of[&waited].last().copied();
                        match until {
                            Until::Sent => begun_after.extend(last),
                            Until::Come { .. } => begins_after.extend(last),
                        }
                    }
                    continue;
                }
            };
            if of.to == self.host {
                let told = self.step(Action::Tell, transfer.from, 0, (0, 0));
                if of.to == transfer.to {
                    self.steps[told].received_bytes = self.come_by[waited] - missing_bytes;
                } else {
                    let piece = self.piece_before(waited, missing_bytes);
                    self.need(told, piece);
                }
            } else if transfer.from == self.host {
                begins_after.push(self.step(Action::Hear, of.to, 0, (0, 0)));
            }
        }
        if transfer.from == self.host {
            self.send(at, &begins_after, &begun_after);
        } else if transfer.to == self.host {
            self.receive(at);
        }
    }

    fn send(&mut self, at: usize, begins_after: &[usize], begun_after: &[usize]) {
        let transfer = &self.plan.transfers[at];
        let mut sent = Vec::new();
        for block in self.carried(at) {
            for (piece, span) in self.pieces(block).into_iter().enumerate() {
                let step = self.step(Action::Send, transfer.to, block, span);
                if sent.is_empty() {
                    for after in begins_after {
                        self.need(step, *after);
                        if self.plan.operation.is_ramped()
                            && self.steps[*after].action == Action::Hear
                        {
                            self.ramped.insert(self.steps[step].stream);
                        }
                    }
                    for after in begun_after {
                        self.steps[step].needs += 1;
                        self.steps[*after].begun_lets.push(step);
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
        self.steps_of.insert(at, sent);
    }

    fn receive(&mut self, at: usize) {
        let transfer = &self.plan.transfers[at];
        let action = match transfer.combines {
            true => Action::Combine,
            false => Action::Receive,
        };
        let mut came = Vec::new();
        for block in self.carried(at) {
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
                // Of several that are added, in the plan's order: a sum of floats is the same in every run.
                let before = self.pieces_here[&block][piece].last().copied();
                if let (Action::Combine, Some(before)) = (action, before) {
                    self.need(step, before);
                }
                let here = self.pieces_here.entry(block).or_default();
                if action == Action::Receive {
                    here[piece].clear();
                }
                here[piece].push(step);
                came.push(step);
            }
        }
        self.steps_of.insert(at, came);
    }

    /// Blocks of a transfer that are not empty; one, if all are: it is waited for.
    fn carried(&self, at: usize) -> Vec<usize> {
        let blocks = &self.plan.transfers[at].blocks;
        let is_empty = |block: &usize| self.plan.block_bytes[*block] == 0;
        let carried: Vec<usize> = blocks.numbers().filter(|block| !is_empty(block)).collect();
        match carried.is_empty() {
            true => blocks.numbers().take(1).collect(),
            false => carried,
        }
    }

    /// Offset and bytes of a block's pieces.
    fn pieces(&self, block: usize) -> Vec<(u64, u64)> {
        let Grain {
            piece_bytes,
            element_bytes,
            ..
        } = self.grain;
        let piece_bytes = (piece_bytes - piece_bytes % element_bytes).max(element_bytes);
        let offsets = cut(self.plan.block_bytes[block], piece_bytes);
        let mut offset = 0;
        let span = |bytes: u64| {
            offset += bytes;
            (offset - bytes, bytes)
        };
        offsets.into_iter().map(span).collect()
    }

    /// The step with which no more than so many bytes of a transfer to here are missing.
    fn piece_before(&self, transfer: usize, missing_bytes: u64) -> usize {
        let pieces = &self.steps_of[&transfer];
        let mut missing = 0;
        for step in pieces.iter().rev() {
            missing += self.steps[*step].bytes;
            if missing > missing_bytes {
                return *step;
            }
        }
        pieces[0]
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
            received_bytes: 0,
            needs: 0,
            needed_by: Vec::new(),
            begun_lets: Vec::new(),
            stream: *stream.or_insert(streams),
        });
        self.steps.len() - 1
    }

    fn need(&mut self, step: usize, needed: usize) {
        self.steps[step].needs += 1;
        self.steps[needed].needed_by.push(step);
    }
}
