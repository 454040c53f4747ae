//! One host's part of a plan: its sends and receives, chunk by chunk, with their predecessors.

use crate::distance::is_multi_site;
use crate::grain::{
    DRAINED_AFTER_BYTES, Grain, ONE_WINDOW_BYTES, RAMP_BYTES, flight_bytes, own_flight_bytes,
};
use crate::narrow::NarrowPorts;
use crate::plan::{Plan, Progress};
use crate::vector::cut;
use kumi_topo::{Network, Paths};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Kind of a step. The numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    /// Sends a chunk. The step is complete when the peer has begun to receive it.
    Send = 0,
    /// Receives a chunk into its place.
    Receive = 1,
    /// Receives a chunk and combines it with the content of its place.
    Combine = 2,
    /// Sends a control message, which has no payload: the peer may continue.
    Grant = 3,
    /// Receives a control message.
    Await = 4,
    /// Sends a short chunk that the peer does not answer. The step is complete when the chunk has
    /// been handed over.
    Post = 5,
}

impl Action {
    /// Returns the kind of a step's stream. Steps of different streams may overtake each other,
    /// those of one stream may not.
    fn stream_kind(self) -> StreamKind {
        match self {
            Self::Send | Self::Post => StreamKind::ChunksOut,
            Self::Receive | Self::Combine => StreamKind::ChunksIn,
            Self::Grant => StreamKind::ControlOut,
            Self::Await => StreamKind::ControlIn,
        }
    }
}

/// Direction of a stream, and whether it carries chunks or control messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StreamKind {
    ChunksOut,
    ChunksIn,
    ControlOut,
    ControlIn,
}

/// One action of a host. A long vector has millions of steps, so a step is small, and the program
/// keeps its successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Operation to perform.
    pub action: Action,
    /// Peer host index.
    pub peer: u32,
    /// Block number, the first of several adjacent ones; 0 for a step without a block.
    pub block: u32,
    /// Byte offset in the block.
    pub offset: u64,
    /// Size in bytes, of one block or of all adjacent ones.
    pub bytes: u64,
    /// Number of steps that must be complete, or have begun, before this one begins.
    pub(crate) needs: u32,
    /// Index of its stream.
    pub(crate) stream: u32,
}

/// The steps of one host. Those of one stream begin in this order, at both ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The steps.
    pub steps: Vec<Step>,
    /// For each step, the steps that need it complete.
    needed_by: Edges,
    /// For each step, the steps that need it begun.
    start_needed_by: Edges,
    /// Control messages that await all receives up to a step: that step, and the message's.
    pub(crate) control_messages: Vec<(u32, u32)>,
    /// Most bytes that may be in flight to a peer, in addition to the content of the path.
    pub window_bytes: u64,
    /// Content of the path to each peer, there and back, in bytes: an addition to the window. Peers
    /// that are not named have 0.
    flight_bytes: Vec<u64>,
    own_flight_bytes: u64,
    /// The network is multi-site ([`is_multi_site`]).
    is_multi_site: bool,
    chunk_bytes: u64,
    pub(crate) streams: usize,
    /// Streams of a gather that start after a control message from another host.
    ramped: BTreeSet<u32>,
    /// Narrow ports on this host's paths.
    pub(crate) narrow_ports: NarrowPorts,
    /// For each stream, the bytes of all its steps.
    stream_bytes: Vec<u64>,
    /// The host sends to one other host only, as in a ring or along a chain.
    sends_to_one: bool,
    /// No other host uses the links on that path in the same direction.
    has_own_path: bool,
}

/// Successors of steps, eight bytes per edge, sorted by the step that they leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Edges(Vec<(u32, u32)>);

impl Edges {
    /// Sorts edges that were collected in any order.
    fn sorted(mut edges: Vec<(u32, u32)>) -> Self {
        edges.sort_unstable();
        edges.shrink_to_fit();
        Self(edges)
    }

