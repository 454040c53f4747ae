//! Proves that every sender has the blocks that it sends, and that every block ends where the
//! operation requires it.

use super::{CheckError, Set};
use crate::plan::{Operation, Plan};
use kumi_topo::Network;
use std::collections::HashMap;

/// Returns, for each transfer, the transfers that bring its sender the data.
pub(super) fn feeds(network: &Network, plan: &Plan) -> Result<Vec<Vec<usize>>, CheckError> {
    if plan.operation.combines() {
        feeds_of_sums(network, plan)
    } else {
        feeds_of_copies(network, plan)
    }
}

/// Returns the host that has a block at the start.
fn owner(plan: &Plan, block: usize) -> usize {
    match plan.operation {
        Operation::Scatter { root } | Operation::Broadcast { root } => root,
        Operation::AllToAll => block / plan.order.len(),
        _ => plan.order[block],
    }
}

/// Returns the blocks that a host must have at the end. `place` is the host's place in the plan's
/// order.
fn wanted(plan: &Plan, host: usize, place: usize) -> Box<dyn Iterator<Item = usize>> {
    let blocks = plan.block_bytes.len();
    match plan.operation {
        Operation::Gather { root } | Operation::Reduce { root } if root != host => {
            Box::new(std::iter::empty())
        }
        Operation::Scatter { .. } | Operation::ReduceScatter => Box::new(std::iter::once(place)),
        Operation::AllToAll => Box::new((host..blocks).step_by(plan.order.len())),
        _ => Box::new(0..blocks),
    }
}

/// Proceeds host by host, because memory would otherwise grow with the square of their number.
fn feeds_of_copies(network: &Network, plan: &Plan) -> Result<Vec<Vec<usize>>, CheckError> {
    let hosts = network.hosts.len();
    let mut at_host: Vec<Vec<usize>> = vec![Vec::new(); hosts];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        at_host[transfer.from].push(at);
        at_host[transfer.to].push(at);
    }
    let mut feeds: Vec<Vec<usize>> = vec![Vec::new(); plan.transfers.len()];
    // The transfer that brought each block to the present host.
    let mut came_by: Vec<Option<usize>> = vec![None; plan.block_bytes.len()];
    for (place, host) in plan.order.iter().copied().enumerate() {
        for at in at_host[host].iter().copied() {
            let transfer = &plan.transfers[at];
            for block in transfer.blocks.numbers() {
                let is_own = owner(plan, block) == host;
                if transfer.to == host {
                    if is_own || came_by[block].replace(at).is_some() {
                        return Err(CheckError::Twice {
                            transfer: at,
                            block,
                        });
                    }
                } else if let Some(by) = came_by[block] {
                    feeds[at].push(by);
                } else if !is_own {
                    return Err(CheckError::Absent {
                        transfer: at,
                        block,
                    });
                }
            }
        }
        let mut lacks = wanted(plan, host, place);
        let lacks = lacks
            .by_ref()
            .filter(|block| plan.block_bytes[*block] > 0)
            .filter(|block| owner(plan, *block) != host && came_by[*block].is_none())
            .count();
        if lacks > 0 {
            return Err(undone(network, host, lacks));
        }
        let came = at_host[host].iter().map(|at| &plan.transfers[*at]);
        for transfer in came.filter(|transfer| transfer.to == host) {
            for block in transfer.blocks.numbers() {
                came_by[block] = None;
            }
        }
    }
    sort(&mut feeds);
    Ok(feeds)
}

/// The hosts whose parts are in a host's sum of a block, and the transfers that brought them.
struct Sum {
    of: Set,
    by: Vec<usize>,
}

fn feeds_of_sums(network: &Network, plan: &Plan) -> Result<Vec<Vec<usize>>, CheckError> {
    let hosts = network.hosts.len();
    let mut sums: HashMap<(usize, usize), Sum> = HashMap::new();
    let own = |host: usize| {
        let mut of = Set::new(hosts);
        of.add(host);
        Sum { of, by: Vec::new() }
    };
    let mut feeds: Vec<Vec<usize>> = vec![Vec::new(); plan.transfers.len()];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        for block in transfer.blocks.numbers() {
            let sent = sums
                .entry((transfer.from, block))
                .or_insert_with(|| own(transfer.from));
            feeds[at].extend(&sent.by);
            let of = sent.of.clone();
            let here = sums
                .entry((transfer.to, block))
                .or_insert_with(|| own(transfer.to));
            if !transfer.combines {
                *here = Sum { of, by: vec![at] };
            } else if here.of.meets(&of) {
                return Err(CheckError::Twice {
                    transfer: at,
                    block,
                });
            } else {
                here.of.add_all(&of);
                here.by.push(at);
            }
        }
    }
    for (place, host) in plan.order.iter().copied().enumerate() {
        let is_whole = |block: usize| match sums.get(&(host, block)) {
            Some(sum) => sum.of.len() == hosts,
            None => hosts == 1,
        };
        let lacks = wanted(plan, host, place).filter(|block| !is_whole(*block));
        let lacks = lacks.count();
        if lacks > 0 {
            return Err(undone(network, host, lacks));
        }
    }
    sort(&mut feeds);
    Ok(feeds)
}

fn undone(network: &Network, host: usize, blocks: usize) -> CheckError {
    CheckError::Undone {
        host: network.hosts[host].name.clone(),
        blocks,
    }
}

fn sort(feeds: &mut [Vec<usize>]) {
    for feeds in feeds {
        feeds.sort_unstable();
        feeds.dedup();
    }
}
