//! A plan's part of one host: what it sends and receives, piece by piece, and after what.

use crate::grain::{Grain, flight_bytes};
use crate::plan::{Plan, Until};
use crate::uniform::cut;
use kumi_topo::{Network, Paths};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

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

/// One thing to do. A long vector has millions of steps, so a step is small and its successors are
/// kept by the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Operation to perform.
    pub action: Action,
    /// Peer host index.
    pub peer: u32,
    /// Block number; 0 where there is none.
    pub block: u32,
    /// Byte offset in the block.
    pub offset: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// Steps that must be over, or begun, before it begins.
    pub(crate) needs: u32,
    /// Index of its stream.
    pub(crate) stream: u32,
}

/// What one host does. Those of one stream are begun in this order, here and at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it does.
    pub steps: Vec<Step>,
    /// Steps that need each step over.
    needed_by: Edges,
    /// Steps that need each step begun.
    begun_lets: Edges,
    /// Words that wait for bytes received of whomever: the bytes and the step.
    pub(crate) words: Vec<(u64, u32)>,
    /// What may be sent and not yet received.
    pub window_bytes: u64,
    /// By host, how much more where the path there and back holds as much; nothing of those that are not named.
    flight_bytes: Vec<u64>,
    piece_bytes: u64,
    pub(crate) streams: usize,
    /// Streams of a gather that a word from elsewhere lets begin.
    ramped: BTreeSet<u32>,
}

/// Successors of steps, eight bytes an edge: sorted by the step that they leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Edges(Vec<(u32, u32)>);

impl Edges {
    /// Sorts edges that were collected in any order.
    fn sorted(mut edges: Vec<(u32, u32)>) -> Self {
        edges.sort_unstable();
        edges.shrink_to_fit();
        Self(edges)
    }

