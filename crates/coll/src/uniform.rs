//! Plans where every host has as much.

use crate::plan::{Operation, Plan, PlanError};
use crate::{
    all_gather, all_reduce, all_reduce_parts, all_to_all, broadcast, gather_by_turns, reduce,
    reduce_scatter, scatter,
};
use kumi_topo::Network;

/// Parts that a broadcast's or reduce's vector is cut into: short enough that a chain of hosts is soon all at work,
/// and long enough that a part's own cost, some 20 µs on either side, does not count on 1 Gb/s.
pub const PART_BYTES: u64 = 64 << 10;

/// Plans an operation on blocks of `bytes` a host, or a pair of hosts; on a vector of `bytes` where that is what
/// the operation is on.
///
/// # Errors
/// The root is no host.
pub fn uniform(network: &Network, operation: Operation, bytes: u64) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    let by_host = vec![bytes; hosts];
    match operation {
        Operation::Gather { root } => gather_by_turns(network, root, &by_host),
        Operation::Scatter { root } => scatter(network, root, &by_host),
        Operation::Broadcast { root } => broadcast(network, root, cut(bytes, PART_BYTES)),
        Operation::Reduce { root } => reduce(network, root, cut(bytes, PART_BYTES)),
        Operation::AllGather => all_gather(network, &by_host),
        Operation::ReduceScatter => reduce_scatter(network, &by_host),
        Operation::AllReduce => {
            all_reduce(network, &share(bytes, all_reduce_parts(network, bytes)))
        }
        Operation::AllToAll => all_to_all(network, vec![bytes; hosts * hosts]),
    }
}

/// Parts of at most so many bytes that add up to a whole; one of nothing, of nothing.
pub fn cut(bytes: u64, part_bytes: u64) -> Vec<u64> {
    let whole = (bytes / part_bytes) as usize;
    let mut parts = vec![part_bytes; whole];
    if bytes % part_bytes > 0 || parts.is_empty() {
        parts.push(bytes % part_bytes);
    }
    parts
}

/// So many parts, alike but for one byte, that add up to a whole.
pub fn share(bytes: u64, parts: usize) -> Vec<u64> {
    let edge = |part: usize| bytes * part as u64 / parts as u64;
    (0..parts).map(|part| edge(part + 1) - edge(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts__add_up() {
        assert_eq!(cut(150, 64), [64, 64, 22]);
        assert_eq!(cut(128, 64), [64, 64]);
        assert_eq!(cut(0, 64), [0]);
        assert_eq!(share(10, 4), [2, 3, 2, 3]);
        assert_eq!(share(0, 2), [0, 0]);
    }
}
