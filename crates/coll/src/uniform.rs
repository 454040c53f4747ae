//! Plans of operations in which every host has the same amount of data.

use crate::plan::{Operation, Plan, PlanError};
use crate::vector::Vector;
use crate::{
    all_gather, all_reduce, all_to_all, broadcast, gather_by_turns, reduce, reduce_scatter, scatter,
};
use kumi_topo::Network;

/// Plans an operation on blocks of `bytes`: one for each host, or in an all-to-all for each pair of
/// hosts. An operation on a vector has one vector of `bytes`.
pub fn uniform(network: &Network, operation: Operation, bytes: u64) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    let by_host = vec![bytes; hosts];
    let vector = Vector::new(bytes, 1);
    match operation {
        Operation::Gather { root } => gather_by_turns(network, root, &by_host),
        Operation::Scatter { root } => scatter(network, root, &by_host),
        Operation::Broadcast { root } => broadcast(network, root, vector),
        Operation::Reduce { root } => reduce(network, root, vector),
        Operation::AllGather => all_gather(network, &by_host),
        Operation::ReduceScatter => reduce_scatter(network, &by_host),
        Operation::AllReduce => Ok(all_reduce(network, vector)),
        Operation::AllToAll => all_to_all(network, vec![bytes; hosts * hosts]),
    }
}
