//! The report: time lost by cause, by connection and by phase.

use super::cause::{Cause, Place};
use super::connection::{Connection, Interval, Transfer};
use super::rates::path_rates;
use super::union::Union;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Ratio of time to the path's minimum from which a transfer is slow.
const SLOW_RATIO: f64 = 1.3;

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

/// Time lost to one cause, while connections are added.
#[derive(Debug, Default)]
struct LossSum {
    /// Times in which the cause delayed a connection.
    spans: Union,
    /// Time lost, summed over connections.
    summed_s: f64,
    /// Number of occurrences.
    count: u64,
}

/// Adds up the losses of all connections.
#[derive(Debug)]
pub struct Ledger {
    /// Path rate to each far host, in bytes per nanosecond.
    rates: HashMap<IpAddr, f64>,
    /// Number of connections to each far host.
    connection_counts: HashMap<IpAddr, usize>,
    busy: Union,
    causes: BTreeMap<Cause, LossSum>,
    places: BTreeMap<(Cause, Place), f64>,
    phases: BTreeMap<(Cause, u16), (f64, u64)>,
    connections: Vec<Explained>,
}

impl Ledger {
    /// Creates a ledger for `connections`, none of which it contains yet.
    pub fn new(connections: &[Connection]) -> Self {
        Self {
            rates: path_rates(connections),
            connection_counts: connection_counts(connections),
            busy: Union::default(),
            causes: BTreeMap::new(),
            places: BTreeMap::new(),
            phases: BTreeMap::new(),
            connections: Vec::new(),
        }
    }

    /// Adds one connection.
    pub fn add(&mut self, connection: &Connection) {
        let remote = connection.remote.ip();
        let rate = self.rates.get(&remote).copied().unwrap_or(f64::INFINITY);
        let is_shared = self.connection_counts.get(&remote).is_some_and(|n| *n > 1);
        let mut explained = Explained {
            local: connection.local,
            remote: connection.remote,
            transfers: connection.transfers.len() as u64,
            slow: 0,
            bytes: connection
                .intervals
                .iter()
                .map(|interval| interval.bytes)
                .sum(),
            busy_s: 0.0,
            losses: Vec::new(),
        };
        let mut connection_losses: BTreeMap<Cause, f64> = BTreeMap::new();
        for transfer in &connection.transfers {
            let intervals = &connection.intervals[transfer.intervals.clone()];
            let (start_ns, end_ns) = (intervals[0].start_ns, intervals[intervals.len() - 1].end_ns);
            self.busy.add(start_ns, end_ns);
            explained.busy_s += (end_ns - start_ns) as f64 / 1e9;
            if is_slow(transfer, intervals, rate) {
                explained.slow += 1;
                let place = Place::new(transfer.rtt_min_ns, is_shared);
                self.add_slow(intervals, rate, place, &mut connection_losses);
            }
        }
        explained.losses = connection_losses.into_iter().collect();
        explained.losses.sort_by(|a, b| b.1.total_cmp(&a.1));
        self.connections.push(explained);
    }

    /// Adds the losses of a slow transfer, also to `connection_losses`.
    fn add_slow(
        &mut self,
        intervals: &[Interval],
        rate: f64,
        place: Place,
        connection_losses: &mut BTreeMap<Cause, f64>,
    ) {
        let mut previous = None;
        for lost in losses(intervals, rate) {
            let lost_s = (lost.end_ns - lost.start_ns) as f64 / 1e9;
            let sum = self.causes.entry(lost.cause).or_default();
            sum.spans.add(lost.start_ns, lost.end_ns);
            sum.summed_s += lost_s;
            // A sequence of intervals with one cause is one occurrence.
            sum.count += u64::from(previous.map(|(cause, _)| cause) != Some(lost.cause));
            *self.places.entry((lost.cause, place)).or_default() += lost_s;
            if let Some(phase) = lost.phase {
                let entry = self.phases.entry((lost.cause, phase)).or_default();
                entry.0 += lost_s;
                entry.1 += u64::from(previous != Some((lost.cause, lost.phase)));
            }
            *connection_losses.entry(lost.cause).or_default() += lost_s;
            // A silence within a sequence does not end it.
            if !lost.is_silence {
                previous = Some((lost.cause, lost.phase));
            }
        }
    }

