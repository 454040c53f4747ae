//! `kumi topo discover`: measures the tree of switches and the rates of its links between hosts.
//!
//! ```text
//!  kumi topo discover ──shell──► kumi topo probe on each host     (agents.rs, agent.rs)
//!       │                              ▲ UDP, packet.rs
//!       ├─ round trips of all pairs ───┤
//!       ├─ kumi_topo::infer: the tree  │
//!       └─ trains of packets ──────────┘             (rates.rs, crossing.rs)
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `kumi_command::output` replaces both

mod agent;
mod agents;
mod crossing;
mod lldp;
mod packet;
mod rates;
mod train;

use agent::{Answer, Request};
pub use agent::{Args as ProbeArgs, run as probe};
use agents::Agents;
use anyhow::{anyhow, bail};
use kumi_command::BadInput;
use kumi_command::{errln, out};
use kumi_topo::infer::{Inferred, Lengths, fit, infer};
use kumi_topo::trips::{BATCH_ROUNDS, Trip, Trips};
use kumi_topo::{Delay, End, Host, Link, Network, Rate, Switch};
use packet::{LARGE_BYTES, SMALL_BYTES};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use train::Rates;

/// Arguments of `kumi topo discover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hosts, by names that the shell accepts. The network file uses the same names.
    #[arg(long, value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// Name of the network.
    #[arg(long, default_value = "discovered")]
    name: String,
    #[command(flatten)]
    how: How,
}

/// Options for reaching and measuring hosts.
#[derive(Debug, clap::Args)]
pub struct How {
    /// Program that runs a command on a host: `SHELL HOST kumi topo probe`.
    #[arg(long, default_value = "ssh -o BatchMode=yes")]
    shell: String,
    /// Name of the command kumi on the hosts.
    #[arg(long, default_value = "kumi")]
    command: String,
    /// Network that all hosts are on, such as 10.0.0.0/24; by default the first that they share.
    #[arg(long)]
    network: Option<String>,
    /// Minimum number of probes per pair; the shortest round trip is used. If other traffic
    /// disturbs them, up to 24 are sent.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Longest time in seconds for the shell to start kumi on every host.
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    start_limit: u64,
}

/// A host's rate both ways is written if it is below this share of the sum of both directions.
/// Chosen by judgement.
const BOTH_WAYS_SHARE: f64 = 0.8;

/// Runs `kumi topo discover`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = measure(&args.hosts, &args.name, &args.how)?;
    out!("{}", network.to_toml()?);
    Ok(())
}

/// Measures the network between hosts, and prints the time that it took.
pub fn measure(hosts: &[String], name: &str, how: &How) -> anyhow::Result<Network> {
    let mut names = hosts.to_vec();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BadInput(format!("--hosts names {} twice", twice[0])).into());
    }
    if names.len() < 2 {
        return Err(BadInput("--hosts names one host; a network has two or more".into()).into());
    }
    let mut agents = Agents::start(hosts, &how.shell, &how.command)?;
    let start_limit = Duration::from_secs(how.start_limit);
    let heard = agents.meet(how.network.as_deref(), start_limit)?;
    let began = Instant::now();
    let (distances_us, ahead_ns) = round_trips(&mut agents, hosts, how.rounds)?;
    let tree = infer(&distances_us);
    let lengths_us = fit(&tree, &distances_us);
    let guessed_bps = guess(&mut agents, &tree, &distances_us)?;
    let rates = rates::measure(&mut agents, &tree, &guessed_bps, &ahead_ns)?;
    errln!(
        "kumi: {} hosts on {} in {:.1} s",
        hosts.len(),
        match tree.switches {
            1 => "one switch".to_owned(),
            many => format!("{many} switches"),
        },
        began.elapsed().as_secs_f64()
    );
    let (switch_names, doubts) = lldp::names(hosts, &heard, &tree.switch_of, tree.switches);
    for doubt in doubts {
        errln!("kumi: warning: {doubt}");
    }
    let mut network = assembled(hosts, name, &tree, &lengths_us, &rates);
    for (switch, name) in network.switches.iter_mut().zip(switch_names) {
        switch.name = name.unwrap_or_else(|| std::mem::take(&mut switch.name));
    }
    Ok(network)
}

/// Mean pause between a host's probes, in microseconds. A probe takes 0.1 ms on a link of 10 Mb/s.
/// The pause is long enough that the probes of 64 hosts do not queue behind each other (ADR 020).
const PAUSE_US: u64 = 14_000;

/// Returns the round trips of all pairs, in microseconds, and the offset of each host's clock from
/// the first host's, in nanoseconds. Probes all pairs until the round trips are stable, at least
/// `rounds` times.
fn round_trips(
    agents: &mut Agents,
    names: &[String],
    rounds: u32,
) -> anyhow::Result<(Vec<Vec<f64>>, Vec<i64>)> {
    let mut trips = Trips::new(names.len(), rounds);
    loop {
        for (from, peer, trip) in ping(agents, halves(names.len()), BATCH_ROUNDS, SMALL_BYTES)? {
            if let Some(trip) = trip {
                trips.note(from, peer, trip);
            }
        }
        if trips.end_batch() {
            break;
        }
    }
    let table_us = trips.table_us().map_err(|(from, peer)| {
        anyhow!(
            "{} and {} do not reach each other: none of {} probes was answered; check for a firewall that drops UDP",
            names[from],
            names[peer],
            trips.rounds()
        )
    })?;
    let ahead_ns = (0..names.len()).map(|peer| trips.ahead_ns(peer)).collect();
    Ok((table_us, ahead_ns))
}

