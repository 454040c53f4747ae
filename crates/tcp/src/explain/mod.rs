//! Explains slow connections, with the analysis of the send-stall paper (Takano et al., section 3),
//! for any program.
//!
//! A transfer is slow if it takes more than `SLOW_RATIO` × (minimum RTT + bytes ÷ path rate). The
//! path rate is the highest rate observed to the far host. A slow transfer is examined piece by
//! piece, from one arrival to the next. A piece loses its length minus bytes ÷ path rate, and all
//! of that goes to one cause. Time is counted once: as the union over connections.
//!
//! The analysis is pure. It takes events and returns a report, and has no clock and no socket.

mod cause;
mod flow;
mod union;

pub use cause::{Cause, Place};

use crate::trace::{Event, Kind};
use flow::{Flow, Piece, Transfer};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use union::Union;

/// Ratio of time to the path's minimum from which a transfer is slow.
const SLOW_RATIO: f64 = 1.3;
/// Shortest window over which a path's rate is measured, in nanoseconds. Shorter windows show
/// clumps.
const RATE_WINDOW_NS: u64 = 3_000_000;
const RATE_WINDOW_BYTES: u64 = 32 * 1448;
/// Smallest train that shows a rate, in bytes. Shorter trains are spaced by timers.
const TRAIN_BYTES: u64 = 8 * 1448;
const TRAIN_NS: u64 = 200_000;
/// Most connections that are analysed. Further ones are only counted.
const FLOWS_MAX: usize = 65_536;
/// Most pieces of all connections together: 117 MB at 56 bytes each, one minute of a full gigabit
/// link.
const PIECES_TOTAL_MAX: usize = 1 << 21;
/// Most phases, of all programs together.
const PHASES_MAX: usize = 1024;

/// Time lost to one cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The cause.
    pub cause: Cause,
    /// Kind of path on which most of the time was lost.
    pub place: Place,
    /// Time in which this cause delayed at least one connection, and no earlier cause delayed any.
    pub lost_s: f64,
    /// The same, summed over connections.
    pub summed_s: f64,
    /// Number of occurrences.
    pub count: u64,
    /// Loss by phase, the largest first; empty for processes outside `kumi run`. An occurrence that
    /// continues into another phase counts in both.
    pub phases: Vec<InPhase>,
}

/// The part of a loss within one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct InPhase {
    /// Name of the phase.
    pub name: Arc<str>,
    /// Time lost, summed over connections.
    pub summed_s: f64,
    /// Number of occurrences.
    pub count: u64,
}

/// One connection that sent data.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Number of transfers.
    pub transfers: u64,
    /// Number of slow transfers.
    pub slow: u64,
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Time in transfers, in seconds.
    pub busy_s: f64,
    /// Losses by cause, the largest first.
    pub losses: Vec<(Cause, f64)>,
}

/// Result of the analysis.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Time from the first event to the end, in seconds.
    pub observed_s: f64,
    /// Time in which at least one connection was in a transfer, in seconds.
    pub busy_s: f64,
    /// Total time lost, counted once, in seconds.
    pub lost_s: f64,
    /// Losses by cause, the largest first.
    pub losses: Vec<Loss>,
    /// Losses by connection, the largest first.
    pub connections: Vec<Explained>,
    /// Number of events that the trace dropped.
    pub events_lost: u64,
    /// Connections beyond the limit, which were not analysed.
    pub connections_left: u64,
    /// Acknowledgements beyond the limit, which were merged with earlier ones.
    pub acknowledgements_joined: u64,
}

/// The analysis in progress.
#[derive(Debug, Default)]
pub struct Analysis {
    flows: HashMap<u64, Flow>,
    by_ends: HashMap<(SocketAddr, SocketAddr), u64>,
    done: Vec<Flow>,
    began_ns: Option<u64>,
    ended_ns: u64,
    events_lost: u64,
    left: u64,
    phases: Vec<Arc<str>>,
    room: Room,
    joined: u64,
}

/// Number of pieces that may still be kept.
#[derive(Debug)]
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(PIECES_TOTAL_MAX)
    }
}