    /// Returns the report. `names` are the names of the phases. The observation's length and the
    /// counts of what it missed are 0.
    pub fn finish(mut self, names: &[Arc<str>]) -> Report {
        let total = |connection: &Explained| {
            let lost_s = connection.losses.iter().map(|(_, lost_s)| lost_s);
            lost_s.sum::<f64>()
        };
        self.connections
            .sort_by(|a, b| total(b).total_cmp(&total(a)));
        let mut union = Union::default();
        let mut losses = Vec::new();
        for (cause, sum) in self.causes {
            let former_ns = union.length_ns();
            union.merge(&sum.spans);
            losses.push(Loss {
                cause,
                place: place_of(cause, &self.places),
                lost_s: (union.length_ns() - former_ns) as f64 / 1e9,
                summed_s: sum.summed_s,
                count: sum.count,
                phases: phases_of(cause, &self.phases, names),
            });
        }
        losses.sort_by(|a, b| b.lost_s.total_cmp(&a.lost_s));
        Report {
            observed_s: 0.0,
            busy_s: self.busy.length_ns() as f64 / 1e9,
            lost_s: union.length_ns() as f64 / 1e9,
            losses,
            connections: self.connections,
            events_lost: 0,
            connections_left: 0,
            acknowledgements_joined: 0,
        }
    }
}

/// Returns the number of connections to each far host.
fn connection_counts(connections: &[Connection]) -> HashMap<IpAddr, usize> {
    let mut counts = HashMap::new();
    for connection in connections {
        *counts.entry(connection.remote.ip()).or_default() += 1;
    }
    counts
}

/// Returns the place at which one cause lost most.
fn place_of(cause: Cause, places: &BTreeMap<(Cause, Place), f64>) -> Place {
    let entries = places.iter().filter(|((key, _), _)| *key == cause);
    let largest = entries.max_by(|a, b| a.1.total_cmp(b.1));
    largest.map_or(Place::new(0, false), |((_, place), _)| *place)
}

/// Returns the phases of one cause, the largest loss first.
fn phases_of(
    cause: Cause,
    phase_losses: &BTreeMap<(Cause, u16), (f64, u64)>,
    names: &[Arc<str>],
) -> Vec<InPhase> {
    let entries = phase_losses.range((cause, 0)..=(cause, u16::MAX));
    let mut phases: Vec<InPhase> = entries
        .map(|((_, phase), (summed_s, count))| InPhase {
            name: Arc::clone(&names[usize::from(*phase)]),
            summed_s: *summed_s,
            count: *count,
        })
        .collect();
    phases.sort_by(|a, b| b.summed_s.total_cmp(&a.summed_s));
    phases
}

fn is_slow(transfer: &Transfer, intervals: &[Interval], rate: f64) -> bool {
    let span_ns = intervals[intervals.len() - 1].end_ns - intervals[0].start_ns;
    let bytes: u64 = intervals.iter().map(|interval| interval.bytes).sum();
    let ideal_ns = transfer.rtt_min_ns as f64 + bytes as f64 / rate;
    span_ns as f64 > SLOW_RATIO * ideal_ns
}

/// Time that one interval lost to one cause.
#[derive(Debug, Clone, Copy)]
struct Lost {
    cause: Cause,
    start_ns: u64,
    end_ns: u64,
    phase: Option<u16>,
    /// True for the part of an interval in which the path was silent, and its cause was another.
    is_silence: bool,
}

/// Returns the time that each interval with a cause lost. Faster intervals compensate slower ones
/// of the same sequence, because acknowledgements arrive in clumps.
fn losses(intervals: &[Interval], rate: f64) -> Vec<Lost> {
    let mut losses = Vec::new();
    let mut credit_ns = 0.0;
    for interval in intervals {
        let span_ns =
            (interval.end_ns - interval.start_ns).saturating_sub(interval.latency_ns) as f64;
        let excess_ns = span_ns - interval.bytes as f64 / rate - credit_ns;
        credit_ns = (-excess_ns).max(0.0);
        let (Some(cause), true) = (interval.cause, excess_ns > 0.0) else {
            continue;
        };
        let excess_ns = excess_ns as u64;
        let silent_ns = interval.silent_ns.min(excess_ns);
        let silent_from_ns = interval.end_ns - silent_ns;
        let lost = Lost {
            cause,
            start_ns: interval.end_ns - excess_ns,
            end_ns: silent_from_ns,
            phase: interval.phase,
            is_silence: false,
        };
        let silence = Lost {
            cause: Cause::Path,
            start_ns: silent_from_ns,
            end_ns: interval.end_ns,
            is_silence: true,
            ..lost
        };
        let parts = [lost, silence].into_iter();
        losses.extend(parts.filter(|part| part.end_ns > part.start_ns));
    }
    losses
}
