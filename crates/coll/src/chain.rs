//! Broadcast and reduce along a chain of hosts, part by part (Takahashi and others' Stable Broadcast).
//!
//! The chain is the walk that passes no link twice in one direction: every host sends on what has come while
//! more comes, every link carries the vector once, and a slow host at the end of the walk, where it is
//! put, holds up nobody but itself.

use crate::exchange::check_root;
use crate::plan::{Blocks, Operation, Plan, PlanError, Transfer};
use crate::program::PIECE_BYTES;
use crate::short::or_short;
use kumi_topo::{Network, Paths};

/// Plans that every host comes to have the vector at `root`, of parts of `block_bytes`.
///
/// # Errors
/// The root is no host.
pub fn broadcast(network: &Network, root: usize, block_bytes: Vec<u64>) -> Result<Plan, PlanError> {
    chain(network, root, block_bytes, Operation::Broadcast { root })
}

/// Plans that `root` comes to have the vector combined of every host's, of parts of `block_bytes`.
///
/// # Errors
/// The root is no host.
pub fn reduce(network: &Network, root: usize, block_bytes: Vec<u64>) -> Result<Plan, PlanError> {
    chain(network, root, block_bytes, Operation::Reduce { root })
}

fn chain(
    network: &Network,
    root: usize,
    block_bytes: Vec<u64>,
    operation: Operation,
) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    check_root(hosts, root)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, root);
    let combines = operation.combines();
    let blocks = Blocks::run(0, block_bytes.len());
    let mut pairs: Vec<(usize, usize)> = order.windows(2).map(|pair| (pair[0], pair[1])).collect();
    if combines {
        pairs = pairs.into_iter().rev().map(|(a, b)| (b, a)).collect();
    }
    // A host sends on what has come, piece by piece.
    let largest = block_bytes.iter().copied().max().unwrap_or(0);
    let piece = largest.min(PIECE_BYTES) as f64;
    let bytes: u64 = block_bytes.iter().sum();
    let mut slowest = f64::INFINITY;
    let mut predicted_s = 0.0;
    let mut transfers = Vec::with_capacity(pairs.len());
    for (from, to) in pairs {
        let rate = paths.bytes_per_s(from, to);
        slowest = rate.min(slowest);
        predicted_s += paths.latency_s(from, to) + piece / rate;
        transfers.push(Transfer {
            from,
            to,
            blocks: blocks.clone(),
            combines,
            after: Vec::new(),
        });
    }
    predicted_s += (bytes as f64 - piece).max(0.0) / slowest;
    let long = Plan {
        operation,
        order,
        block_bytes,
        transfers,
        port_bytes: 0,
        predicted_s,
    };
    Ok(or_short(network, &paths, long))
}