impl Analysis {
    /// Processes one event.
    pub fn note(&mut self, event: &Event) {
        self.began_ns.get_or_insert(event.at_ns);
        self.ended_ns = self.ended_ns.max(event.at_ns);
        self.events_lost = event.lost.into();
        if let Kind::HeldAck { held_us } = event.kind {
            let far = self.by_ends.get(&(event.remote, event.local)).copied();
            if let Some(flow) = far.and_then(|cookie| self.flows.get_mut(&cookie)) {
                flow.note_held(event.at_ns, u64::from(held_us) * 1000);
            }
            return;
        }
        if !self.flows.contains_key(&event.cookie) {
            if self.flows.len() + self.done.len() >= FLOWS_MAX {
                self.left += 1;
                return;
            }
            let flow = Flow::new(event.local, event.remote);
            self.flows.insert(event.cookie, flow);
            self.by_ends
                .insert((event.local, event.remote), event.cookie);
        }
        let phase = event.phase_name.as_ref().and_then(|name| self.number(name));
        if let Some(flow) = self.flows.get_mut(&event.cookie) {
            flow.phase = phase;
            let before = flow.pieces.len();
            self.joined += u64::from(flow.note(event, self.room.0 > 0));
            self.room.0 = self.room.0.saturating_sub(flow.pieces.len() - before);
        }
        if event.kind == Kind::Close {
            self.by_ends.remove(&(event.local, event.remote));
            let closed = self.flows.remove(&event.cookie);
            self.done.extend(closed.filter(Flow::is_sender));
        }
    }

    /// Returns the number of a phase, which it gets at its first occurrence; `None` beyond the
    /// limit.
    fn number(&mut self, name: &Arc<str>) -> Option<u16> {
        let known = self.phases.iter().position(|known| known == name);
        let number = known.unwrap_or(self.phases.len());
        if number >= PHASES_MAX {
            return None;
        }
        if known.is_none() {
            self.phases.push(Arc::clone(name));
        }
        u16::try_from(number).ok()
    }

