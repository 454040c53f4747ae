//! Trains of packets between hosts, and the rates that follow from them.

use super::agent::{Answer, Request};
use super::agents::Agents;
use super::packet::{FRAMING_BYTES, LARGE_BYTES};
use anyhow::bail;

/// Shortest silence, in seconds, after which the queues of a path count as empty. A train that
/// meets packets of the one before in a queue is compressed or dropped. A link of 15 Mb/s was
/// measured as 18 or 7 Mb/s (`docs/perf-log.md`, 2026-11-24).
pub(super) const QUIET_MIN_S: f64 = 0.02;

/// The same silence in packets of the slowest train. The longer one applies.
const QUIET_PACKETS: f64 = 5.0;

const PACKETS_MIN: u32 = 24;
const PACKETS_MAX: u32 = 4000;

pub(super) const WIRE_BITS: f64 = ((LARGE_BYTES + FRAMING_BYTES) * 8) as f64;

/// Measured rates in bits per second, or 0 where nothing was measured.
pub struct Rates {
    /// Rates of each host's link, from the host and to it.
    pub hosts: Vec<[f64; 2]>,
    /// Sum of the rates at which each host sends and receives at once.
    pub both_ways: Vec<f64>,
    /// Rates of each link between switches, from its first end and back.
    pub links: Vec<[f64; 2]>,
}

/// A train from one host to another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Train {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) packets: u32,
}

/// Returns the silence, in seconds, after which no packets of trains at `bps` are in flight.
pub(super) fn quiet_s(bps: f64) -> f64 {
    (QUIET_PACKETS * WIRE_BITS / bps.max(1e5)).max(QUIET_MIN_S)
}

/// Sends trains at once. Returns the arrivals of their packets, once the queues of the paths are
/// empty.
pub(super) fn run(
    agents: &mut Agents,
    number: &mut u32,
    trains: &[Train],
    quiet_s: f64,
) -> anyhow::Result<Vec<Vec<u64>>> {
    let first = *number;
    *number += trains.len() as u32;
    let numbers = first..*number;
    for (train, number) in trains.iter().zip(numbers.clone()) {
        let request = Request::Train {
            peer: train.to as u32,
            number,
            packets: train.packets,
        };
        agents.request(train.from, &request)?;
    }
    let senders: Vec<usize> = trains.iter().map(|train| train.from).collect();
    agents.answers(&senders)?;
    let quiet_us = (quiet_s * 1e6) as u64;
    for (train, number) in trains.iter().zip(numbers) {
        agents.request(train.to, &Request::Arrivals { number, quiet_us })?;
    }
    let receivers: Vec<usize> = trains.iter().map(|train| train.to).collect();
    let mut arrivals_ns = Vec::new();
    for answer in agents.answers(&receivers)? {
        match answer {
            Answer::Arrivals { times_ns, .. } => arrivals_ns.push(times_ns),
            answer => bail!("unexpected answer from kumi topo probe about a train: {answer:?}"),
        }
    }
    Ok(arrivals_ns)
}

pub(super) fn packets(bps: f64, seconds: f64) -> u32 {
    ((bps * seconds / WIRE_BITS) as u32).clamp(PACKETS_MIN, PACKETS_MAX)
}
