//! All-gather, reduce-scatter and all-reduce in a ring of hosts.
//!
//! The ring is the walk that passes no link twice in one direction, so each of its steps has every link to itself,
//! whatever the tree (Faraj, Patarasuk and Yuan; Patarasuk and Yuan 2009). On a link slower than those
//! of the hosts the ring sends *N*−1 blocks where half would do: `hierarchical.rs` is for those.

use crate::exchange::check_sizes;
use crate::hierarchical::or_hierarchical;
use crate::plan::{Blocks, Operation, Plan, PlanError};
use crate::schedule::Schedule;
use crate::short::{VECTOR_BYTES_MAX, or_short, uncut};
use kumi_topo::{Network, Paths};

/// Plans that every host comes to have every host's block; `block_bytes` by host.
///
/// # Errors
/// There is not one size for each host.
pub fn all_gather(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    ring(network, block_bytes, Operation::AllGather)
}

/// Plans that every host comes to have its block, combined of every host's; `block_bytes` by host.
///
/// # Errors
/// There is not one size for each host.
pub fn reduce_scatter(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    ring(network, block_bytes, Operation::ReduceScatter)
}

/// Plans that every host comes to have every block combined of every host's: a reduce-scatter and an all-gather.
/// `block_bytes` are the parts of the vector: as many as hosts, or times as many; one, if the vector is short. [`all_reduce_parts`]
/// says which is best.
///
/// Of nothing, it is a barrier.
///
/// # Errors
/// There are not as many sizes, or a multiple.
///
/// [`all_reduce_parts`]: crate::all_reduce_parts
pub fn all_reduce(network: &Network, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    ring(network, block_bytes, Operation::AllReduce)
}

fn ring(network: &Network, block_bytes: &[u64], operation: Operation) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    let is_sum = operation == Operation::AllReduce;
    let is_sliced = is_sum && !block_bytes.is_empty() && block_bytes.len() % hosts == 0;
    let whole = block_bytes
        .first()
        .filter(|_| is_sum && block_bytes.len() == 1);
    let whole = whole.filter(|whole| hosts > 1 && **whole <= VECTOR_BYTES_MAX);
    if !is_sliced && whole.is_none() {
        check_sizes(hosts, block_bytes)?;
    }
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    if let Some(whole) = whole {
        return Ok(uncut(network, &paths, order, *whole));
    }
    // The parts of a vector have no host.
    let block_bytes: Vec<u64> = match operation {
        Operation::AllReduce => block_bytes.to_vec(),
        _ => order.iter().map(|host| block_bytes[*host]).collect(),
    };
    let mut schedule = Schedule::new(&paths);
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
    let ring = schedule.into_plan(operation, order, block_bytes);
    let long = or_hierarchical(network, &paths, ring);
    Ok(or_short(network, &paths, long))
}