    /// Returns the report.
    pub fn finish(mut self) -> Report {
        for mut flow in self.flows.into_values() {
            flow.complete();
            self.done.extend(Some(flow).filter(Flow::is_sender));
        }
        let rates = path_rates(&self.done);
        let mut busy = Union::default();
        let connections_to = connections_to(&self.done);
        let mut lost: BTreeMap<Cause, (Union, f64, u64)> = BTreeMap::new();
        let mut places: BTreeMap<(Cause, Place), f64> = BTreeMap::new();
        let mut in_phases: BTreeMap<(Cause, u16), (f64, u64)> = BTreeMap::new();
        let mut connections = Vec::new();
        for flow in &self.done {
            let rate = rates
                .get(&flow.remote.ip())
                .copied()
                .unwrap_or(f64::INFINITY);
            let mut explained = Explained {
                local: flow.local,
                remote: flow.remote,
                transfers: flow.transfers.len() as u64,
                slow: 0,
                bytes: flow.pieces.iter().map(|piece| piece.bytes).sum(),
                busy_s: 0.0,
                losses: Vec::new(),
            };
            let mut by_cause: BTreeMap<Cause, f64> = BTreeMap::new();
            for transfer in &flow.transfers {
                let pieces = &flow.pieces[transfer.pieces.clone()];
                let (from_ns, to_ns) = (pieces[0].from_ns, pieces[pieces.len() - 1].to_ns);
                busy.add(from_ns, to_ns);
                explained.busy_s += (to_ns - from_ns) as f64 / 1e9;
                if !is_slow(transfer, pieces, rate) {
                    continue;
                }
                explained.slow += 1;
                let is_shared = connections_to
                    .get(&flow.remote.ip())
                    .is_some_and(|n| *n > 1);
                let place = Place::new(transfer.rtt_min_ns, is_shared);
                let mut before = None;
                for (cause, piece, lost_ns) in losses(pieces, rate) {
                    let entry = lost.entry(cause).or_default();
                    entry.0.add(piece.to_ns - lost_ns, piece.to_ns);
                    entry.1 += lost_ns as f64 / 1e9;
                    *places.entry((cause, place)).or_default() += lost_ns as f64 / 1e9;
                    // A sequence of pieces with one cause is one occurrence.
                    let is_new = before.map(|(before, _)| before) != Some(cause);
                    let is_new_there = before != Some((cause, piece.phase));
                    entry.2 += u64::from(is_new);
                    before = Some((cause, piece.phase));
                    if let Some(phase) = piece.phase {
                        let entry = in_phases.entry((cause, phase)).or_default();
                        entry.0 += lost_ns as f64 / 1e9;
                        entry.1 += u64::from(is_new_there);
                    }
                    *by_cause.entry(cause).or_default() += lost_ns as f64 / 1e9;
                }
            }
            explained.losses = by_cause.into_iter().collect();
            explained.losses.sort_by(|a, b| b.1.total_cmp(&a.1));
            connections.push(explained);
        }
        let total = |one: &Explained| one.losses.iter().map(|loss| loss.1).sum::<f64>();
        connections.sort_by(|a, b| total(b).total_cmp(&total(a)));
        let mut all = Union::default();
        let mut losses = Vec::new();
        for (cause, (spans, summed_s, count)) in lost {
            let before_ns = all.length_ns();
            all.merge(&spans);
            losses.push(Loss {
                cause,
                place: place_of(cause, &places),
                lost_s: (all.length_ns() - before_ns) as f64 / 1e9,
                summed_s,
                count,
                phases: phases_of(cause, &in_phases, &self.phases),
            });
        }
        losses.sort_by(|a, b| b.lost_s.total_cmp(&a.lost_s));
        let began_ns = self.began_ns.unwrap_or(self.ended_ns);
        Report {
            observed_s: (self.ended_ns - began_ns) as f64 / 1e9,
            busy_s: busy.length_ns() as f64 / 1e9,
            lost_s: all.length_ns() as f64 / 1e9,
            losses,
            connections,
            events_lost: self.events_lost,
            connections_left: self.left,
            acknowledgements_joined: self.joined,
        }
    }
}

/// Returns the number of connections to each far host.
fn connections_to(flows: &[Flow]) -> HashMap<IpAddr, usize> {
    let mut connections = HashMap::new();
    for flow in flows {
        *connections.entry(flow.remote.ip()).or_default() += 1;
    }
    connections
}

/// Returns the place at which one cause lost most.
fn place_of(cause: Cause, places: &BTreeMap<(Cause, Place), f64>) -> Place {
    let of_cause = places.iter().filter(|((of, _), _)| *of == cause);
    let most = of_cause.max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or(Place::new(0, false), |((_, place), _)| *place)
}

/// Returns the phases of one cause, the largest loss first.
fn phases_of(
    cause: Cause,
    in_phases: &BTreeMap<(Cause, u16), (f64, u64)>,
    names: &[Arc<str>],
) -> Vec<InPhase> {
    let of_cause = in_phases.range((cause, 0)..=(cause, u16::MAX));
    let mut phases: Vec<InPhase> = of_cause
        .map(|((_, phase), (summed_s, count))| InPhase {
            name: Arc::clone(&names[usize::from(*phase)]),
            summed_s: *summed_s,
            count: *count,
        })
        .collect();
    phases.sort_by(|a, b| b.summed_s.total_cmp(&a.summed_s));
    phases
}

/// Returns the path rate to each far host, in bytes per nanosecond. It is the highest rate over a
/// window, or the rate that a tenth of the trains reach, if that is higher. Delayed
/// acknowledgements that arrive together make one train in a hundred look ten times as fast as the
/// path.
fn path_rates(flows: &[Flow]) -> HashMap<IpAddr, f64> {
    let mut seen: HashMap<IpAddr, (f64, Vec<f64>)> = HashMap::new();
    for flow in flows {
        let (highest, trains) = seen.entry(flow.remote.ip()).or_default();
        for transfer in &flow.transfers {
            let pieces = &flow.pieces[transfer.pieces.clone()];
            *highest = highest.max(highest_rate(pieces));
            add_train_rates(pieces, transfer.rtt_min_ns, trains);
        }
    }
    let rates = seen
        .into_iter()
        .map(|(host, (highest, trains))| (host, highest.max(borne_out(trains))));
    rates.filter(|(_, rate)| *rate > 0.0).collect()
}

