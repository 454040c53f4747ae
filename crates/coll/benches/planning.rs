//! Measures the cost of planning by the number of hosts: `cargo bench -p kumi-coll`.
//!
//! Prints one JSON object per line: operation, hosts, transfers of the plan, and milliseconds of
//! the planning, of one host's program and, if requested, of the proof. A value is the median of
//! the runs within one second, at least 3 and at most 101.

use kumi_coll::{Grain, Operation, Plan, Program, check, gather, uniform};
use kumi_topo::{Delay, End, Host, Link, Network, Rate, Switch};
use std::time::{Duration, Instant};

/// Returns a network of hosts at 1 Gb/s on leaf switches of 48, with trunks of 10 Gb/s to one root
/// switch.
fn network(hosts: usize) -> Network {
    let leaves = hosts.div_ceil(48);
    let link = |ends, gbps: u64| Link {
        ends,
        rates: [Rate::from_bps(gbps * 1_000_000_000).expect("a rate"); 2],
        latency: Delay::from_ns(10_000),
    };
    let trunks = (1..=leaves).map(|leaf| link([End::Switch(leaf), End::Switch(0)], 10));
    // Hosts with adjacent numbers are on different switches.
    let leaf_of = |host: usize| 1 + host * 7919 % leaves;
    let access = (0..hosts).map(|host| link([End::Host(host), End::Switch(leaf_of(host))], 1));
    let links = trunks.chain(access).collect();
    let names = |letter: char, count: usize| (0..count).map(move |id| format!("{letter}{id}"));
    Network {
        name: "leaves".to_owned(),
        hosts: names('n', hosts)
            .map(|name| Host {
                name,
                both_ways: None,
            })
            .collect(),
        switches: names('s', leaves + 1).map(|name| Switch { name }).collect(),
        links,
    }
}

/// Returns the median time of a function, in milliseconds. It runs for one second, at least 3 and
/// at most 101 times.
fn median_ms<T>(mut run: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || (start.elapsed() < Duration::from_secs(1) && times.len() < 101) {
        let run_start = Instant::now();
        std::hint::black_box(run());
        times.push(run_start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn report(name: &str, hosts: usize, is_proved: bool, plan: impl Fn(&Network) -> Plan) {
    let network = network(hosts);
    let planning_ms = median_ms(|| plan(&network));
    let planned = plan(&network);
    let program_ms = median_ms(|| Program::new(&planned, hosts / 2, Grain::default()));
    let proof_ms =
        is_proved.then(|| median_ms(|| check(&network, &planned).expect("a sound plan")));
    let proof_ms = proof_ms.map_or("null".to_owned(), |ms| format!("{ms:.3}"));
    println!(
        "{{\"operation\":\"{name}\",\"hosts\":{hosts},\"transfers\":{},\"planning_ms\":{planning_ms:.3},\
         \"program_ms\":{program_ms:.3},\"proof_ms\":{proof_ms}}}",
        planned.transfers.len()
    );
}

fn main() {
    let root = 0;
    let uniform_plan = |operation: Operation| {
        move |network: &Network| uniform(network, operation, 1 << 18).expect("a plan")
    };
    for hosts in [16, 64, 256, 1000] {
        report("all-to-all", hosts, true, uniform_plan(Operation::AllToAll));
        report(
            "all-reduce",
            hosts,
            hosts < 1000,
            uniform_plan(Operation::AllReduce),
        );
    }
    for hosts in [16, 64, 256, 1000, 10_000] {
        let paper_gather = |network: &Network| gather(network, root, 1 << 18).expect("a plan");
        report("gather, the paper's", hosts, true, paper_gather);
        report(
            "gather by turns",
            hosts,
            true,
            uniform_plan(Operation::Gather { root }),
        );
    }
}
