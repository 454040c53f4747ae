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
#[cfg(test)]
mod script;
mod train;

use agent::{Answer, Request};
pub use agent::{Args as ProbeArgs, run as probe};
use agents::Agents;
use anyhow::anyhow;
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
    options: How,
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
    let network = measure(&args.hosts, &args.name, &args.options)?;
    out!("{}", network.to_toml()?);
    Ok(())
}

/// Measures the network between hosts, and prints the time that it took.
pub fn measure(hosts: &[String], name: &str, options: &How) -> anyhow::Result<Network> {
    let mut names = hosts.to_vec();
    names.sort();
    if names.iter().any(String::is_empty) {
        let problem = format!(
            "--hosts `{}` has an empty name: expected names of hosts, such as n1,n2",
            hosts.join(",")
        );
        return Err(BadInput(problem).into());
    }
    if let Some(duplicate) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let problem = format!("--hosts names {} twice; name it once", duplicate[0]);
        return Err(BadInput(problem).into());
    }
    if let [only] = names.as_slice() {
        let problem = format!("{only} is the only host: expected two or more");
        return Err(BadInput(problem).into());
    }
    let mut agents = Agents::start(hosts, &options.shell, &options.command)?;
    let start_limit = Duration::from_secs(options.start_limit);
    let lldp_names = agents.exchange_addresses(options.network.as_deref(), start_limit)?;
    let start = Instant::now();
    let (distances_us, clock_offsets_ns) = round_trips(&mut agents, hosts, options.rounds)?;
    let tree = infer(&distances_us);
    let lengths_us = fit(&tree, &distances_us);
    let guessed_bps = guess(&mut agents, &tree, &distances_us)?;
    let rates = rates::measure(&mut agents, &tree, &guessed_bps, &clock_offsets_ns)?;
    errln!(
        "kumi: {} hosts on {} in {:.1} s",
        hosts.len(),
        match tree.switches {
            1 => "one switch".to_owned(),
            count => format!("{count} switches"),
        },
        start.elapsed().as_secs_f64()
    );
    let (switch_names, doubts) = lldp::names(hosts, &lldp_names, &tree.switch_of, tree.switches);
    for doubt in doubts {
        errln!("kumi: warning: {doubt}");
    }
    let mut network = assemble(hosts, name, &tree, &lengths_us, &rates);
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
    let clock_offsets_ns = (0..names.len()).map(|peer| trips.ahead_ns(peer)).collect();
    Ok((table_us, clock_offsets_ns))
}

/// Returns the peers of each host, so that each pair is probed once: the half of the hosts that
/// follows it, round the list.
fn halves(hosts: usize) -> Vec<Vec<u32>> {
    let peers = (0..hosts).map(|from| {
        let half = (1..=hosts / 2).filter(|step| *step * 2 < hosts || from < hosts / 2);
        half.map(|step| ((from + step) % hosts) as u32).collect()
    });
    peers.collect()
}

