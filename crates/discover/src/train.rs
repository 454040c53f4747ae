//! Trains of packets between hosts, and the rates that follow from them.

use super::agent::{Answer, Request};
use super::agents::Agents;
use super::packet::{FRAMING_BYTES, LARGE_BYTES};

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
    let answers = agents.answers(&senders)?;
    for ((answer, sender), number) in answers.iter().zip(&senders).zip(numbers.clone()) {
        if *answer != (Answer::Sent { number }) {
            return Err(agents.mismatch(*sender, answer, &format!("sent {number}")));
        }
    }
    let quiet_us = (quiet_s * 1e6) as u64;
    for (train, number) in trains.iter().zip(numbers.clone()) {
        agents.request(train.to, &Request::Arrivals { number, quiet_us })?;
    }
    let receivers: Vec<usize> = trains.iter().map(|train| train.to).collect();
    let mut arrivals_ns = Vec::new();
    let answers = agents.answers(&receivers)?;
    for ((answer, receiver), expected) in answers.into_iter().zip(&receivers).zip(numbers) {
        match answer {
            Answer::Arrivals { number, times_ns } if number == expected => {
                arrivals_ns.push(times_ns);
            }
            answer => {
                return Err(agents.mismatch(*receiver, &answer, &format!("came {expected}")));
            }
        }
    }
    Ok(arrivals_ns)
}

pub(super) fn packets(bps: f64, seconds: f64) -> u32 {
    ((bps * seconds / WIRE_BITS) as u32).clamp(PACKETS_MIN, PACKETS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    /// An agent of another release, or an answer that comes too late, must not count for a train.
    #[test]
    fn train__answer_about_another_one__is_refused_with_the_expected_one() {
        let sent = r#"case $line in *train*) echo '{"sent":{"number":5}}';; esac"#;
        let came = r#"case $line in
            *train*) echo '{"sent":{"number":4}}';;
            *arrivals*) echo '{"came":{"number":3,"at_ns":[]}}';;
        esac"#;
        for (body, test, message) in [
            (
                sent,
                "sent",
                "a: kumi topo probe answered `sent 5`: expected `sent 4`",
            ),
            (
                came,
                "came",
                "bb: kumi topo probe answered `came 3`: expected `came 4`",
            ),
        ] {
            let script = Script::new(test, body);
            let names = ["a", "bb"].map(str::to_owned);
            let mut agents = Agents::start(&names, &script.shell(), "kumi").unwrap();
            agents.answers(&[0, 1]).unwrap();
            let train = Train {
                from: 0,
                to: 1,
                packets: PACKETS_MIN,
            };
            let mut number = 4;
            let error = run(&mut agents, &mut number, &[train], 0.0).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{message}; use the same release of kumi on all hosts")
            );
        }
    }
}