/// Returns the rate that a tenth of the trains reach; of two trains the slower, and 0 without
/// trains.
fn borne_out(mut trains: Vec<f64>) -> f64 {
    trains.sort_by(|a, b| b.total_cmp(a));
    let reached = trains.get((trains.len() / 10).max(1)).or(trains.first());
    reached.copied().unwrap_or(0.0)
}

/// Returns the highest rate over any window of a transfer, in bytes per nanosecond; 0 if none is
/// long enough.
fn highest_rate(pieces: &[Piece]) -> f64 {
    let mut highest = 0.0_f64;
    let (mut from, mut bytes) = (0, 0);
    for to in 1..pieces.len() {
        bytes += pieces[to].bytes;
        // A window starts after an arrival: the bytes of its first piece were sent before it.
        loop {
            let next = bytes - pieces[from + 1].bytes;
            let shorter_ns = pieces[to].to_ns - pieces[from + 1].to_ns;
            if from + 1 >= to || shorter_ns < RATE_WINDOW_NS || next < RATE_WINDOW_BYTES {
                break;
            }
            bytes = next;
            from += 1;
        }
        let span_ns = pieces[to].to_ns - pieces[from].to_ns;
        if span_ns >= RATE_WINDOW_NS && bytes >= RATE_WINDOW_BYTES {
            highest = highest.max(bytes as f64 / span_ns as f64);
        }
    }
    highest
}

/// Adds the highest rate within each train, in bytes per nanosecond. Bytes sent together arrive
/// with the bottleneck's spacing, so a short transfer shows a rate that it never reaches. A train
/// ends with a pause of a quarter round trip.
fn add_train_rates(pieces: &[Piece], rtt_min_ns: u64, rates: &mut Vec<f64>) {
    let (mut began_ns, mut bytes, mut highest) = (0, 0, 0.0_f64);
    for (at, piece) in pieces.iter().enumerate() {
        if at == 0 || piece.to_ns - piece.from_ns > rtt_min_ns / 4 {
            rates.extend(Some(highest).filter(|rate| *rate > 0.0));
            (began_ns, bytes, highest) = (piece.to_ns, 0, 0.0);
            continue;
        }
        bytes += piece.bytes;
        let span_ns = piece.to_ns - began_ns;
        if bytes >= TRAIN_BYTES && span_ns >= TRAIN_NS {
            highest = highest.max(bytes as f64 / span_ns as f64);
        }
    }
    rates.extend(Some(highest).filter(|rate| *rate > 0.0));
}

fn is_slow(transfer: &Transfer, pieces: &[Piece], rate: f64) -> bool {
    let took_ns = pieces[pieces.len() - 1].to_ns - pieces[0].from_ns;
    let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let ideal_ns = transfer.rtt_min_ns as f64 + bytes as f64 / rate;
    took_ns as f64 > SLOW_RATIO * ideal_ns
}

/// Returns the time that each piece with a cause lost. Faster pieces compensate slower ones of the
/// same sequence, because acknowledgements arrive in clumps.
fn losses(pieces: &[Piece], rate: f64) -> Vec<(Cause, Piece, u64)> {
    let mut found: Vec<(Cause, Piece, u64)> = Vec::new();
    let mut credit_ns = 0.0;
    for piece in pieces {
        let took_ns = (piece.to_ns - piece.from_ns).saturating_sub(piece.latency_ns) as f64;
        let excess_ns = took_ns - piece.bytes as f64 / rate - credit_ns;
        credit_ns = (-excess_ns).max(0.0);
        if let (Some(cause), true) = (piece.cause, excess_ns > 0.0) {
            found.push((cause, *piece, excess_ns as u64));
        }
    }
    found
}

#[cfg(test)]
mod tests;