/// Makes all hosts ping their peers at once. Returns the sender, the peer and the round trip of
/// each pair.
fn ping(
    agents: &mut Agents,
    peers_by_host: Vec<Vec<u32>>,
    rounds: u32,
    bytes: usize,
) -> anyhow::Result<Vec<(usize, usize, Option<Trip>)>> {
    let hosts: Vec<usize> = (0..peers_by_host.len()).collect();
    for (from, peers) in peers_by_host.into_iter().enumerate() {
        let request = Request::Ping {
            peers,
            rounds,
            bytes,
            pause_us: PAUSE_US,
        };
        agents.request(from, &request)?;
    }
    let mut trips = Vec::new();
    for (from, answer) in agents.answers(&hosts)?.into_iter().enumerate() {
        let Answer::Pinged { peers } = answer else {
            return Err(agents.mismatch(from, &answer, "pinged"));
        };
        trips.extend(peers.into_iter().map(|(peer, times)| {
            let trip = times.and_then(|times| Trip::from_ways(times.there_ns, times.back_ns));
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
    let peers_of = |host: usize| {
        let peers = (1..hosts).map(move |step| (host + step) % hosts);
        let mut peers: Vec<usize> = peers.collect();
        // Peers on the same switch come first.
        peers.sort_by_key(|peer| tree.switch_of[*peer] != tree.switch_of[host]);
        peers.truncate(2);
        peers
    };
    let peers = (0..hosts).map(|host| peers_of(host).into_iter().map(|peer| peer as u32).collect());
    let mut extra_us = vec![HashMap::new(); hosts];
    for (from, peer, trip) in ping(agents, peers.collect(), GUESS_ROUNDS, LARGE_BYTES)? {
        if let Some(trip) = trip {
            let trip_extra_us = (trip.ns as f64 / 1e3 - distances_us[from][peer]).max(0.0);
            extra_us[from].insert(peer, trip_extra_us);
            extra_us[peer].insert(from, trip_extra_us);
        }
    }
    let bits = ((LARGE_BYTES - SMALL_BYTES) * 8 * 2) as f64;
    let guessed_bps = (0..hosts).map(|host| {
        let pairs = extra_us[host].iter();
        let estimates = pairs.clone().flat_map(|(a, a_us)| {
            let peers = extra_us[host].iter().filter(move |(b, _)| *b > a);
            let extra_us = &extra_us;
            peers.filter_map(move |(b, b_us)| Some((a_us + b_us - extra_us[*a].get(b)?) / 2.0))
        });
        let own_us = estimates.fold(f64::NAN, f64::min);
        // With only one peer, each host's link gets half of the time.
        let half_us = pairs.map(|(_, us)| us / 2.0).fold(f64::INFINITY, f64::min);
        let own_us = if own_us.is_nan() { half_us } else { own_us };
        bits / own_us.clamp(0.25, 1e6) * 1e6
    });
    Ok(guessed_bps.collect())
}

const GUESS_ROUNDS: u32 = 4;

fn assemble(
    names: &[String],
    name: &str,
    tree: &Inferred,
    lengths_us: &Lengths,
    rates: &Rates,
) -> Network {
    let rate = |bps: f64| Rate::measured(bps.max(1000.0));
    let least = Rate::from_bps(1000).expect("a rate");
    let link_rates = |bps: [f64; 2]| bps.map(|bps| rate(bps).unwrap_or(least));
    // A length is a round trip, so the latency is half of it.
    let latency = |us: f64| Delay::from_ns((us / 2.0 * 1e3) as u64);
    let hosts = names.iter().enumerate().map(|(host, name)| {
        let [send_bps, receive_bps] = rates.hosts[host];
        let sum_bps = rates.both_ways[host];
        let is_held_up = sum_bps > 0.0 && sum_bps < BOTH_WAYS_SHARE * (send_bps + receive_bps);
        Host {
            name: name.clone(),
            both_ways: is_held_up.then(|| rate(sum_bps)).flatten(),
        }
    });
    let switches = (1..=tree.switches).map(|number| Switch {
        name: format!("switch{number}"),
    });
    let host_links = tree
        .switch_of
        .iter()
        .enumerate()
        .map(|(host, switch)| Link {
            ends: [End::Host(host), End::Switch(*switch)],
            rates: link_rates(rates.hosts[host]),
            latency: latency(lengths_us.hosts[host]),
        });
    let switch_links = tree.links.iter().enumerate().map(|(link, (a, b))| Link {
        ends: [End::Switch(*a), End::Switch(*b)],
        rates: link_rates(rates.links[link]),
        latency: latency(lengths_us.links[link]),
    });
    Network {
        name: name.to_owned(),
        hosts: hosts.collect(),
        switches: switches.collect(),
        links: host_links.chain(switch_links).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    fn options(shell: String) -> How {
        How {
            shell,
            command: "kumi".to_owned(),
            network: None,
            rounds: 1,
            start_limit: 20,
        }
    }

    fn error_of(hosts: &[&str], shell: String) -> anyhow::Error {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        measure(&hosts, "n", &options(shell)).unwrap_err()
    }

    #[test]
    fn hosts__invalid__are_named_with_what_is_accepted() {
        for (hosts, message) in [
            (&["a", "b", "a"][..], "--hosts names a twice; name it once"),
            (&["a"][..], "a is the only host: expected two or more"),
            (
                &["a", "", "b"][..],
                "--hosts `a,,b` has an empty name: expected names of hosts, such as n1,n2",
            ),
        ] {
            let error = error_of(hosts, "false".to_owned());
            assert_eq!(error.to_string(), message);
            assert!(error.is::<BadInput>(), "{message}");
        }
    }

    #[test]
    fn pings__unanswered_or_confused__name_the_hosts() {
        let lost = r#"case $host$line in
            a*ping*) echo '{"pinged":{"peers":[[1,null]]}}';;
            *ping*) echo '{"pinged":{"peers":[]}}';;
        esac"#;
        let confused = r#"case $line in *ping*) echo '{"sent":{"number":1}}';; esac"#;
        for (body, test, message) in [
            (
                lost,
                "lost",
                "a and bb do not reach each other: none of 4 probes was answered; \
                 check for a firewall that drops UDP",
            ),
            (
                confused,
                "confused",
                "a: kumi topo probe answered `sent 1`: expected `pinged`; \
                 use the same release of kumi on all hosts",
            ),
        ] {
            let script = Script::new(test, body);
            let error = error_of(&["a", "bb"], script.shell());
            assert_eq!(error.to_string(), message);
        }
    }
}
