//! Broadcast and reduce along a chain of hosts, part by part (Stable Broadcast, Takahashi et al.).
//!
//! The chain is a walk that crosses each link at most once in each direction. Every host sends data
//! on while more arrives, so every link carries the vector once. A slow host is at the end of the
//! walk, where it delays no other host.
//!
//! A host with a duplex limit sends a part on when it has received it, and receives the next one
//! afterwards.
//!
//! ```text
//!   T = Σ ( λ(i) + c/r(i) ) + (V − c) / min r(i)       over the hops i
//!
//!   T     predicted time, in seconds
//!   λ(i)  latency of hop i, in seconds
//!   r(i)  bottleneck rate of hop i, in bytes per second
//!   V, c  bytes of the vector, and of its first chunk
//! ```

use crate::exchange::check_root;
use crate::grain::CHUNK_BYTES;
use crate::plan::{Blocks, Operation, Plan, PlanError, Transfer};
use crate::schedule::Schedule;
use crate::short::{Short, plan_short_vector};
use crate::vector::Vector;
use kumi_topo::{Network, Paths};

/// Plans a broadcast: every host receives the vector of `root`. For a short vector, the hosts may
/// form a tree or exchange parts (`short.rs`).
///
/// # Errors
/// The root is out of range.
pub fn broadcast(network: &Network, root: usize, vector: Vector) -> Result<Plan, PlanError> {
    plan(network, root, vector, Operation::Broadcast { root })
}

/// Plans a reduction: `root` receives the vector combined over all hosts. For a short vector, the
/// hosts may form a tree or exchange parts.
///
/// # Errors
/// The root is out of range.
pub fn reduce(network: &Network, root: usize, vector: Vector) -> Result<Plan, PlanError> {
    plan(network, root, vector, Operation::Reduce { root })
}

fn plan(
    network: &Network,
    root: usize,
    vector: Vector,
    operation: Operation,
) -> Result<Plan, PlanError> {
    check_root(network.hosts.len(), root)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, root);
    let short = plan_short_vector(network, &paths, operation, &order, vector);
    Ok(Short::choose(short, 0.0, || {
        chain(&paths, operation, order, vector)
    }))
}

fn chain(paths: &Paths, operation: Operation, order: Vec<usize>, vector: Vector) -> Plan {
    let block_bytes = vector.parts();
    let combines = operation.combines();
    let blocks = Blocks::run(0, block_bytes.len());
    let mut pairs: Vec<(usize, usize)> = order.windows(2).map(|pair| (pair[0], pair[1])).collect();
    if combines {
        pairs = pairs.into_iter().rev().map(|(a, b)| (b, a)).collect();
    }
    let relays = pairs.iter().skip(1).map(|(relay, _)| *relay);
    if relays.clone().any(|relay| paths.is_limited(relay)) {
        return by_parts(paths, &pairs, operation, order, block_bytes);
    }
    // A host sends data on chunk by chunk.
    let largest = block_bytes.iter().copied().max().unwrap_or(0);
    let chunk_bytes = largest.min(CHUNK_BYTES) as f64;
    let bytes: u64 = block_bytes.iter().sum();
    let mut slowest = f64::INFINITY;
    let mut predicted_s = 0.0;
    let mut transfers = Vec::with_capacity(pairs.len());
    for (from, to) in pairs {
        let rate = paths.bytes_per_s(from, to);
        slowest = rate.min(slowest);
        predicted_s += paths.latency_s(from, to) + chunk_bytes / rate;
        transfers.push(Transfer {
            from,
            to,
            blocks: blocks.clone(),
            combines,
            after: Vec::new(),
        });
    }
    predicted_s += (bytes as f64 - chunk_bytes).max(0.0) / slowest;
    Plan {
        operation,
        order,
        block_bytes,
        transfers,
        port_bytes: 0,
        handed: Vec::new(),
        predicted_s,
    }
}

/// Most transfers of a chain with duplex limits, which is planned part by part.
const TRANSFERS_MAX: usize = 16_384;

/// Sends each part along the chain separately, or groups of parts if the plan would be too long.
fn by_parts(
    paths: &Paths,
    pairs: &[(usize, usize)],
    operation: Operation,
    order: Vec<usize>,
    block_bytes: Vec<u64>,
) -> Plan {
    let mut schedule = Schedule::new(paths);
    let group_len = (block_bytes.len() * pairs.len())
        .div_ceil(TRANSFERS_MAX)
        .max(1);
    for (run, bytes) in block_bytes.chunks(group_len).enumerate() {
        let blocks = Blocks::run(run * group_len, bytes.len());
        let mut feed = None;
        for ends in pairs {
            feed = Some(schedule.add(
                *ends,
                blocks.clone(),
                bytes.iter().sum(),
                operation.combines(),
                feed.as_slice(),
            ));
        }
    }
    schedule.into_plan(operation, order, block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use crate::{bound_s, check};
    use kumi_topo::Rate;

    #[test]
    fn broadcast__hosts_limited_both_ways__relays_through_the_others_if_possible() {
        let mut network = even_tree(&[0], 1000, &[0; 6], 1000);
        let free_s = broadcast(&network, 0, Vector::new(4 << 20, 1))
            .unwrap()
            .predicted_s;
        network.hosts[2].both_ways = Rate::from_bps(1_200_000_000);
        let plan = broadcast(&network, 0, Vector::new(4 << 20, 1)).unwrap();
        assert_eq!(plan.order.last(), Some(&2));
        assert!(plan.predicted_s < free_s * 1.001);
        // Two such hosts: one of them must relay.
        network.hosts[4].both_ways = Rate::from_bps(1_200_000_000);
        let plan = broadcast(&network, 0, Vector::new(4 << 20, 1)).unwrap();
        check(&network, &plan).unwrap();
        assert!(plan.predicted_s < bound_s(&network, &plan) * 2.1);
    }
}
