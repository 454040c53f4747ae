//! Short vectors and blocks, where it counts how many messages follow one another and not how long they are.
//!
//! A vector goes down a tree of hosts, or up it, or both; blocks go from each host to each. What the switches' ports hold at
//! once is bounded as in any plan: of tiny messages nothing waits for anything but what it needs.

use crate::plan::{Blocks, Operation, PORT_BYTES, Plan};
use crate::schedule::Schedule;
use crate::sites::Sites;
use kumi_topo::{Network, Paths};

/// Vectors up to this are tried: on 1 Gb/s 2 ms, as much as some forty hops through switches. Between sites, which may be
/// far apart, all are.
pub(crate) const VECTOR_BYTES_MAX: u64 = 256 << 10;

/// What a message costs a host, in seconds: while one is on its way, so many others can be sent.
const MESSAGE_S: f64 = 6e-6;

/// Children of a host, by how long a message is on its way.
const CHILDREN: std::ops::RangeInclusive<usize> = 8..=64;

/// Hosts that send to each other directly: beyond, a host's messages cost more than a ring's hops.
const DIRECT_HOSTS_MAX: usize = 64;

/// Plans an all-reduce of a vector that is not cut; of nothing, a barrier.
pub(crate) fn uncut(network: &Network, paths: &Paths, order: Vec<usize>, bytes: u64) -> Plan {
    let nobody = Plan {
        operation: Operation::AllReduce,
        order,
        block_bytes: vec![bytes],
        transfers: Vec::new(),
        port_bytes: PORT_BYTES,
        predicted_s: f64::INFINITY,
    };
    or_short(network, paths, nobody)
}

/// The quicker of a plan for long vectors and one for short, by the planner's reckoning.
pub(crate) fn or_short(network: &Network, paths: &Paths, long: Plan) -> Plan {
    let vector_bytes: u64 = long.block_bytes.iter().sum();
    let hosts = network.hosts.len();
    let sites = Sites::new(network, paths, &long.order);
    let trees = |goes_up: bool, goes_down: bool| {
        let widest = children_max(paths, &long.order);
        let mut trees = vec![tree(&long.order, None, widest)];
        if let Some(sites) = &sites {
            trees.push(tree(&long.order, Some(sites), widest));
            // Long vectors: a host sends each to each of its children.
            trees.push(tree(&long.order, Some(sites), 2));
            trees.push(tree(&long.order, Some(sites), 1));
        }
        let plans = trees
            .iter()
            .map(|edges| on_tree(paths, &long, edges, goes_up, goes_down));
        plans.collect()
    };
    let short: Vec<Plan> = match long.operation {
        Operation::AllGather => {
            let most = long.block_bytes.iter().max().copied().unwrap_or(0);
            let is_short = hosts <= DIRECT_HOSTS_MAX && most * hosts as u64 <= PORT_BYTES;
            is_short.then(|| direct(paths, &long)).into_iter().collect()
        }
        _ if sites.is_none() && vector_bytes > VECTOR_BYTES_MAX => Vec::new(),
        Operation::Broadcast { .. } => trees(false, true),
        Operation::Reduce { .. } => trees(true, false),
        Operation::AllReduce => trees(true, true),
        _ => Vec::new(),
    };
    let mut best = long;
    for plan in short {
        if plan.predicted_s < best.predicted_s {
            best = plan;
        }
    }
    best
}

/// Children of a host at most: while the first message is on its way, the others are sent.
fn children_max(paths: &Paths, order: &[usize]) -> usize {
    let next = order.iter().zip(order.iter().skip(1));
    let latencies = next.map(|(a, b)| paths.latency_s(*a, *b));
    let least_s = latencies.fold(f64::INFINITY, f64::min);
    let fit = (least_s / MESSAGE_S).min(*CHILDREN.end() as f64) as usize;
    fit.clamp(*CHILDREN.start(), *CHILDREN.end())
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
fn on_tree(
    paths: &Paths,
    long: &Plan,
    edges: &[(usize, usize)],
    goes_up: bool,
    goes_down: bool,
) -> Plan {
    let all = Blocks::run(0, long.block_bytes.len());
    let bytes: u64 = long.block_bytes.iter().sum();
    let mut schedule = Schedule::new(paths);
    let mut came: Vec<Vec<usize>> = vec![Vec::new(); long.order.len()];
    if goes_up {
        // Children stand behind their parents.
        for (parent, child) in edges.iter().rev() {
            let up = schedule.add((*child, *parent), all.clone(), bytes, true, &came[*child]);
            came[*parent].push(up);
        }
    }
    if goes_down {
        for (parent, child) in edges {
            let down = schedule.add((*parent, *child), all.clone(), bytes, false, &came[*parent]);
            came[*child] = vec![down];
        }
    }
    schedule.into_plan(long.operation, long.order.clone(), long.block_bytes.clone())
}

/// Edges between hosts of a tree with so many children a host, from the first of the order; between sites, of a tree of the
/// first host of each, so that what goes to a site goes there once. Parents come before their children.
fn tree(order: &[usize], sites: Option<&Sites>, children_max: usize) -> Vec<(usize, usize)> {
    let mut edges = Vec::new();
    match sites {
        None => branch(order, children_max, &mut edges),
        Some(sites) => {
            let firsts: Vec<usize> = sites.members.iter().map(|members| members[0]).collect();
            branch(&firsts, children_max, &mut edges);
            for members in &sites.members {
                branch(members, children_max, &mut edges);
            }
        }
    }
    edges
}

/// Edges of a tree on these hosts: its root is the first, and each child has a run of those that follow, which are near each
/// other.
fn branch(hosts: &[usize], children_max: usize, edges: &mut Vec<(usize, usize)>) {
    let Some((root, below)) = hosts.split_first() else {
        return;
    };
    let children = below.len().min(children_max);
    let edge = |child: usize| below.len() * child / children.max(1);
    for child in 0..children {
        edges.push((*root, below[edge(child)]));
    }
    for child in 0..children {
        branch(&below[edge(child)..edge(child + 1)], children_max, edges);
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