    fn successors(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        let step = step as u32;
        let first = self.0.partition_point(|(from, _)| *from < step);
        let edges = self.0[first..].iter();
        let matching = edges.take_while(move |(from, _)| *from == step);
        matching.map(|(_, to)| *to as usize)
    }
}

/// Length from which chunks are answered, in bytes. A shorter chunk costs less than its answer. It
/// needs no window if no port on its path is narrow.
const ANSWERED_BYTES: u64 = 8 << 10;

/// Most transfers of a plan that are searched for other users of a host's path. In a longer plan,
/// every path counts as shared.
const SEARCH_MAX: usize = 16_384;

/// Most receives, or control messages, of one stream that are active at once: more than the chunks
/// of a window. The chunks that the path holds are added.
const IN_FLIGHT_MAX: usize = 8;

impl Program {
    /// Builds the program of `host` for a valid plan.
    pub fn new(plan: &Plan, host: usize, grain: Grain) -> Self {
        let mut writer = Writer {
            plan,
            host,
            grain,
            steps: Vec::new(),
            needed_by: Vec::new(),
            start_needed_by: Vec::new(),
            control_messages: Vec::new(),
            streams: HashMap::new(),
            steps_of: HashMap::new(),
            block_receive: HashMap::new(),
            block_sends: HashMap::new(),
            ramped: BTreeSet::new(),
        };
        for index in 0..plan.transfers.len() {
            writer.add(index);
        }
        writer.steps.shrink_to_fit();
        let streams = writer.streams.keys();
        let sends_to_one = streams
            .filter(|(_, stream)| *stream == StreamKind::ChunksOut)
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
            start_needed_by: Edges::sorted(writer.start_needed_by),
            control_messages: writer.control_messages,
            window_bytes: grain.window_bytes,
            flight_bytes: Vec::new(),
            own_flight_bytes: 0,
            is_multi_site: false,
            chunk_bytes: grain.chunk_bytes.max(1),
            ramped: writer.ramped,
            narrow_ports: NarrowPorts::default(),
            stream_bytes,
            sends_to_one,
            has_own_path: false,
        }
    }

    /// Iterates over the steps that need a step complete.
    pub(crate) fn needed_by(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        self.needed_by.successors(step)
    }

    /// Iterates over the steps that need a step begun.
    pub(crate) fn start_needed_by(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        self.start_needed_by.successors(step)
    }

    /// Builds the program of `host` for a valid plan, with the network's granularity for elements
    /// of `element_bytes`.
    pub fn on(network: &Network, plan: &Plan, host: usize, element_bytes: u64) -> Self {
        let grain = Grain::on(network, element_bytes);
        let paths = Paths::new(network);
        let flight_bytes = flight_bytes(&paths, host, grain.chunk_bytes);
        let is_multi_site = is_multi_site(network);
        // Between sites, TCP finds out how much a port takes.
        let narrow_ports = match is_multi_site {
            true => NarrowPorts::default(),
            false => NarrowPorts::new(&paths, host),
        };
        let program = Self::new(plan, host, grain);
        Self {
            has_own_path: program.sends_to_one
                && !is_multi_site
                && has_own_path(&paths, plan, host),
            flight_bytes,
            own_flight_bytes: own_flight_bytes(&paths, host),
            is_multi_site,
            narrow_ports,
            ..program
        }
        .with_posts()
    }

    /// Returns this program with the paths of another program of the same host.
    #[must_use]
    pub fn on_paths_of(self, other: &Self) -> Self {
        Self {
            flight_bytes: other.flight_bytes.clone(),
            own_flight_bytes: other.own_flight_bytes,
            is_multi_site: other.is_multi_site,
            narrow_ports: other.narrow_ports.clone(),
            ..self
        }
        .with_posts()
    }

    /// Makes sends of short chunks unanswered, except through a narrow port.
    fn with_posts(mut self) -> Self {
        for step in &mut self.steps {
            let is_short = step.action == Action::Send && step.bytes < ANSWERED_BYTES;
            if is_short && !self.narrow_ports.is_on_path_to(step.peer) {
                step.action = Action::Post;
            }
        }
        self
    }

    /// Returns the window of a stream to `peer`, in bytes: the content of the path, plus
    ///
    /// ```text
    ///   0             if no other host uses the path, and 1 MiB was sent since it was drained
    ///   48 KiB        if the host sends to one other host only, and either no other host uses the
    ///                 path or the stream has at most 1 MiB in all
    ///   window_bytes  otherwise: 20 KiB, or 48 KiB between sites
    /// ```
    ///
    /// In the time of 1 MiB, acknowledgements build no queue that overflows a port. After that, a
    /// host with a path of its own sends no more until only the content of the path is in flight
    /// ([`DRAINED_AFTER_BYTES`], ADR 033).
    pub(crate) fn window_to(&self, stream: u32, peer: u32, undrained_bytes: u64) -> u64 {
        let is_short =
            self.sends_to_one && self.stream_bytes[stream as usize] <= DRAINED_AFTER_BYTES;
        let standing_bytes = match self.has_own_path {
            true if undrained_bytes >= DRAINED_AFTER_BYTES => 0,
            has_own_path if has_own_path || is_short => self.window_bytes.max(ONE_WINDOW_BYTES),
            _ => self.window_bytes,
        };
        standing_bytes + self.flight_to(peer)
    }

    /// Returns the most bytes that may be in flight from this host in total: the window of a
    /// stream, plus the bytes that the access link carries until the furthest host has answered.
    pub(crate) fn own_window(&self) -> u64 {
        let most_bytes = if self.sends_to_one {
            ONE_WINDOW_BYTES
        } else {
            0
        };
        self.window_bytes.max(most_bytes) + self.own_flight_bytes
    }

    /// Returns the most receives or control messages of one stream with this host that are active
    /// at once.
    pub(crate) fn in_flight_max(&self, peer: u32) -> usize {
        IN_FLIGHT_MAX + (self.flight_to(peer) / self.chunk_bytes) as usize
    }

    /// Returns the bytes that a stream may send before any have been received: a ramp after a
    /// distant grant, or else as many as its window allows.
    pub(crate) fn first_bytes(&self, stream: u32, peer: u32) -> u64 {
        match self.flight_to(peer) {
            flight
                if self.is_multi_site && flight > RAMP_BYTES && self.ramped.contains(&stream) =>
            {
                RAMP_BYTES
            }
            _ => u64::MAX,
        }
    }

    pub(crate) fn flight_to(&self, peer: u32) -> u64 {
        self.flight_bytes.get(peer as usize).copied().unwrap_or(0)
    }
}

