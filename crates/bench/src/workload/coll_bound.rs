//! Lower bound of the time that a collective of `mpi_coll` takes.

use super::Measurement;
use crate::ceiling::PLAIN_TCP;
use kumi_coll::{
    Operation, Plan, PlanError, all_gather, all_to_all, bound_s, gather_by_turns, latency_bound_s,
    scatter, uniform,
};
use kumi_topo::Network;

/// Adds the ideal time of the collective and its efficiency, which is the ideal time divided by the
/// measured one. The ideal time is the larger of two: the cut bound with plain TCP's framing, and
/// the latency to the most distant host.
pub fn add(
    measurement: &mut Measurement,
    network: &Network,
    operation: &str,
) -> Result<(), PlanError> {
    let median_us = measurement.figures.get("median_us").copied();
    let (Some(size), Some(median_us)) = (measurement.size_bytes, median_us) else {
        return Ok(());
    };
    let Some(plan) = plan(network, operation, size)? else {
        return Ok(());
    };
    add_for_plan(measurement, network, &plan, median_us);
    Ok(())
}

/// Adds the same for a plan that took `median_us`.
pub fn add_for_plan(measurement: &mut Measurement, network: &Network, plan: &Plan, median_us: f64) {
    let links_s = bound_s(network, plan) / PLAIN_TCP;
    let ideal_us = links_s.max(latency_bound_s(network, plan)) * 1e6;
    measurement.figures.insert("ideal_us".into(), ideal_us);
    let efficiency = ideal_us / median_us;
    measurement
        .figures
        .insert("efficiency_ratio".into(), efficiency);
    // The planner's prediction, with plain TCP's headers added.
    let predicted_us = plan.predicted_s / PLAIN_TCP * 1e6;
    let predicted_ratio = median_us / predicted_us;
    measurement
        .figures
        .insert("of_predicted_ratio".into(), predicted_ratio);
}

/// Returns the size of a block, in bytes, in an operation whose blocks differ. The program's
/// function `elements` uses the same formula.
fn uneven_block_bytes(size: u64, from: usize, to: usize) -> u64 {
    let count = size / 4;
    let step = ((from * 7 + to * 3) % 5) as u64;
    4 * (count / 2 + count * step / 4)
}

/// Operations that have a plan.
pub const OPERATIONS: [&str; 12] = [
    "gather",
    "scatter",
    "bcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "allreduce",
    "alltoall",
    "gatherv",
    "scatterv",
    "allgatherv",
    "alltoallv",
];

/// Returns the message about an operation that is not in [`OPERATIONS`].
pub fn unknown_operation(operation: &str) -> String {
    let known = OPERATIONS.join(", ");
    format!("invalid operation `{operation}`: expected one of {known}")
}

/// Returns a plan of the operation that the program calls, with rank 0 as the root. `None` for an
/// operation that is not in [`OPERATIONS`].
pub fn plan(network: &Network, operation: &str, size: u64) -> Result<Option<Plan>, PlanError> {
    let ranks = network.hosts.len();
    let (root, blocks) = (0, |block: fn(usize) -> (usize, usize)| -> Vec<u64> {
        let ends = (0..ranks).map(block);
        ends.map(|(from, to)| uneven_block_bytes(size, from, to))
            .collect()
    });
    let uniform_operation = match operation {
        "gather" => Operation::Gather { root },
        "scatter" => Operation::Scatter { root },
        "bcast" => Operation::Broadcast { root },
        "reduce" => Operation::Reduce { root },
        "allgather" => Operation::AllGather,
        "reduce_scatter" => Operation::ReduceScatter,
        "allreduce" => Operation::AllReduce,
        "alltoall" => Operation::AllToAll,
        "gatherv" => return gather_by_turns(network, root, &blocks(|rank| (rank, 0))).map(Some),
        "scatterv" => return scatter(network, root, &blocks(|rank| (0, rank))).map(Some),
        "allgatherv" => return all_gather(network, &blocks(|rank| (rank, 0))).map(Some),
        "alltoallv" => {
            let pairs = (0..ranks * ranks).map(|pair| (pair / ranks, pair % ranks));
            let bytes = pairs.map(|(from, to)| uneven_block_bytes(size, from, to));
            return all_to_all(network, bytes.collect()).map(Some);
        }
        _ => return Ok(None),
    };
    uniform(network, uniform_operation, size).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kumi_topo::{Delay, Rate};

    #[test]
    fn plan__operations__are_exactly_those_with_a_plan() {
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        let network = Network::star(&["a", "b", "c"], rate, Delay::from_ns(25_000));
        for operation in OPERATIONS {
            let plan = plan(&network, operation, 4096).unwrap();
            assert!(plan.is_some(), "{operation}");
        }
        assert!(plan(&network, "barrier", 4096).unwrap().is_none());
    }
}