/// Returns the peers of each host, so that each pair is probed once: the half of the hosts that
/// follows it, round the list.
fn halves(hosts: usize) -> Vec<Vec<u32>> {
    let asks = (0..hosts).map(|from| {
        let half = (1..=hosts / 2).filter(|step| *step * 2 < hosts || from < hosts / 2);
        half.map(|step| ((from + step) % hosts) as u32).collect()
    });
    asks.collect()
}

/// Makes all hosts ping their peers at once. Returns the sender, the peer and the round trip of
/// each pair.
fn ping(
    agents: &mut Agents,
    asks: Vec<Vec<u32>>,
    rounds: u32,
    bytes: usize,
) -> anyhow::Result<Vec<(usize, usize, Option<Trip>)>> {
    let all: Vec<usize> = (0..asks.len()).collect();
    for (from, peers) in asks.into_iter().enumerate() {
        let request = Request::Ping {
            peers,
            rounds,
            bytes,
            pause_us: PAUSE_US,
        };
        agents.request(from, &request)?;
    }
    let mut trips = Vec::new();
    for (from, answer) in agents.answers(&all)?.into_iter().enumerate() {
        let Answer::Pinged { peers } = answer else {
            bail!("unexpected answer from kumi topo probe to pings: {answer:?}");
        };
        trips.extend(peers.into_iter().map(|(peer, ways)| {
            let trip = ways.and_then(|ways| Trip::from_ways(ways.there_ns, ways.back_ns));
            (from, peer as usize, trip)
        }));
    }
    Ok(trips)
}

/// Estimates the rates of the access links, in bits per second, from the additional time of long
/// probes. For host h and peers a and b, the additional time of h's own link is (ha + hb − ab) / 2.
/// A probe crosses the link twice.
fn guess(
    agents: &mut Agents,
    tree: &Inferred,
    distances_us: &[Vec<f64>],
) -> anyhow::Result<Vec<f64>> {
    let hosts = tree.switch_of.len();
    let next = |host: usize| {
        let others = (1..hosts).map(move |step| (host + step) % hosts);
        let mut others: Vec<usize> = others.collect();
        // Peers on the same switch come first.
        others.sort_by_key(|other| tree.switch_of[*other] != tree.switch_of[host]);
        others.truncate(2);
        others
    };
    let asks = (0..hosts).map(|host| next(host).into_iter().map(|other| other as u32).collect());
    let mut longer_us = vec![HashMap::new(); hosts];
    for (from, peer, trip) in ping(agents, asks.collect(), GUESS_ROUNDS, LARGE_BYTES)? {
        if let Some(trip) = trip {
            let longer = (trip.ns as f64 / 1e3 - distances_us[from][peer]).max(0.0);
            longer_us[from].insert(peer, longer);
            longer_us[peer].insert(from, longer);
        }
    }
    let bits = ((LARGE_BYTES - SMALL_BYTES) * 8 * 2) as f64;
    let guessed_bps = (0..hosts).map(|host| {
        let pairs = longer_us[host].iter();
        let own = pairs.clone().flat_map(|(a, to_a)| {
            let others = longer_us[host].iter().filter(move |(b, _)| *b > a);
            let longer_us = &longer_us;
            others.filter_map(move |(b, to_b)| Some((to_a + to_b - longer_us[*a].get(b)?) / 2.0))
        });
        let own = own.fold(f64::NAN, f64::min);
        // With only one peer, each host's link gets half of the time.
        let half = pairs.map(|(_, to)| to / 2.0).fold(f64::INFINITY, f64::min);
        let own = if own.is_nan() { half } else { own };
        bits / own.clamp(0.25, 1e6) * 1e6
    });
    Ok(guessed_bps.collect())
}

const GUESS_ROUNDS: u32 = 4;

fn assembled(
    names: &[String],
    name: &str,
    tree: &Inferred,
    lengths_us: &Lengths,
    rates: &Rates,
) -> Network {
    let rate = |bps: f64| Rate::measured(bps.max(1000.0));
    let least = Rate::from_bps(1000).expect("a rate");
    let both = |bps: [f64; 2]| bps.map(|bps| rate(bps).unwrap_or(least));
    // A length is a round trip, so the latency is half of it.
    let latency = |us: f64| Delay::from_ns((us / 2.0 * 1e3) as u64);
    let hosts = names.iter().enumerate().map(|(at, name)| {
        let [out, back] = rates.hosts[at];
        let sum = rates.both_ways[at];
        let is_held_up = sum > 0.0 && sum < BOTH_WAYS_SHARE * (out + back);
        Host {
            name: name.clone(),
            both_ways: is_held_up.then(|| rate(sum)).flatten(),
        }
    });
    let switches = (1..=tree.switches).map(|number| Switch {
        name: format!("switch{number}"),
    });
    let host_links = tree.switch_of.iter().enumerate().map(|(at, switch)| Link {
        ends: [End::Host(at), End::Switch(*switch)],
        rates: both(rates.hosts[at]),
        latency: latency(lengths_us.hosts[at]),
    });
    let switch_links = tree.links.iter().enumerate().map(|(at, (a, b))| Link {
        ends: [End::Switch(*a), End::Switch(*b)],
        rates: both(rates.links[at]),
        latency: latency(lengths_us.links[at]),
    });
    Network {
        name: name.to_owned(),
        hosts: hosts.collect(),
        switches: switches.collect(),
        links: host_links.chain(switch_links).collect(),
    }
}
