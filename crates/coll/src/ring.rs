//! All-gather, reduce-scatter and all-reduce in a ring of hosts.
//!
//! The ring is a walk that crosses no link twice in one direction. In each of its steps every
//! transfer therefore has its links to itself, in any tree (Faraj, Patarasuk and Yuan; Patarasuk
//! and Yuan 2009). Over a link that is slower than access links, the ring sends N − 1 blocks where
//! half as many suffice. `hierarchical.rs` has plans for such links.

use crate::exchange::check_sizes;
use crate::hierarchical::{BySites, parts};
use crate::plan::{Blocks, Operation, Plan, PlanError};
use crate::schedule::Schedule;
use crate::short::{PART_BYTES_MIN, Short, plan_short_blocks, plan_short_vector};
use crate::sites::Sites;
use crate::vector::Vector;
use kumi_topo::{Network, Paths};

/// Most hosts in several sites for which a ring of all hosts is tried as well (ADR 034).
const RINGED_HOSTS_MAX: usize = 128;

/// Plans an all-gather: every host receives the block of every host. `block_bytes` is by host.
///
/// # Errors
/// The number of sizes differs from the number of hosts.
pub fn all_gather(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    plan_blocks(network, block_bytes, Operation::AllGather)
}

/// Plans a reduce-scatter: every host receives its block, combined over all hosts. `block_bytes` is
/// by host.
///
/// # Errors
/// The number of sizes differs from the number of hosts.
pub fn reduce_scatter(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    plan_blocks(network, block_bytes, Operation::ReduceScatter)
}

/// Plans an all-reduce: every host receives the vector, combined over all hosts. It is a
/// reduce-scatter and an all-gather of parts, one or several per host. For an empty vector it is a
/// barrier.
pub fn all_reduce(network: &Network, vector: Vector) -> Plan {
    let hosts = network.hosts.len();
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    let operation = Operation::AllReduce;
    let short = plan_short_vector(network, &paths, operation, &order, vector);
    if hosts < 2 || vector.bytes() < PART_BYTES_MIN * hosts as u64 {
        let empty = || Schedule::new(&paths).into_plan(operation, order, vec![vector.bytes()]);
        return short.map_or_else(empty, |short| short.plan);
    }
    let sites = Sites::new(network, &paths, &order);
    let parts = sites.as_ref().map_or(hosts, |_| parts(hosts, vector));
    let block_bytes = vector.divide(parts);
    let sites = sites.as_ref();
    quickest(network, &paths, sites, operation, order, block_bytes, short)
}

fn plan_blocks(
    network: &Network,
    block_bytes: &[u64],
    operation: Operation,
) -> Result<Plan, PlanError> {
    check_sizes(network.hosts.len(), block_bytes)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    let block_bytes: Vec<u64> = order.iter().map(|host| block_bytes[*host]).collect();
    let short = plan_short_blocks(&paths, operation, &order, &block_bytes);
    let sites = Sites::new(network, &paths, &order);
    let sites = sites.as_ref();
    Ok(quickest(
        network,
        &paths,
        sites,
        operation,
        order,
        block_bytes,
        short,
    ))
}

/// Returns the plan with the least predicted time: the short one, a ring of all hosts, or a plan by
/// sites.
fn quickest(
    network: &Network,
    paths: &Paths,
    sites: Option<&Sites>,
    operation: Operation,
    order: Vec<usize>,
    block_bytes: Vec<u64>,
    short: Option<Short>,
) -> Plan {
    let minimum_s = minimum_s(paths, sites, operation, &order);
    Short::choose(short, minimum_s, || {
        long(network, paths, sites, operation, order, block_bytes)
    })
}

/// Returns the faster one of a ring of all hosts and, with several sites, a plan by sites.
fn long(
    network: &Network,
    paths: &Paths,
    sites: Option<&Sites>,
    operation: Operation,
    order: Vec<usize>,
    block_bytes: Vec<u64>,
) -> Plan {
    let by_sites = sites.and_then(|sites| {
        let input = BySites {
            network,
            paths,
            sites,
            operation,
            order: &order,
            block_bytes: &block_bytes,
        };
        input.plan()
    });
    match by_sites {
        // With this many hosts, a ring would double the planning time. It is slower over a slow
        // link between sites anyway.
        Some(plan) if order.len() > RINGED_HOSTS_MAX => plan,
        by_sites => {
            let ring = ring(paths, operation, order, block_bytes);
            match by_sites {
                Some(by_sites) if by_sites.predicted_s < ring.predicted_s => by_sites,
                _ => ring,
            }
        }
    }
}

/// Returns a lower bound of a long plan's time, in seconds: the sum of a ring's hop latencies,
/// except the longest. An all-reduce has it twice, for the block and for its sum. With several
/// sites the bound is 0.
fn minimum_s(paths: &Paths, sites: Option<&Sites>, operation: Operation, order: &[usize]) -> f64 {
    if sites.is_some() {
        return 0.0;
    }
    let next = order.iter().cycle().skip(1);
    let hops = order.iter().zip(next);
    let hops = hops.map(|(from, to)| paths.latency_s(*from, *to));
    let (sum_s, most_s) = hops.fold((0.0, 0.0_f64), |(sum, most), hop| {
        (sum + hop, most.max(hop))
    });
    match operation {
        Operation::AllReduce => 2.0 * (sum_s - most_s),
        _ => sum_s - most_s,
    }
}

fn ring(paths: &Paths, operation: Operation, order: Vec<usize>, block_bytes: Vec<u64>) -> Plan {
    let hosts = order.len();
    let mut schedule = Schedule::new(paths);
    for slice in 0..block_bytes.len() / hosts {
        // Blocks that each place received in the previous step, and sends on in this one.
        let mut feeds: Vec<Option<usize>> = vec![None; hosts];
        let mut steps = |combines: bool, lag: usize, feeds: &mut Vec<Option<usize>>| {
            for step in 0..hosts - 1 {
                let mut next_feeds = vec![None; hosts];
                for place in 0..hosts {
                    let block = slice * hosts + (place + 2 * hosts - step - lag) % hosts;
                    let next = (place + 1) % hosts;
                    next_feeds[next] = Some(schedule.add(
                        (order[place], order[next]),
                        Blocks::one(block),
                        block_bytes[block],
                        combines,
                        feeds[place].as_slice(),
                    ));
                }
                *feeds = next_feeds;
            }
        };
        // A block's sum ends at its owner if it starts one place after the owner.
        if operation.combines() {
            steps(true, 1, &mut feeds);
        }
        if operation != Operation::ReduceScatter {
            steps(false, 0, &mut feeds);
        }
    }
    schedule.into_plan(operation, order, block_bytes)
}