/// Returns whether no other host's transfer uses a link on this host's path in the same direction.
/// The path is that of the host's first transfer.
fn has_own_path(paths: &Paths, plan: &Plan, host: usize) -> bool {
    if plan.transfers.len() > SEARCH_MAX {
        return false;
    }
    let mut own = plan
        .transfers
        .iter()
        .filter(|transfer| transfer.from == host);
    let own = own.next().map(|transfer| paths.links(host, transfer.to));
    let own = own.unwrap_or_default();
    let mut others = plan
        .transfers
        .iter()
        .filter(|transfer| transfer.from != host);
    !others.any(|transfer| {
        let links = paths.links(transfer.from, transfer.to);
        links.iter().any(|link| own.contains(link))
    })
}

struct Writer<'a> {
    plan: &'a Plan,
    host: usize,
    grain: Grain,
    steps: Vec<Step>,
    needed_by: Vec<(u32, u32)>,
    start_needed_by: Vec<(u32, u32)>,
    control_messages: Vec<(u32, u32)>,
    streams: HashMap<(usize, StreamKind), u32>,
    /// For each transfer from or to this host, the steps of its chunks.
    steps_of: HashMap<usize, Range<usize>>,
    /// For each block that arrived here, the first of the steps that brought it last. The step of
    /// its chunk `p` is `p` further on, because the steps of a transfer are consecutive.
    block_receive: HashMap<usize, usize>,
    /// For each block, the first steps of the transfers that sent it since it was last overwritten.
    block_sends: HashMap<usize, Vec<usize>>,
    ramped: BTreeSet<u32>,
}

