//! A plan's part of one host: what it sends and receives, piece by piece, and after what.

use crate::grain::{DRAINED_AFTER_BYTES, Grain, ONE_WINDOW_BYTES, flight_bytes, own_flight_bytes};
use crate::narrow::Narrows;
use crate::plan::{Plan, Until};
use crate::schedule::is_far;
use crate::vector::cut;
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
    /// A piece is sent. The step is over when the peer has begun to receive it.
    Send = 0,
    /// A piece is received in its place.
    Receive = 1,
    /// A piece is received and combined with what is in its place.
    Combine = 2,
    /// The peer is told that it may go on: a message without content.
    Tell = 3,
    /// The peer says so.
    Hear = 4,
    /// A short piece is sent that no window counts. The step is over when it has been handed over.
    Post = 5,
}

impl Action {
    /// Which stream between two hosts it belongs to: pieces and words pass each other, neither overtakes its own.
    fn stream(self) -> Stream {
        match self {
            Self::Send | Self::Post => Stream::PiecesOut,
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
    /// Block number, the first of several that lie side by side; 0 where there is none.
    pub block: u32,
    /// Byte offset in the block.
    pub offset: u64,
    /// Bytes of the block, or of all of them.
    pub bytes: u64,
    /// Steps that must be over, or begun, before it begins.
    pub(crate) needs: u32,
    /// Index of its stream.
    pub(crate) stream: u32,
}

/// What one host does. Those of one stream are begun in this order, here and at the other end.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What it does.
    pub steps: Vec<Step>,
    /// Steps that need each step over.
    needed_by: Edges,
    /// Steps that need each step begun.
    begun_lets: Edges,
    /// Control messages that wait for all receives up to a step: that step, and the message's.
    pub(crate) words: Vec<(u32, u32)>,
    /// What may be sent and not yet received.
    pub window_bytes: u64,
    /// By host, how much more where the path there and back holds as much; nothing of those that are not named.
    flight_bytes: Vec<u64>,
    own_flight_bytes: u64,
    /// Whether hosts are so far apart that what is in flight between them exceeds a port.
    is_far: bool,
    piece_bytes: u64,
    pub(crate) streams: usize,
    /// Streams of a gather that a word from elsewhere lets begin.
    ramped: BTreeSet<u32>,
    /// Ports at which this host's paths become slower.
    pub(crate) narrows: Narrows,
    /// By stream, bytes of all its steps.
    stream_bytes: Vec<u64>,
    /// Whether all that the host sends goes to one other, as in a ring or along a chain.
    sends_to_one: bool,
    /// Whether nobody else passes the links on the way there in the same direction.
    has_own_path: bool,
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

/// Pieces from this length on are answered. A shorter one costs less than its answer, and a window of them is not worth
/// counting where ports are as fast as the host's own link.
const ANSWERED_BYTES: u64 = 8 << 10;

/// Most transfers of a plan that are searched for other users of a host's path.
const SOUGHT_MAX: usize = 16_384;

/// Receives, or words, of one stream that may be under way at once: more than a window has pieces.
const UNDER_WAY_MAX: usize = 8;

impl Program {
    /// The part of `host` in a plan that is sound.
    pub fn new(plan: &Plan, host: usize, grain: Grain) -> Self {
        let mut writer = Writer {
            plan,
            host,
            grain,
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
        let out = writer.streams.keys();
        let sends_to_one = out
            .filter(|(_, stream)| *stream == Stream::PiecesOut)
            .count()
            == 1;
        let mut stream_bytes = vec![0; writer.streams.len()];
        for step in &writer.steps {
            stream_bytes[step.stream as usize] += step.bytes;
        }
        Self {
            streams: writer.streams.len(),
            steps: writer.steps,
            needed_by: Edges::sorted(writer.needed_by),
            begun_lets: Edges::sorted(writer.begun_lets),
            words: writer.words,
            window_bytes: grain.window_bytes,
            flight_bytes: Vec::new(),
            own_flight_bytes: 0,
            is_far: false,
            piece_bytes: grain.piece_bytes.max(1),
            ramped: writer.ramped,
            narrows: Narrows::default(),
            stream_bytes,
            sends_to_one,
            has_own_path: false,
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
        let paths = Paths::new(network);
        let flight_bytes = flight_bytes(&paths, host, grain.piece_bytes);
        let is_far = is_far(network);
        // Between sites it is TCP that knows how much a port takes.
        let narrows = match is_far {
            true => Narrows::default(),
            false => Narrows::of(&paths, host),
        };
        let program = Self::new(plan, host, grain);
        Self {
            has_own_path: program.sends_to_one && !is_far && has_own_path(&paths, plan, host),
            flight_bytes,
            own_flight_bytes: own_flight_bytes(&paths, host),
            is_far,
            narrows,
            ..program
        }
        .with_posts()
    }

    /// The same, on the paths of another program of this host.
    #[must_use]
    pub fn on_paths_of(self, other: &Self) -> Self {
        Self {
            flight_bytes: other.flight_bytes.clone(),
            own_flight_bytes: other.own_flight_bytes,
            is_far: other.is_far,
            narrows: other.narrows.clone(),
            ..self
        }
        .with_posts()
    }

    /// Lets short pieces go without an answer, but where a narrow port has to be asked.
    fn with_posts(mut self) -> Self {
        for step in &mut self.steps {
            let is_short = step.action == Action::Send && step.bytes < ANSWERED_BYTES;
            if is_short && !self.narrows.is_on_path_to(step.peer) {
                step.action = Action::Post;
            }
        }
        self
    }

    /// Returns the window of a stream to `peer`, in bytes; `since_drained_bytes` were sent since its path was drained.
    /// A short stream of a host that sends to one other host has the larger window, as acknowledgements build no queue so soon.
    /// A long stream has it too if no other host uses its path. It then sends nothing after [`DRAINED_AFTER_BYTES`]
    /// until only what the path holds is in flight.
    pub(crate) fn window_to(&self, stream: u32, peer: u32, since_drained_bytes: u64) -> u64 {
        let is_short =
            self.sends_to_one && self.stream_bytes[stream as usize] <= DRAINED_AFTER_BYTES;
        let standing_bytes = match self.has_own_path {
            true if since_drained_bytes >= DRAINED_AFTER_BYTES => 0,
            has_own_path if has_own_path || is_short => self.window_bytes.max(ONE_WINDOW_BYTES),
            _ => self.window_bytes,
        };
        standing_bytes + self.flight_to(peer)
    }

    /// What may be sent and not yet received in all: what the host's own link carries until the furthest host has answered.
    pub(crate) fn own_window(&self) -> u64 {
        let most_bytes = if self.sends_to_one {
            ONE_WINDOW_BYTES
        } else {
            0
        };
        self.window_bytes.max(most_bytes) + self.own_flight_bytes
    }

    /// Receives or words with this host that may be under way at once, of one stream.
    pub(crate) fn under_way_max(&self, peer: u32) -> usize {
        UNDER_WAY_MAX + (self.flight_to(peer) / self.piece_bytes) as usize
    }

    /// What a stream may have on its way before anything has come: all that it can, or, granted from afar, a ramp.
    pub(crate) fn first_bytes(&self, stream: u32, peer: u32) -> u64 {
        match self.flight_to(peer) {
            flight if self.is_far && flight > RAMP_BYTES && self.ramped.contains(&stream) => {
                RAMP_BYTES
            }
            _ => u64::MAX,
        }
    }

    pub(crate) fn flight_to(&self, peer: u32) -> u64 {
        self.flight_bytes.get(peer as usize).copied().unwrap_or(0)
    }
}

/// Whether no other host's transfer uses a link on this host's path, in the same direction.
fn has_own_path(paths: &Paths, plan: &Plan, host: usize) -> bool {
    if plan.transfers.len() > SOUGHT_MAX {
        return false;
    }
    let mut own = plan.transfers.iter().filter(|one| one.from == host);
    let own = own.next().map(|one| paths.links(host, one.to));
    let own = own.unwrap_or_default();
    let mut others = plan.transfers.iter().filter(|one| one.from != host);
    !others.any(|one| {
        let links = paths.links(one.from, one.to);
        links.iter().any(|link| own.contains(link))
    })
}

struct Writer<'a> {
    plan: &'a Plan,
    host: usize,
    grain: Grain,
    steps: Vec<Step>,
    needed_by: Vec<(u32, u32)>,
    begun_lets: Vec<(u32, u32)>,
    words: Vec<(u32, u32)>,
    streams: HashMap<(usize, Stream), u32>,
    /// Of each transfer from here or to here, the steps of its pieces.
    steps_of: HashMap<usize, Range<usize>>,
    /// Of each block that has come here, the first of the steps that brought it last. The step of its piece `p` is `p`
    /// further on: a transfer's pieces are written one behind another.
    brought_here: HashMap<usize, usize>,
    /// Of each block, the first steps of the transfers that sent it since it was last written over.
    sent_here: HashMap<usize, Vec<usize>>,
    ramped: BTreeSet<u32>,
}

/// What one step sends or receives: some of a block, or several whole ones.
struct Piece {
    first: usize,
    end: usize,
    /// Which of its block's it is, from 0.
    number: usize,
    offset: u64,
    bytes: u64,
}

impl Piece {
    fn blocks(&self) -> Range<usize> {
        self.first..self.end
    }
}

impl Writer<'_> {
    fn add(&mut self, at: usize) {
        let plan = self.plan;
        let transfer = &plan.transfers[at];
        let (mut begins_after, mut begun_after) = (Vec::new(), Vec::new());
        for wait in &transfer.after {
            let waited = wait.transfer;
            let of = &plan.transfers[waited];
            let (missing_bytes, with_earlier) = match wait.until {
                Until::Come {
                    missing_bytes,
                    with_earlier,
                } if of.to != transfer.from => (missing_bytes, with_earlier),
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
                let piece = self.piece_before(waited, missing_bytes);
                match piece {
                    Some(piece) if !with_earlier => self.need(told, piece),
                    Some(piece) => self.wait_for_all(told, piece),
                    None => {
                        if let Some(before) = self.steps_of[&waited].start.checked_sub(1) {
                            self.wait_for_all(told, before);
                        }
                    }
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
        for (step, piece) in self.pieces(at, Action::Send) {
            let brought = piece.blocks().filter_map(|block| {
                let brought = self.brought_here.get(&block)?;
                Some(brought + piece.number)
            });
            let brought = brought.collect();
            self.need_all(step, brought);
            if piece.number == 0 {
                for block in piece.blocks() {
                    self.sent_here.entry(block).or_default().push(step);
                }
            }
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
        let pieces = self.pieces(at, action);
        for (step, piece) in &pieces {
            let mut before: Vec<usize> = Vec::new();
            for block in piece.blocks() {
                // What is written over has been sent; what is added to has not.
                if action == Action::Receive {
                    before.extend(self.sent_here.get(&block).into_iter().flatten());
                }
                // A piece is written in the plan's order: a sum of floats is the same in every run.
                before.extend(self.brought_here.get(&block));
            }
            let before = before.into_iter().map(|step| step + piece.number);
            self.need_all(*step, before.collect());
        }
        for (step, piece) in pieces.iter().filter(|(_, piece)| piece.number == 0) {
            for block in piece.blocks() {
                self.brought_here.insert(block, *step);
                if action == Action::Receive {
                    self.sent_here.remove(&block);
                }
            }
        }
        self.steps_of.insert(at, first..self.steps.len());
    }

    /// Writes the steps of a transfer's pieces.
    fn pieces(&mut self, at: usize, action: Action) -> Vec<(usize, Piece)> {
        let transfer = &self.plan.transfers[at];
        let peer = match action {
            Action::Send | Action::Post => transfer.to,
            _ => transfer.from,
        };
        let pieces = self.cut(at).into_iter().map(|piece| {
            let span = (piece.offset, piece.bytes);
            (self.step(action, peer, piece.first, span), piece)
        });
        pieces.collect()
    }

    /// The pieces of a transfer, the same at both ends: long blocks are cut, and short parts of a vector that lie side by side joined.
    fn cut(&self, at: usize) -> Vec<Piece> {
        let Grain {
            piece_bytes,
            element_bytes,
            ..
        } = self.grain;
        let piece_bytes = (piece_bytes - piece_bytes % element_bytes).max(element_bytes);
        let are_joined = self.plan.operation.is_on_a_vector();
        let mut pieces: Vec<Piece> = Vec::new();
        for block in self.carried(at) {
            let block_bytes = self.plan.block_bytes[block];
            let fits = |last: &&mut Piece| {
                let is_next = last.end == block && last.number == 0;
                is_next && are_joined && last.bytes + block_bytes <= piece_bytes
            };
            if let Some(last) = pieces.last_mut().filter(fits) {
                last.end += 1;
                last.bytes += block_bytes;
                continue;
            }
            let mut offset = 0;
            for (number, bytes) in cut(block_bytes, piece_bytes).into_iter().enumerate() {
                pieces.push(Piece {
                    first: block,
                    end: block + 1,
                    number,
                    offset,
                    bytes,
                });
                offset += bytes;
            }
        }
        pieces
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

    /// The step after which at most this many bytes of a transfer to here are missing; none if that is so from the beginning.
    fn piece_before(&self, transfer: usize, missing_bytes: u64) -> Option<usize> {
        let pieces = self.steps_of[&transfer].clone();
        let mut missing = 0;
        for step in pieces.clone().rev() {
            missing += self.steps[step].bytes;
            if missing > missing_bytes || self.steps[step].bytes == 0 {
                return Some(step);
            }
        }
        None
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

    fn need_all(&mut self, step: usize, mut needed: Vec<usize>) {
        needed.sort_unstable();
        needed.dedup();
        for needed in needed {
            self.need(step, needed);
        }
    }

    /// A control message that waits until all receives up to a step are over.
    fn wait_for_all(&mut self, message: usize, last: usize) {
        self.steps[message].needs += 1;
        self.words.push((last as u32, message as u32));
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
