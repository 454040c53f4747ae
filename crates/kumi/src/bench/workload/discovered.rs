//! `kumi topo discover` beside the network that is really there.

use super::{Context, Measured};
use crate::bench::hosts::background::Background;
use crate::bench::hosts::{COMMAND_SECONDS_MAX, Hosts};
use crate::bench::interval::median;
use anyhow::Context as _;
use kumi_topo::{End, Network, Paths};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

/// Payload of the background's datagrams, ten bursts a second.
const DATAGRAM_BITS: f64 = 1514.0 * 8.0;
const BURSTS_PER_S: f64 = 10.0;
const BACKGROUND_S: &str = "60";
const DISCARD_PORT: &str = "9";

/// Which hosts are on the first host's side of a link.
type Side = Vec<bool>;

/// Measures with this share of each host's link taken by others' traffic.
pub fn measure(context: &Context<'_>, load_share: f64) -> anyhow::Result<Measured> {
    let hosts = context.running.hosts;
    let truth = hosts.network()?;
    let _background = background(hosts, &truth, load_share)?;
    let began = Instant::now();
    let output = Command::new(hosts.kumi())
        .args(["topo", "discover", "--hosts", &hosts.names().join(",")])
        .args(["--shell", &hosts.mpi_agent()?, "--command", hosts.kumi()])
        .output()
        .context("kumi topo discover")?;
    let total_s = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "kumi topo discover: {}",
        said.trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let found = Network::parse("what was discovered", &text)?;
    let seconds = said
        .rsplit(" in ")
        .next()
        .and_then(|end| end.trim().strip_suffix(" s"));
    let (there, seen) = (links(&truth)?, links(&found)?);
    let is_exact = there.keys().eq(seen.keys());
    let mut errors: Vec<f64> = Vec::new();
    for (side, rates) in &there {
        if let Some(found) = seen.get(side) {
            errors.extend((0..2).map(|way| (found[way] / rates[way] - 1.0).abs()));
        }
    }
    let mut measured = Measured::default();
    let within = errors.iter().filter(|error| **error <= 0.1).count();
    for (name, value) in [
        ("exact_ratio", f64::from(u8::from(is_exact))),
        (
            "rates_within_tenth_ratio",
            within as f64 / errors.len().max(1) as f64,
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
        measured.figures.insert(name.into(), value);
    }
    Ok(measured)
}

/// What each link carries, there and back, in bits a second, by the hosts that it parts: no more than the hosts of either
/// side can fill it with.
fn links(network: &Network) -> anyhow::Result<BTreeMap<Side, [f64; 2]>> {
    let paths = Paths::new(network);
    let hosts = network.hosts.len();
    let mut order: Vec<usize> = (0..hosts).collect();
    order.sort_by_key(|host| &network.hosts[*host].name);
    let rate = |link: usize, way: usize| network.links[link].rates[way].bps() as f64;
    // Of a host's link, from it and to it.
    let mut own = vec![[0.0; 2]; hosts];
    for (link, of) in network.links.iter().enumerate() {
        for (end, other) in [(0, 1), (1, 0)] {
            if let End::Host(host) = of.ends[end] {
                own[host] = [rate(link, end), rate(link, other)];
            }
        }
    }
    let mut by_side = BTreeMap::new();
    for link in 0..network.links.len() {
        let first = order[0];
        let is_near = |host: usize| {
            let passed = paths.links(first, host);
            host == first || !passed.iter().any(|passed| passed.link() == link)
        };
        let side: Side = order.iter().map(|host| is_near(*host)).collect();
        // Which way leads away from the first host.
        let far = order.iter().find(|host| !is_near(**host)).copied();
        let far = far.context("a link that parts nobody")?;
        let away = paths
            .links(first, far)
            .into_iter()
            .find(|passed| passed.link() == link);
        let away = away.map_or(0, |passed| passed.way());
        let sum = |is_near_side: bool, way: usize| -> f64 {
            let on = (0..hosts).filter(|host| is_near(*host) == is_near_side);
            on.map(|host| own[host][way]).sum()
        };
        let there = rate(link, away).min(sum(true, 0)).min(sum(false, 1));
        let back = rate(link, 1 - away).min(sum(false, 0)).min(sum(true, 1));
        by_side.insert(side, [there, back]);
    }
    Ok(by_side)
}

/// Traffic of others: each host sends to the next of its switch.
fn background(hosts: &dyn Hosts, truth: &Network, share: f64) -> anyhow::Result<Vec<Background>> {
    let device = |host: &str| hosts.devices(host).first().cloned().unwrap_or_default();
    let mut on: BTreeMap<End, Vec<(usize, f64)>> = BTreeMap::new();
    for link in &truth.links {
        for (end, other) in [(0, 1), (1, 0)] {
            if let End::Host(host) = link.ends[end] {
                let bps = link.rates[0].bps() as f64;
                on.entry(link.ends[other]).or_default().push((host, bps));
            }
        }
    }
    let mut all = Vec::new();
    for members in on.values().filter(|members| members.len() > 1) {
        for (at, (host, bps)) in members.iter().enumerate() {
            let (next, next_bps) = members[(at + 1) % members.len()];
            let burst = (share * bps.min(next_bps) / BURSTS_PER_S / DATAGRAM_BITS).round();
            let next = &truth.hosts[next].name;
            let address = hosts.address(next, &device(next))?;
            let count = burst.to_string();
            let argv = [
                hosts.kumi(),
                "workload",
                "datagram-bursts",
                &address,
                DISCARD_PORT,
                &count,
                BACKGROUND_S,
            ];
            let host = &truth.hosts[*host].name;
            all.push(Background::start(hosts, host, &argv, COMMAND_SECONDS_MAX)?);
        }
    }
    Ok(all)
}
