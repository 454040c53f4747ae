//! Collectives in which a rank knows only its own lengths, in the order of a plan for blocks of one
//! length.
//!
//! The transfers of these operations are direct, so a rank needs the lengths of its own blocks
//! only. Waits and grants come from the plan for equal blocks; the rank's own lengths set the chunk
//! counts.

use crate::rank_plan::RankPlan;
use crate::request::{RequestedOperation, WorkError};
use kumi_coll::{
    After, Blocks, Grain, Operation, Plan, Program, Progress, Transfer, all_to_all,
    gather_by_turns, scatter,
};
use kumi_topo::Network;
use std::collections::HashMap;

/// Collective that is planned for blocks of one length. It is the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EqualBlocks {
    /// Gather, scatter or all-to-all.
    pub operation: RequestedOperation,
    /// Rank that gathers or scatters; else 0.
    pub root: usize,
    /// Length of the plan's blocks, in bytes.
    pub block_bytes: u64,
}

/// Lengths of one rank's own blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnBytes {
    /// Lengths by rank, in bytes. In an all-to-all, the block sent to that rank. Otherwise that
    /// rank's block, if this rank sends or receives it.
    pub out_bytes: Vec<u64>,
    /// Lengths of the blocks received from each rank in an all-to-all, in bytes; otherwise empty.
    pub in_bytes: Vec<u64>,
}

/// One rank's part of a plan for blocks of one length.
#[derive(Debug)]
pub(crate) struct Order {
    rank: usize,
    ranks: usize,
    /// Transfers of the rank, transfers that it grants, and the transfers that those wait for.
    /// Blocks are renumbered.
    plan: Plan,
    /// Caller's number of each block.
    names: Vec<u64>,
    grain: Grain,
    /// Program for blocks of the plan's length.
    nominal: Program,
}

impl Order {
    pub fn new(network: &Network, rank: usize, request: &EqualBlocks) -> Result<Self, WorkError> {
        let ranks = network.hosts.len();
        if rank >= ranks {
            return Err(WorkError::Rank { rank, ranks });
        }
        let bytes = request.block_bytes.max(1);
        let plan = match request.operation {
            RequestedOperation::Gather => {
                gather_by_turns(network, request.root, &vec![bytes; ranks])?
            }
            RequestedOperation::Scatter => scatter(network, request.root, &vec![bytes; ranks])?,
            RequestedOperation::AllToAll => all_to_all(network, vec![bytes; ranks * ranks])?,
            operation => return Err(WorkError::Relayed(operation)),
        };
        let (plan, names) = extract_part(&plan, rank);
        let nominal = Program::on(network, &plan, rank, 1);
        Ok(Self {
            rank,
            ranks,
            grain: Grain::on(network, 1),
            plan,
            names,
            nominal,
        })
    }

    /// Returns the approximate memory use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.plan.transfers.len() * size_of::<(Transfer, After, u64, u64)>()
            + self.nominal.steps.len() * size_of::<kumi_coll::Step>()
    }

    /// Returns the rank's plan for its own lengths.
    pub fn rank_plan(&self, own: &OwnBytes) -> Result<RankPlan, WorkError> {
        let pairs = self.plan.operation == Operation::AllToAll;
        let sizes = [(own.out_bytes.len(), true), (own.in_bytes.len(), pairs)];
        for (given, is_required) in sizes {
            if is_required && given != self.ranks {
                let blocks = self.ranks;
                return Err(kumi_coll::PlanError::Sizes { given, blocks }.into());
            }
        }
        let mut plan = self.plan.clone();
        for transfer in &self.plan.transfers {
            if transfer.from != self.rank && transfer.to != self.rank {
                continue;
            }
            for block in transfer.blocks.numbers() {
                plan.block_bytes[block] = match pairs {
                    true if transfer.from == self.rank => own.out_bytes[transfer.to],
                    true => own.in_bytes[transfer.from],
                    false => own.out_bytes[self.names[block] as usize],
                };
            }
        }
        for index in 0..plan.transfers.len() {
            for wait in 0..plan.transfers[index].after.len() {
                let predecessor = plan.transfers[index].after[wait].transfer;
                let predecessor_bytes = plan.bytes_of(&plan.transfers[predecessor]);
                // A shorter transfer cannot have more bytes outstanding than it has.
                if let Progress::Received { missing_bytes, .. } =
                    &mut plan.transfers[index].after[wait].until
                {
                    *missing_bytes = predecessor_bytes.min(*missing_bytes);
                }
            }
        }
        let program = Program::new(&plan, self.rank, self.grain).on_paths_of(&self.nominal);
        let blocks = self.names.iter().map(|name| (*name, 0)).collect();
        Ok(RankPlan::from_plan(
            program,
            &plan,
            self.ranks,
            Some(blocks),
        ))
    }
}

/// Returns the transfers of a plan that concern one rank, with renumbered blocks, and the caller's
/// number of each block.
fn extract_part(plan: &Plan, rank: usize) -> (Plan, Vec<u64>) {
    let concerns = |transfer: &Transfer| {
        let grants = |wait: &After| plan.transfers[wait.transfer].to == rank;
        transfer.from == rank || transfer.to == rank || transfer.after.iter().any(grants)
    };
    let mut is_needed = vec![false; plan.transfers.len()];
    for (index, transfer) in plan.transfers.iter().enumerate() {
        if concerns(transfer) {
            is_needed[index] = true;
            for wait in &transfer.after {
                is_needed[wait.transfer] = true;
            }
        }
    }
    let caller_block = |block: usize| match plan.operation {
        Operation::AllToAll => block as u64,
        _ => plan.order[block] as u64,
    };
    let mut new_indices: HashMap<usize, usize> = HashMap::new();
    let (mut transfers, mut block_bytes, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (index, transfer) in plan.transfers.iter().enumerate() {
        if !is_needed[index] {
            continue;
        }
        let mut blocks = Blocks::default();
        for block in transfer.blocks.numbers() {
            blocks = blocks.union(&Blocks::one(names.len()));
            names.push(caller_block(block));
            block_bytes.push(plan.block_bytes[block]);
        }
        let mut after = Vec::new();
        if concerns(transfer) {
            after.extend(transfer.after.iter().map(|wait| After {
                transfer: new_indices[&wait.transfer],
                until: wait.until,
            }));
        }
        new_indices.insert(index, transfers.len());
        transfers.push(Transfer {
            blocks,
            after,
            ..transfer.clone()
        });
    }
    let part = Plan {
        operation: plan.operation,
        order: plan.order.clone(),
        block_bytes,
        transfers,
        port_bytes: plan.port_bytes,
        handed: Vec::new(),
        predicted_s: plan.predicted_s,
    };
    (part, names)
}

#[cfg(test)]
mod tests;
