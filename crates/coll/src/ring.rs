//! All-gather, reduce-scatter and all-reduce in a ring of hosts.
//!
//! The ring is the walk that passes no link twice in one direction, so each of its steps has every link to itself,
//! whatever the tree (Faraj, Patarasuk and Yuan; Patarasuk and Yuan 2009). On a link slower than those
//! of the hosts the ring sends *N*−1 blocks where half would do: `hierarchical.rs` is for those.

use crate::exchange::check_sizes;
use crate::hierarchical::{BySites, parts};
use crate::plan::{Blocks, Operation, Plan, PlanError};
use crate::schedule::Schedule;
use crate::short::{PART_BYTES_MIN, Short, of_blocks, of_vector};
use crate::sites::Sites;
use crate::vector::Vector;
use kumi_topo::{Network, Paths};

/// Most hosts in several sites for whom a ring of all is tried besides.
const RINGED_HOSTS_MAX: usize = 128;

/// Plans that every host comes to have every host's block; `block_bytes` by host.
///
/// # Errors
/// There is not one size for each host.
pub fn all_gather(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    of_hosts(network, block_bytes, Operation::AllGather)
}

/// Plans that every host comes to have its block, combined of every host's; `block_bytes` by host.
///
/// # Errors
/// There is not one size for each host.
pub fn reduce_scatter(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    of_hosts(network, block_bytes, Operation::ReduceScatter)
}

/// Plans that every host comes to have the vector combined of every host's: a reduce-scatter and an all-gather of parts, one a host or
/// several. Of nothing, it is a barrier.
pub fn all_reduce(network: &Network, vector: Vector) -> Plan {
    let hosts = network.hosts.len();
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    let operation = Operation::AllReduce;
    let short = of_vector(network, &paths, operation, &order, vector);
    if hosts < 2 || vector.bytes() < PART_BYTES_MIN * hosts as u64 {
        let nothing = || Schedule::new(&paths).into_plan(operation, order, vec![vector.bytes()]);
        return short.map_or_else(nothing, |short| short.plan);
    }
    let sites = Sites::new(network, &paths, &order);
    let parts = sites.as_ref().map_or(hosts, |_| parts(hosts, vector));
    let block_bytes = vector.share(parts);
    let sites = sites.as_ref();
    quickest(network, &paths, sites, operation, order, block_bytes, short)
}

fn of_hosts(
    network: &Network,
    block_bytes: &[u64],
    operation: Operation,
) -> Result<Plan, PlanError> {
    check_sizes(network.hosts.len(), block_bytes)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    let block_bytes: Vec<u64> = order.iter().map(|host| block_bytes[*host]).collect();
    let short = of_blocks(&paths, operation, &order, &block_bytes);
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

/// Returns the plan with the least predicted time: the short one, a ring of all hosts, or a plan by sites.
fn quickest(
    network: &Network,
    paths: &Paths,
    sites: Option<&Sites>,
    operation: Operation,
    order: Vec<usize>,
    block_bytes: Vec<u64>,
    short: Option<Short>,
) -> Plan {
    let at_least_s = at_least_s(paths, sites, operation, &order);
    Short::or_long(short, at_least_s, || {
        long(network, paths, sites, operation, order, block_bytes)
    })
}

/// The quicker of a ring of all hosts and, between sites, of a plan by them.
fn long(
    network: &Network,
    paths: &Paths,
    sites: Option<&Sites>,
    operation: Operation,
    order: Vec<usize>,
    block_bytes: Vec<u64>,
) -> Plan {
    let by_sites = sites.and_then(|sites| {
        let asked = BySites {
            network,
            paths,
            sites,
            operation,
            order: &order,
            block_bytes: &block_bytes,
        };
        asked.plan()
    });
    match by_sites {
        // A ring of as many would take as long to plan again, and is slower where a link between sites is.
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

/// What a long plan takes at least, in seconds. In a ring a block goes all hops but one, and its sum does so again; of sites nothing is
/// said.
fn at_least_s(paths: &Paths, sites: Option<&Sites>, operation: Operation, order: &[usize]) -> f64 {
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
        // What has come to each place in the step before: its block is sent on in this one.
        let mut came: Vec<Option<usize>> = vec![None; hosts];
        let mut steps = |combines: bool, behind: usize, came: &mut Vec<Option<usize>>| {
            for step in 0..hosts - 1 {
                let mut comes = vec![None; hosts];
                for place in 0..hosts {
                    let block = slice * hosts + (place + 2 * hosts - step - behind) % hosts;
                    let next = (place + 1) % hosts;
                    comes[next] = Some(schedule.add(
                        (order[place], order[next]),
                        Blocks::one(block),
                        block_bytes[block],
                        combines,
                        came[place].as_slice(),
                    ));
                }
                *came = comes;
            }
        };
        // A block's sum ends where it belongs if it sets out one place further on.
        if operation.combines() {
            steps(true, 1, &mut came);
        }
        if operation != Operation::ReduceScatter {
            steps(false, 0, &mut came);
        }
    }
    schedule.into_plan(operation, order, block_bytes)
}