/// The data of one step: a part of a block, or several whole blocks.
struct Chunk {
    first: usize,
    end: usize,
    /// Number of the chunk within its block, from 0.
    number: usize,
    offset: u64,
    bytes: u64,
}

impl Chunk {
    fn blocks(&self) -> Range<usize> {
        self.first..self.end
    }
}

impl Writer<'_> {
    fn add(&mut self, index: usize) {
        let plan = self.plan;
        let transfer = &plan.transfers[index];
        let (mut completions, mut starts) = (Vec::new(), Vec::new());
        for wait in &transfer.after {
            let predecessor = wait.transfer;
            let earlier = &plan.transfers[predecessor];
            let (missing_bytes, with_earlier) = match wait.until {
                Progress::Received {
                    missing_bytes,
                    with_earlier,
                } if earlier.to != transfer.from => (missing_bytes, with_earlier),
                until => {
                    if transfer.from == self.host {
                        let last = self.steps_of[&predecessor].end - 1;
                        match until {
                            Progress::Sent => starts.push(last),
                            Progress::Received { .. } => completions.push(last),
                        }
                    }
                    continue;
                }
            };
            if earlier.to == self.host {
                let grant = self.step(Action::Grant, transfer.from, 0, (0, 0));
                let step = self.awaited_step(predecessor, missing_bytes);
                match step {
                    Some(step) if !with_earlier => self.need(grant, step),
                    Some(step) => self.wait_for_all(grant, step),
                    None => {
                        if let Some(last) = self.steps_of[&predecessor].start.checked_sub(1) {
                            self.wait_for_all(grant, last);
                        }
                    }
                }
            } else if transfer.from == self.host {
                completions.push(self.step(Action::Await, earlier.to, 0, (0, 0)));
            }
        }
        if transfer.from == self.host {
            self.send(index, &completions, &starts);
        } else if transfer.to == self.host {
            self.receive(index);
        }
    }

    fn send(&mut self, index: usize, completions: &[usize], starts: &[usize]) {
        let first = self.steps.len();
        for (step, chunk) in self.chunks(index, Action::Send) {
            let receives = chunk.blocks().filter_map(|block| {
                let receive = self.block_receive.get(&block)?;
                Some(receive + chunk.number)
            });
            let receives = receives.collect();
            self.need_all(step, receives);
            if chunk.number == 0 {
                for block in chunk.blocks() {
                    self.block_sends.entry(block).or_default().push(step);
                }
            }
        }
        for needed in completions {
            self.need(first, *needed);
            if self.plan.operation.is_ramped() && self.steps[*needed].action == Action::Await {
                self.ramped.insert(self.steps[first].stream);
            }
        }
        for needed in starts {
            self.steps[first].needs += 1;
            self.start_needed_by.push((*needed as u32, first as u32));
        }
        self.steps_of.insert(index, first..self.steps.len());
    }

    fn receive(&mut self, index: usize) {
        let action = match self.plan.transfers[index].combines {
            true => Action::Combine,
            false => Action::Receive,
        };
        let first = self.steps.len();
        let chunks = self.chunks(index, action);
        for (step, chunk) in &chunks {
            let mut needed: Vec<usize> = Vec::new();
            for block in chunk.blocks() {
                // A chunk is overwritten only after it has been sent. A chunk that is combined with
                // another has not been sent before.
                if action == Action::Receive {
                    needed.extend(self.block_sends.get(&block).into_iter().flatten());
                }
                // Chunks are combined in the plan's order, so that a sum of floats is the same in
                // every run.
                needed.extend(self.block_receive.get(&block));
            }
            let needed = needed.into_iter().map(|step| step + chunk.number);
            self.need_all(*step, needed.collect());
        }
        for (step, chunk) in chunks.iter().filter(|(_, chunk)| chunk.number == 0) {
            for block in chunk.blocks() {
                self.block_receive.insert(block, *step);
                if action == Action::Receive {
                    self.block_sends.remove(&block);
                }
            }
        }
        self.steps_of.insert(index, first..self.steps.len());
    }

    /// Writes the steps of a transfer's chunks.
    fn chunks(&mut self, index: usize, action: Action) -> Vec<(usize, Chunk)> {
        let transfer = &self.plan.transfers[index];
        let peer = match action {
            Action::Send | Action::Post => transfer.to,
            _ => transfer.from,
        };
        let chunks = self.cut(index).into_iter().map(|chunk| {
            let span = (chunk.offset, chunk.bytes);
            (self.step(action, peer, chunk.first, span), chunk)
        });
        chunks.collect()
    }

    /// Returns the chunks of a transfer, which are the same at both ends. Long blocks are divided.
    /// Short adjacent parts of a vector are joined.
    fn cut(&self, index: usize) -> Vec<Chunk> {
        let Grain {
            chunk_bytes,
            element_bytes,
            ..
        } = self.grain;
        let chunk_bytes = (chunk_bytes - chunk_bytes % element_bytes).max(element_bytes);
        let are_joined = self.plan.operation.is_on_a_vector();
        let mut chunks: Vec<Chunk> = Vec::new();
        for block in self.nonempty_blocks(index) {
            let block_bytes = self.plan.block_bytes[block];
            let fits = |last: &&mut Chunk| {
                let is_next = last.end == block && last.number == 0;
                is_next && are_joined && last.bytes + block_bytes <= chunk_bytes
            };
            if let Some(last) = chunks.last_mut().filter(fits) {
                last.end += 1;
                last.bytes += block_bytes;
                continue;
            }
            let mut offset = 0;
            for (number, bytes) in cut(block_bytes, chunk_bytes).into_iter().enumerate() {
                chunks.push(Chunk {
                    first: block,
                    end: block + 1,
                    number,
                    offset,
                    bytes,
                });
                offset += bytes;
            }
        }
        chunks
    }

    /// Returns the blocks of a transfer that are not empty; one, if all are empty, because other
    /// steps await it.
    fn nonempty_blocks(&self, index: usize) -> Vec<usize> {
        let blocks = &self.plan.transfers[index].blocks;
        let is_empty = |block: &usize| self.plan.block_bytes[*block] == 0;
        let nonempty: Vec<usize> = blocks.numbers().filter(|block| !is_empty(block)).collect();
        match nonempty.is_empty() {
            true => blocks.numbers().take(1).collect(),
            false => nonempty,
        }
    }

    /// Returns the step after which at most this many bytes of a transfer to this host are missing.
    /// Returns `None` if that holds from the start.
    fn awaited_step(&self, transfer: usize, missing_bytes: u64) -> Option<usize> {
        let steps = self.steps_of[&transfer].clone();
        let mut missing = 0;
        for step in steps.clone().rev() {
            missing += self.steps[step].bytes;
            if missing > missing_bytes || self.steps[step].bytes == 0 {
                return Some(step);
            }
        }
        None
    }

    fn step(&mut self, action: Action, peer: usize, block: usize, span: (u64, u64)) -> usize {
        let streams = self.streams.len() as u32;
        let stream = self.streams.entry((peer, action.stream_kind()));
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

    /// Makes a control message await all receives up to a step.
    fn wait_for_all(&mut self, message: usize, last: usize) {
        self.steps[message].needs += 1;
        self.control_messages.push((last as u32, message as u32));
    }
}

#[cfg(test)]
mod tests;
