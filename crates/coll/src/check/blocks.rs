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
fn final_blocks(plan: &Plan, host: usize, place: usize) -> Box<dyn Iterator<Item = usize>> {
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
    let mut by_host: Vec<Vec<usize>> = vec![Vec::new(); hosts];
    for (index, transfer) in plan.transfers.iter().enumerate() {
        by_host[transfer.from].push(index);
        by_host[transfer.to].push(index);
    }
    let mut feeds: Vec<Vec<usize>> = vec![Vec::new(); plan.transfers.len()];
    // The transfer that brought each block to the present host.
    let mut sources: Vec<Option<usize>> = vec![None; plan.block_bytes.len()];
    for (place, host) in plan.order.iter().copied().enumerate() {
        for index in by_host[host].iter().copied() {
            let transfer = &plan.transfers[index];
            for block in transfer.blocks.numbers() {
                let is_own = owner(plan, block) == host;
                if transfer.to == host {
                    if is_own || sources[block].replace(index).is_some() {
                        return Err(CheckError::Twice {
                            transfer: index,
                            block,
                        });
                    }
                } else if let Some(source) = sources[block] {
                    feeds[index].push(source);
                } else if !is_own {
                    return Err(CheckError::Absent {
                        transfer: index,
                        block,
                    });
                }
            }
        }
        let mut missing = final_blocks(plan, host, place);
        let missing = missing
            .by_ref()
            .filter(|block| plan.block_bytes[*block] > 0)
            .filter(|block| owner(plan, *block) != host && sources[*block].is_none())
            .count();
        if missing > 0 {
            return Err(incomplete(network, host, missing));
        }
        let transfers = by_host[host].iter().map(|index| &plan.transfers[*index]);
        for transfer in transfers.filter(|transfer| transfer.to == host) {
            for block in transfer.blocks.numbers() {
                sources[block] = None;
            }
        }
    }
    sort(&mut feeds);
    Ok(feeds)
}

/// The hosts whose parts are in a host's sum of a block, and the transfers that brought them.
struct Sum {
    contributors: Set,
    transfers: Vec<usize>,
}

fn feeds_of_sums(network: &Network, plan: &Plan) -> Result<Vec<Vec<usize>>, CheckError> {
    let hosts = network.hosts.len();
    let mut sums: HashMap<(usize, usize), Sum> = HashMap::new();
    let own_sum = |host: usize| {
        let mut contributors = Set::new(hosts);
        contributors.add(host);
        Sum {
            contributors,
            transfers: Vec::new(),
        }
    };
    let mut feeds: Vec<Vec<usize>> = vec![Vec::new(); plan.transfers.len()];
    for (index, transfer) in plan.transfers.iter().enumerate() {
        for block in transfer.blocks.numbers() {
            let sender_sum = sums
                .entry((transfer.from, block))
                .or_insert_with(|| own_sum(transfer.from));
            feeds[index].extend(&sender_sum.transfers);
            let contributors = sender_sum.contributors.clone();
            let receiver_sum = sums
                .entry((transfer.to, block))
                .or_insert_with(|| own_sum(transfer.to));
            if !transfer.combines {
                *receiver_sum = Sum {
                    contributors,
                    transfers: vec![index],
                };
            } else if receiver_sum.contributors.meets(&contributors) {
                return Err(CheckError::Twice {
                    transfer: index,
                    block,
                });
            } else {
                receiver_sum.contributors.add_all(&contributors);
                receiver_sum.transfers.push(index);
            }
        }
    }
    for (place, host) in plan.order.iter().copied().enumerate() {
        let is_complete = |block: usize| match sums.get(&(host, block)) {
            Some(sum) => sum.contributors.len() == hosts,
            None => hosts == 1,
        };
        let missing = final_blocks(plan, host, place).filter(|block| !is_complete(*block));
        let missing = missing.count();
        if missing > 0 {
            return Err(incomplete(network, host, missing));
        }
    }
    sort(&mut feeds);
    Ok(feeds)
}

fn incomplete(network: &Network, host: usize, blocks: usize) -> CheckError {
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
