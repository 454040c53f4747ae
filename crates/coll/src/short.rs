//! Short vectors and blocks, where it counts how many messages follow one another and not how long they are.
//!
//! A vector goes down a tree of hosts, or up it, or both; blocks go from each host to each. What the switches' ports hold at
//! once is bounded as in any plan: of tiny messages nothing waits for anything but what it needs.

use crate::plan::{Blocks, Operation, PORT_BYTES, Plan};
use crate::schedule::Schedule;
use kumi_topo::{Network, Paths};

/// Vectors up to this are tried: on 1 Gb/s 2 ms, as much as some forty hops through switches.
const VECTOR_BYTES_MAX: u64 = 256 << 10;

/// Children of a host: their messages cost it as much as one hop takes, some 50 µs on 1 Gb/s.
const CHILDREN_MAX: usize = 8;

/// Hosts that send to each other directly: beyond, a host's messages cost more than a ring's hops.
const DIRECT_HOSTS_MAX: usize = 64;

/// The quicker of a plan for long vectors and one for short, by the planner's reckoning.
pub(crate) fn or_short(network: &Network, paths: &Paths, long: Plan) -> Plan {
    let vector_bytes: u64 = long.block_bytes.iter().sum();
    let hosts = network.hosts.len();
    let short = match long.operation {
        Operation::AllGather => {
            let most = long.block_bytes.iter().max().copied().unwrap_or(0);
            let is_short = hosts <= DIRECT_HOSTS_MAX && most * hosts as u64 <= PORT_BYTES;
            is_short.then(|| direct(paths, &long))
        }
        _ if vector_bytes > VECTOR_BYTES_MAX => None,
        Operation::Broadcast { .. } => Some(on_tree(paths, &long, false, true)),
        Operation::Reduce { .. } => Some(on_tree(paths, &long, true, false)),
        Operation::AllReduce => Some(on_tree(paths, &long, true, true)),
        _ => None,
    };
    match short {
        Some(short) if short.predicted_s < long.predicted_s => short,
        _ => long,
    }
}

/// Each host's block to each other, nearest first.
fn direct(paths: &Paths, long: &Plan) -> Plan {
    let hosts = long.order.len();
    let mut schedule = Schedule::new(paths);
    for step in 1..hosts {
        for place in 0..hosts {
            let ends = (long.order[place], long.order[(place + step) % hosts]);
            let bytes = long.block_bytes[place];
            schedule.add(ends, Blocks::one(place), bytes, false, &[]);
        }
    }
    schedule.into_plan(long.operation, long.order.clone(), long.block_bytes.clone())
}

/// Up a tree to the first host of the order, combined on the way, and down it again.
fn on_tree(paths: &Paths, long: &Plan, goes_up: bool, goes_down: bool) -> Plan {
    let order = &long.order;
    let all = Blocks::run(0, long.block_bytes.len());
    let bytes: u64 = long.block_bytes.iter().sum();
    let mut edges = Vec::new();
    branch(0, order.len(), &mut edges);
    let mut schedule = Schedule::new(paths);
    let mut came: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
    if goes_up {
        // Children stand behind their parents.
        for (parent, child) in edges.iter().rev() {
            let ends = (order[*child], order[*parent]);
            let up = schedule.add(ends, all.clone(), bytes, true, &came[*child]);
            came[*parent].push(up);
        }
    }
    if goes_down {
        for (parent, child) in &edges {
            let ends = (order[*parent], order[*child]);
            let down = schedule.add(ends, all.clone(), bytes, false, &came[*parent]);
            came[*child] = vec![down];
        }
    }
    schedule.into_plan(long.operation, order.clone(), long.block_bytes.clone())
}

/// Edges, as places, of a tree on the places from `first` on: its root is the first, and each child has a run of those
/// that follow, which are near each other. Parents come before their children.
fn branch(first: usize, end: usize, edges: &mut Vec<(usize, usize)>) {
    let below = end - first - 1;
    let children = below.min(CHILDREN_MAX);
    let edge = |child: usize| first + 1 + below * child / children.max(1);
    for child in 0..children {
        edges.push((first, edge(child)));
    }
    for child in 0..children {
        branch(edge(child), edge(child + 1), edges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, uniform};
    use kumi_topo::{Delay, Rate};

    fn star(hosts: usize) -> Network {
        let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        Network::star(&names, rate, Delay::from_ns(25_000))
    }

    #[test]
    fn short__operations__take_as_many_hops_as_the_tree_is_deep() {
        let hop_s = 50e-6;
        for (hosts, operation, hops) in [
            (9, Operation::Broadcast { root: 3 }, 1.0),
            (9, Operation::Reduce { root: 3 }, 1.0),
            (9, Operation::AllReduce, 2.0),
            (64, Operation::AllReduce, 4.0),
            (16, Operation::AllGather, 1.0),
        ] {
            let network = star(hosts);
            let plan = uniform(&network, operation, 64).unwrap();
            assert_eq!(check(&network, &plan), Ok(()), "{operation:?}");
            assert!(
                plan.predicted_s < hop_s * (hops + 0.5),
                "{operation:?} of {hosts}: {} us",
                plan.predicted_s * 1e6
            );
        }
    }

    #[test]
    fn long__vectors__go_round_rings_and_along_chains_as_before() {
        let network = star(8);
        for operation in [Operation::AllReduce, Operation::Broadcast { root: 0 }] {
            let plan = uniform(&network, operation, 4 << 20).unwrap();
            assert!(plan.transfers.iter().all(|transfer| {
                let sent = plan
                    .transfers
                    .iter()
                    .filter(|other| other.from == transfer.from);
                sent.map(|other| other.to).all(|to| to == transfer.to)
            }));
        }
    }
}