    fn of(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        let step = step as u32;
        let first = self.0.partition_point(|(from, _)| *from < step);
        let edges = self.0[first..].iter();
        let own = edges.take_while(move |(from, _)| *from == step);
        own.map(|(_, to)| *to as usize)
    }
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
            needed_by: Vec::new(),
            begun_lets: Vec::new(),
            words: Vec::new(),
            streams: HashMap::new(),
            steps_of: HashMap::new(),
            brought_here: HashMap::new(),
            sent_here: HashMap::new(),
            ramped: BTreeSet::new(),
        };
        for at in 0..plan.transfers.len() {
            writer.add(at);
        }
        writer.steps.shrink_to_fit();
        Self {
            streams: writer.streams.len(),
            steps: writer.steps,
            needed_by: Edges::sorted(writer.needed_by),
            begun_lets: Edges::sorted(writer.begun_lets),
            words: writer.words,
            window_bytes: grain.window_bytes,
            flight_bytes: Vec::new(),
            piece_bytes: grain.piece_bytes.max(1),
            ramped: writer.ramped,
        }
    }

    /// Steps that need a step over.
    pub(crate) fn needed_by(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        self.needed_by.of(step)
    }

    /// Steps that need a step begun.
    pub(crate) fn begun_lets(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        self.begun_lets.of(step)
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

    /// The same, on the paths of another program of this host.
    #[must_use]
    pub fn with_flight_of(self, other: &Self) -> Self {
        self.with_flight(other.flight_bytes.clone())
    }

    /// What may be sent and not yet received when a piece goes to this host.
    pub(crate) fn window_to(&self, peer: u32) -> u64 {
        self.window_bytes + self.flight_to(peer)
    }

    /// Receives or words with this host that may be under way at once, of one stream.
    pub(crate) fn under_way_max(&self, peer: u32) -> usize {
        UNDER_WAY_MAX + (self.flight_to(peer) / self.piece_bytes) as usize
    }

    /// What a stream may have on its way before anything has come: all that it can, or, granted from afar, a ramp.
    pub(crate) fn first_bytes(&self, stream: u32, peer: u32) -> u64 {
        match self.flight_to(peer) {
            flight if flight > 0 && self.ramped.contains(&stream) => RAMP_BYTES,
            _ => u64::MAX,
        }
    }

    fn flight_to(&self, peer: u32) -> u64 {
        self.flight_bytes.get(peer as usize).copied().unwrap_or(0)
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
    needed_by: Vec<(u32, u32)>,
    begun_lets: Vec<(u32, u32)>,
    words: Vec<(u64, u32)>,
    streams: HashMap<(usize, Stream), u32>,
    /// Of each transfer from here or to here, the steps of its pieces.
    steps_of: HashMap<usize, Range<usize>>,
    /// Of each block that has come here, the first of the steps that brought it last. The step of piece `p` is `p`
    /// further on: a transfer's pieces are written one behind another.
    brought_here: HashMap<usize, usize>,
    /// Of each block, the first steps of the transfers that sent it since it was last written over.
    sent_here: HashMap<usize, Vec<usize>>,
    ramped: BTreeSet<u32>,
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
                        let last = self.steps_of[&waited].end - 1;
                        match until {
                            Until::Sent => begun_after.push(last),
                            Until::Come { .. } => begins_after.push(last),
                        }
                    }
                    continue;
                }
            };
            if of.to == self.host {
                let told = self.step(Action::Tell, transfer.from, 0, (0, 0));
                if of.to == transfer.to {
                    self.wait_for_bytes(told, self.come_by[waited] - missing_bytes);
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
        let first = self.steps.len();
        for block in self.carried(at) {
            let of_block = self.pieces(at, Action::Send, block);
            if let Some(brought) = self.brought_here.get(&block).copied() {
                for (piece, step) in of_block.clone().enumerate() {
                    self.need(step, brought + piece);
                }
            }
            self.sent_here
                .entry(block)
                .or_default()
                .push(of_block.start);
        }
        for after in begins_after {
            self.need(first, *after);
            if self.plan.operation.is_ramped() && self.steps[*after].action == Action::Hear {
                self.ramped.insert(self.steps[first].stream);
            }
        }
        for after in begun_after {
            self.steps[first].needs += 1;
            self.begun_lets.push((*after as u32, first as u32));
        }
        self.steps_of.insert(at, first..self.steps.len());
    }

    fn receive(&mut self, at: usize) {
        let action = match self.plan.transfers[at].combines {
            true => Action::Combine,
            false => Action::Receive,
        };
        let first = self.steps.len();
        for block in self.carried(at) {
            let of_block = self.pieces(at, action, block);
            // What is written over has been sent; what is added to has not.
            if action == Action::Receive {
                for sent in self.sent_here.remove(&block).unwrap_or_default() {
                    for (piece, step) in of_block.clone().enumerate() {
                        self.need(step, sent + piece);
                    }
                }
            }
            // A piece is written in the plan's order: a sum of floats is the same in every run.
            if let Some(before) = self.brought_here.insert(block, of_block.start) {
                for (piece, step) in of_block.enumerate() {
                    self.need(step, before + piece);
                }
            }
        }
        self.steps_of.insert(at, first..self.steps.len());
    }

    /// Writes the steps of a block's pieces.
    fn pieces(&mut self, at: usize, action: Action, block: usize) -> Range<usize> {
        let transfer = &self.plan.transfers[at];
        let peer = match action {
            Action::Send => transfer.to,
            _ => transfer.from,
        };
        let Grain {
            piece_bytes,
            element_bytes,
            ..
        } = self.grain;
        let piece_bytes = (piece_bytes - piece_bytes % element_bytes).max(element_bytes);
        let first = self.steps.len();
        let mut offset = 0;
        for bytes in cut(self.plan.block_bytes[block], piece_bytes) {
            self.step(action, peer, block, (offset, bytes));
            offset += bytes;
        }
        first..self.steps.len()
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

    /// The step with which no more than so many bytes of a transfer to here are missing.
    fn piece_before(&self, transfer: usize, missing_bytes: u64) -> usize {
        let pieces = self.steps_of[&transfer].clone();
        let mut missing = 0;
        for step in pieces.clone().rev() {
            missing += self.steps[step].bytes;
            if missing > missing_bytes {
                return step;
            }
        }
        pieces.start
    }

    fn step(&mut self, action: Action, peer: usize, block: usize, span: (u64, u64)) -> usize {
        let streams = self.streams.len() as u32;
        let stream = self.streams.entry((peer, action.stream()));
        self.steps.push(Step {
            action,
            peer: peer as u32,
            block: block as u32,
            offset: span.0,
            bytes: span.1,
            needs: 0,
            stream: *stream.or_insert(streams),
        });
        self.steps.len() - 1
    }

    fn need(&mut self, step: usize, needed: usize) {
        self.steps[step].needs += 1;
        self.needed_by.push((needed as u32, step as u32));
    }

    /// A word that waits until so much has been received of whomever.
    fn wait_for_bytes(&mut self, word: usize, received_bytes: u64) {
        if received_bytes > 0 {
            self.steps[word].needs += 1;
            self.words.push((received_bytes, word as u32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;
    use crate::{check, uniform};
    use kumi_topo::{Delay, Rate};

    /// Each piece once needed every piece of its block that had been sent: 40 GB of edges for a vector of 1 GiB.
    #[test]
    fn program__of_a_vector_64_times_as_long__has_64_times_the_steps_and_edges() {
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        let network = Network::star(&["a", "b"], rate, Delay::from_ns(25_000));
        let operations = [
            Operation::AllReduce,
            Operation::ReduceScatter,
            Operation::AllGather,
            Operation::Broadcast { root: 0 },
            Operation::Reduce { root: 0 },
        ];
        for operation in operations {
            let size = |bytes: u64| {
                let plan = uniform(&network, operation, bytes).unwrap();
                check(&network, &plan).unwrap();
                let program = Program::on(&network, &plan, 1, 4);
                (program.steps.len(), program.needed_by.0.len())
            };
            let (short, long) = (size(4 << 20), size(256 << 20));
            assert_eq!(long.0, 64 * short.0, "{operation:?}");
            assert!(
                long.1 <= 64 * short.1.max(1),
                "{operation:?}: {short:?} {long:?}"
            );
            assert!(long.1 <= 2 * long.0, "{operation:?}: {long:?}");
        }
    }
}
