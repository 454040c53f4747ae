//! `kumi topo discover`: the tree of switches, and what its links carry, measured between hosts.
//!
//! ```text
//!   kumi topo discover ──shell──► kumi topo probe on each host     (ends.rs, end.rs)
//!        │                              ▲ UDP, packet.rs
//!        ├─ round trips of all pairs ───┤
//!        ├─ kumi_topo::infer: the tree  │
//!        └─ trains of packets ──────────┘             (rates.rs, crossing.rs)
//! ```

mod crossing;
pub mod end;
mod ends;
mod lldp;
mod packet;
mod rates;

use crate::BadInput;
use anyhow::{anyhow, bail};
use end::{Said, Told};
use ends::Ends;
use kumi_topo::infer::{Inferred, Lengths, fit, infer};
use kumi_topo::trips::{BATCH_ROUNDS, Trip, Trips};
use kumi_topo::{Delay, End, Host, Link, Network, Rate, Switch};
use packet::{LARGE_BYTES, SMALL_BYTES};
use rates::Rates;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Arguments of `kumi topo discover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The hosts, by names that the shell knows; the file has them as they are given.
    #[arg(long, value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// The name of what is found.
    #[arg(long, default_value = "discovered")]
    name: String,
    #[command(flatten)]
    how: How,
}

/// How hosts are reached and measured.
#[derive(Debug, clap::Args)]
pub struct How {
    /// What runs a command on a host: `SHELL HOST kumi topo probe`.
    #[arg(long, default_value = "ssh -o BatchMode=yes")]
    shell: String,
    /// kumi's name on the hosts.
    #[arg(long, default_value = "kumi")]
    command: String,
    /// The network that all hosts are on, as 10.0.0.0/24; by default the first that they share.
    #[arg(long)]
    network: Option<String>,
    /// Least number of probes per pair, of which the shortest counts; other traffic makes it up to 24.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Longest time in seconds for the shell to start kumi on every host.
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    start_limit: u64,
}

/// What a host sends and receives at once is told if it is less than this share of both alone.
const BOTH_WAYS_SHARE: f64 = 0.8;

/// Runs `kumi topo discover`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = measure(&args.hosts, &args.name, &args.how)?;
    out!("{}", network.to_toml()?);
    Ok(())
}

/// Measures the network between hosts, and says how long it took.
pub fn measure(hosts: &[String], name: &str, how: &How) -> anyhow::Result<Network> {
    let mut names = hosts.to_vec();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BadInput(format!("--hosts names {} twice", twice[0])).into());
    }
    if names.len() < 2 {
        return Err(BadInput("--hosts names one host; a network has two or more".into()).into());
    }
    let mut ends = Ends::start(hosts, &how.shell, &how.command)?;
    let start_limit = Duration::from_secs(how.start_limit);
    let heard = ends.meet(how.network.as_deref(), start_limit)?;
    let began = Instant::now();
    let (distances_us, ahead_ns) = round_trips(&mut ends, hosts, how.rounds)?;
    let tree = infer(&distances_us);
    let lengths_us = fit(&tree, &distances_us);
    let guessed_bps = guess(&mut ends, &tree, &distances_us)?;
    let rates = rates::measure(&mut ends, &tree, &guessed_bps, &ahead_ns)?;
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

/// Between a host's probes, about: of 64 hosts on 10 Mb/s one probe of 0.1 ms comes in 0.6 ms, half of them over the middle.
const PAUSE_US: u64 = 14_000;

/// Round trips of all pairs, in microseconds; and how far each host's clock is ahead of the first's, in nanoseconds. Pairs
/// are probed until the round trips stand, at least `rounds` times.
fn round_trips(
    ends: &mut Ends,
    names: &[String],
    rounds: u32,
) -> anyhow::Result<(Vec<Vec<f64>>, Vec<i64>)> {
    let mut trips = Trips::new(names.len(), rounds);
    loop {
        for (from, peer, trip) in ping(ends, halves(names.len()), BATCH_ROUNDS, SMALL_BYTES)? {
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
            "{} and {} do not reach each other: none of {} probes was answered (a firewall that drops UDP?)",
            names[from],
            names[peer],
            trips.rounds()
        )
    })?;
    let ahead_ns = (0..names.len()).map(|peer| trips.ahead_ns(peer)).collect();
    Ok((table_us, ahead_ns))
}

/// Whom each host asks, so that each pair is asked once: the half that follows it round the list.
fn halves(hosts: usize) -> Vec<Vec<u32>> {
    let asks = (0..hosts).map(|from| {
        let half = (1..=hosts / 2).filter(|step| *step * 2 < hosts || from < hosts / 2);
        half.map(|step| ((from + step) % hosts) as u32).collect()
    });
    asks.collect()
}

/// Has each host ping its peers, all at once. Returns from whom, to whom, and the round trip.
fn ping(
    ends: &mut Ends,
    asks: Vec<Vec<u32>>,
    rounds: u32,
    bytes: usize,
) -> anyhow::Result<Vec<(usize, usize, Option<Trip>)>> {
    let all: Vec<usize> = (0..asks.len()).collect();
    for (from, peers) in asks.into_iter().enumerate() {
        let told = Told::Ping {
            peers,
            rounds,
            bytes,
            pause_us: PAUSE_US,
        };
        ends.tell(from, &told)?;
    }
    let mut trips = Vec::new();
    for (from, said) in ends.hear(&all)?.into_iter().enumerate() {
        let Said::Pinged { peers } = said else {
            bail!("an end said {said:?} of its round trips");
        };
        trips.extend(peers.into_iter().map(|(peer, ways)| {
            let trip = ways.and_then(|ways| Trip::from_ways(ways.there_ns, ways.back_ns));
            (from, peer as usize, trip)
        }));
    }
    Ok(trips)
}

/// What hosts' links carry, in bits a second, from how much longer a long probe takes than a short one: of three hosts of one
/// switch, what two take more than the third and its pair do, is a host's own link, which a probe passes there and back.
fn guess(ends: &mut Ends, tree: &Inferred, distances_us: &[Vec<f64>]) -> anyhow::Result<Vec<f64>> {
    let hosts = tree.switch_of.len();
    let next = |host: usize| {
        let others = (1..hosts).map(move |step| (host + step) % hosts);
        let mut others: Vec<usize> = others.collect();
        // Those of the same switch come first, in their order.
        others.sort_by_key(|other| tree.switch_of[*other] != tree.switch_of[host]);
        others.truncate(2);
        others
    };
    let asks = (0..hosts).map(|host| next(host).into_iter().map(|other| other as u32).collect());
    let mut longer_us = vec![HashMap::new(); hosts];
    for (from, peer, trip) in ping(ends, asks.collect(), GUESS_ROUNDS, LARGE_BYTES)? {
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
        // Of two hosts, each a half.
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
    // A distance is there and back.
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
