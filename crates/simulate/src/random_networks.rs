//! Plans on random networks, simulated with ports of 32 KiB to 1 MiB.
//!
//! `KUMI_RANDOM_NETWORKS=1000` tries 1000 networks. A failure prints the seed, and
//! `KUMI_RANDOM_FIRST=SEED` starts with it.

use super::*;
use kumi_coll::{Operation, PORT_BYTES, bound_s, check, uniform};
use kumi_topo::ethernet::PLAIN_TCP;
use kumi_topo::{Delay, Host, Link, Switch};

/// Rates of links, in Mb/s.
const RATES_MBPS: [u64; 8] = [1000, 2500, 5000, 10_000, 25_000, 40_000, 50_000, 100_000];

/// Number of networks that `make test` tries.
const NETWORKS: u64 = 30;

/// Links that have a rate of their own.
#[derive(Clone, Copy, PartialEq)]
enum Rates {
    /// No link: all have the same rate.
    Uniform,
    /// Links between switches.
    PerTrunk,
    /// All links.
    PerLink,
    /// All links. Links between switches have one rate for each direction.
    PerDirection,
}

/// Returns a tree of 3 to 12 hosts and 1 to 5 switches, with links of 1 to 100 Gb/s.
fn network(rng: &mut fastrand::Rng) -> Network {
    let (hosts, switches) = (rng.usize(3..=12), rng.usize(1..=5));
    let kinds = [
        Rates::Uniform,
        Rates::PerTrunk,
        Rates::PerLink,
        Rates::PerDirection,
    ];
    let kind = kinds[rng.usize(..kinds.len())];
    let default_mbps = RATES_MBPS[rng.usize(..RATES_MBPS.len())];
    let mbps = |rng: &mut fastrand::Rng, is_trunk: bool| match kind {
        Rates::Uniform => default_mbps,
        Rates::PerTrunk if !is_trunk => default_mbps,
        _ => RATES_MBPS[rng.usize(..RATES_MBPS.len())],
    };
    let mut links = Vec::new();
    let mut join = |rng: &mut fastrand::Rng, ends: [End; 2], is_trunk: bool| {
        let forward = mbps(rng, is_trunk);
        let reverse = match kind {
            Rates::PerDirection if is_trunk => mbps(rng, is_trunk),
            _ => forward,
        };
        links.push(Link {
            ends,
            rates: [forward, reverse].map(|mbps| Rate::from_bps(mbps * 1_000_000).unwrap()),
            latency: Delay::from_ns(rng.u64(300..10_000)),
        });
    };
    for switch in 1..switches {
        let parent = rng.usize(..switch);
        join(rng, [End::Switch(switch), End::Switch(parent)], true);
    }
    for host in 0..hosts {
        let switch = rng.usize(..switches);
        join(rng, [End::Host(host), End::Switch(switch)], false);
    }
    let names =
        |letter: char, count: usize| (0..count).map(move |index| format!("{letter}{index}"));
    Network {
        name: "random".to_owned(),
        hosts: names('h', hosts)
            .map(|name| Host {
                name,
                both_ways: None,
            })
            .collect(),
        switches: names('s', switches).map(|name| Switch { name }).collect(),
        links,
    }
}

fn operations(root: usize) -> [Operation; 8] {
    [
        Operation::Gather { root },
        Operation::Scatter { root },
        Operation::Broadcast { root },
        Operation::Reduce { root },
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllReduce,
        Operation::AllToAll,
    ]
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Before 2026-11-24, the checker passed 718 of 8000 plans on 1000 networks that lost a frame in
/// ports of 32 KiB to 1 MiB (`docs/perf-log.md`).
#[test]
fn plans__on_random_networks__pass_the_check_and_overflow_no_port() {
    let first = number("KUMI_RANDOM_FIRST", 0);
    for seed in first..first + number("KUMI_RANDOM_NETWORKS", NETWORKS) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let network = network(&mut rng);
        let root = rng.usize(..network.hosts.len());
        let port_queue = Bytes::new(PORT_BYTES << rng.u32(0..6));
        for operation in operations(root) {
            let bytes = 1_u64 << rng.u32(10..21);
            let bytes = bytes + rng.u64(..bytes);
            let plan = uniform(&network, operation, bytes).unwrap();
            let checked = check(&network, &plan);
            assert_eq!(
                checked,
                Ok(()),
                "seed {seed}: {operation:?} of {bytes} bytes"
            );
            if let Err(problem) = simulate(&network, &plan, port_queue) {
                panic!("seed {seed}: {operation:?} of {bytes} bytes: {problem}");
            }
        }
    }
}

/// Compares the simulated time on a star of sixteen hosts with the bound, less TCP's headers.
/// Grants that were 32 KiB early at any rate reached only 0.72 to 0.82 for 64 KiB at 10 Gb/s
/// (`docs/perf-log.md`, 2026-11-24).
#[test]
fn plans__on_fast_single_switch_networks__reach_at_least_88_percent_of_the_bound() {
    let names: Vec<String> = (0..16).map(|host| format!("h{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let gather = Operation::Gather { root: 0 };
    for (gbps, operation, kib, least) in [
        (10, gather, 64, 0.93),
        (10, gather, 1024, 0.95),
        (10, Operation::AllGather, 64, 0.93),
        (10, Operation::AllGather, 1024, 0.95),
        (10, Operation::AllToAll, 64, 0.88),
        (10, Operation::AllToAll, 1024, 0.95),
        (25, gather, 1024, 0.95),
        (25, Operation::AllGather, 1024, 0.95),
        (100, gather, 1024, 0.93),
        (100, Operation::AllGather, 1024, 0.93),
    ] {
        let rate = Rate::from_bps(gbps * 1_000_000_000).unwrap();
        let network = Network::star(&names, rate, Delay::from_ns(5000));
        let plan = uniform(&network, operation, kib << 10).unwrap();
        let outcome = simulate(&network, &plan, Bytes::new(PORT_BYTES)).unwrap();
        let share = bound_s(&network, &plan) / PLAIN_TCP / outcome.seconds;
        assert!(
            share >= least,
            "{operation:?} of {kib} KiB at {gbps} Gb/s: {share:.3}"
        );
    }
}
