//! `kumi topo discover`, compared with the actual network.

use super::{Context, Measurement};
use crate::hosts::background::Background;
use crate::hosts::{COMMAND_SECONDS_MAX, Hosts};
use crate::interval::median;
use anyhow::Context as _;
use kumi_topo::sides::Sides;
use kumi_topo::{End, Network, compare};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

/// Size of a frame of the background traffic, in bits. The traffic has ten bursts per second.
const DATAGRAM_BITS: f64 = 1514.0 * 8.0;
const BURSTS_PER_S: f64 = 10.0;
const BACKGROUND_S: &str = "60";
const DISCARD_PORT: &str = "9";

/// Measures the discovery while other traffic takes this share of each host's link.
pub fn measure(context: &Context<'_>, load_share: f64) -> anyhow::Result<Measurement> {
    let hosts = context.running.hosts;
    let truth = hosts.network()?;
    let _background = background(hosts, &truth, load_share)?;
    let start = Instant::now();
    let output = Command::new(hosts.kumi())
        .args(["topo", "discover", "--hosts", &hosts.names().join(",")])
        .args(["--shell", &hosts.mpi_agent()?, "--command", hosts.kumi()])
        .output()
        .context("kumi topo discover")?;
    let total_s = start.elapsed().as_secs_f64();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "kumi topo discover: {}",
        stderr.trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let discovered = Network::parse("output of kumi topo discover", &text)?;
    let seconds = stderr
        .rsplit(" in ")
        .next()
        .and_then(|end| end.trim().strip_suffix(" s"));
    let discovered = compare::in_order_of(&truth, &discovered);
    let (true_sides, found_sides) = (Sides::of(&truth), Sides::of(&discovered));
    let is_exact = true_sides
        .links()
        .map(|(side, _)| side)
        .eq(found_sides.links().map(|(side, _)| side));
    let mut errors: Vec<f64> = Vec::new();
    for (side, link) in true_sides.links() {
        if let Some(found_link) = found_sides.link(side) {
            let ratio = |direction| {
                found_sides.filled(side, found_link, direction)
                    / true_sides.filled(side, link, direction)
            };
            errors.extend((0..2).map(|direction| (ratio(direction) - 1.0).abs()));
        }
    }
    let mut measurement = Measurement::default();
    let close_count = errors.iter().filter(|error| **error <= 0.1).count();
    for (name, value) in [
        ("exact_ratio", f64::from(u8::from(is_exact))),
        (
            "rates_within_tenth_ratio",
            close_count as f64 / errors.len().max(1) as f64,
        ),
        ("rate_error_median_ratio", median(&errors)),
        (
            "measuring_s",
            seconds
                .and_then(|text| text.parse().ok())
                .unwrap_or(total_s),
        ),
        ("with_start_s", total_s),
        ("switches", truth.switches.len() as f64),
    ] {
        measurement.figures.insert(name.into(), value);
    }
    Ok(measurement)
}

/// Starts the background traffic. Each host sends to the next host of its switch. Over each trunk,
/// a host on either side sends to a host on the other side. Every link carries at least `share` of
/// its rate, or of the rate at which one host can send.
fn background(hosts: &dyn Hosts, truth: &Network, share: f64) -> anyhow::Result<Vec<Background>> {
    let device = |host: &str| hosts.devices(host).first().cloned().unwrap_or_default();
    let mut processes = Vec::new();
    for (from, to, bps) in neighbours(truth).into_iter().chain(crossings(truth)) {
        let datagrams = (share * bps / BURSTS_PER_S / DATAGRAM_BITS).round();
        let (from, to) = (&truth.hosts[from].name, &truth.hosts[to].name);
        let address = hosts.address(to, &device(to))?;
        let datagrams = datagrams.to_string();
        let argv = [
            hosts.kumi(),
            "workload",
            "datagram-bursts",
            &address,
            DISCARD_PORT,
            &datagrams,
            BACKGROUND_S,
        ];
        processes.push(Background::start(hosts, from, &argv, COMMAND_SECONDS_MAX)?);
    }
    Ok(processes)
}

/// Returns each host, the next host of its switch, and the lower rate of their links, in bits per
/// second.
fn neighbours(truth: &Network) -> Vec<(usize, usize, f64)> {
    let mut hosts_by_switch: BTreeMap<End, Vec<(usize, f64)>> = BTreeMap::new();
    for link in &truth.links {
        for (end, opposite) in [(0, 1), (1, 0)] {
            if let End::Host(host) = link.ends[end] {
                let bps = link.rates[0].bps() as f64;
                hosts_by_switch
                    .entry(link.ends[opposite])
                    .or_default()
                    .push((host, bps));
            }
        }
    }
    let groups = hosts_by_switch.values().filter(|members| members.len() > 1);
    groups
        .flat_map(|members| {
            members.iter().enumerate().map(|(index, (host, bps))| {
                let (next, next_bps) = members[(index + 1) % members.len()];
                (*host, next, bps.min(next_bps))
            })
        })
        .collect()
}

/// Returns a sender, a receiver and a rate for each trunk and each direction. The sender is a host
/// before the trunk, the receiver one behind it. The rate is the lowest of the trunk's and the two
/// hosts' own links, in bits per second.
fn crossings(truth: &Network) -> Vec<(usize, usize, f64)> {
    let own_bps = |host: usize| {
        let link = truth
            .links
            .iter()
            .find(|link| link.ends.contains(&End::Host(host)));
        link.map_or(0.0, |link| link.rates[0].bps() as f64)
    };
    let sides = Sides::of(truth);
    let mut crossings = Vec::new();
    for (number, (side, link)) in sides.links().enumerate() {
        let hosts = |is_first| -> Vec<usize> {
            let indices = 0..truth.hosts.len();
            indices.filter(|host| side[*host] == is_first).collect()
        };
        let (firsts, seconds) = (hosts(true), hosts(false));
        if firsts.len() < 2 || seconds.len() < 2 {
            continue; // an access link
        }
        // Each trunk uses another host, so that no access link carries all of the traffic.
        let (first, second) = (
            firsts[number % firsts.len()],
            seconds[number % seconds.len()],
        );
        let bps = own_bps(first).min(own_bps(second));
        crossings.push((first, second, bps.min(link.bps[0])));
        crossings.push((second, first, bps.min(link.bps[1])));
    }
    crossings
}
