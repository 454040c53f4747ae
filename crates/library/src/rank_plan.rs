//! The plan of one rank in one collective.

use crate::request::{Request, RequestedOperation, WorkError};
use kumi_coll::{
    Action, Operation, Plan, PlanError, Program, Step, Vector, all_gather, all_reduce, all_to_all,
    broadcast, gather_by_turns, reduce, reduce_scatter, scatter,
};
use kumi_topo::Network;
use std::collections::HashSet;
use std::sync::Arc;

/// Rank plan, and the location of its blocks in the caller's memory.
#[derive(Debug)]
pub(crate) struct RankPlan {
    pub program: Arc<Program>,
    operation: Operation,
    ranks: usize,
    /// Caller's block number and offset in that block, by block number of the plan. `None` if the
    /// numbers are equal: a table of all pairs of ranks would be longer than the rank plan itself.
    caller_blocks: Option<Vec<(u64, u64)>>,
    /// Steps of an all-to-all that send a chunk before the last one of its block.
    inner_steps: HashSet<usize>,
    pub predicted_s: f64,
}

impl RankPlan {
    pub fn new(network: &Network, rank: usize, request: &Request) -> Result<Self, WorkError> {
        let ranks = network.hosts.len();
        if rank >= ranks {
            return Err(WorkError::Rank { rank, ranks });
        }
        let element_bytes = request.element_bytes;
        let is_cut = |bytes: &&u64| element_bytes == 0 || *bytes % element_bytes != 0;
        if let Some(bytes) = request.bytes.iter().find(is_cut) {
            return Err(WorkError::Element {
                bytes: *bytes,
                element_bytes,
            });
        }
        let plan = plan(network, request)?;
        let program = Program::on(network, &plan, rank, element_bytes);
        Ok(Self::from_plan(program, &plan, ranks, caller_blocks(&plan)))
    }

    /// Combines one rank's program with its plan's figures. `caller_blocks` locates the plan's
    /// blocks in the caller's.
    pub fn from_plan(
        program: Program,
        plan: &Plan,
        ranks: usize,
        caller_blocks: Option<Vec<(u64, u64)>>,
    ) -> Self {
        Self {
            inner_steps: inner_steps(&program, plan.operation),
            program: Arc::new(program),
            operation: plan.operation,
            ranks,
            caller_blocks,
            predicted_s: plan.predicted_s,
        }
    }

    /// Returns the caller's number of a block, and the offset in that block at which the plan's
    /// block begins.
    pub fn caller_block(&self, block: usize) -> (u64, u64) {
        self.caller_blocks
            .as_ref()
            .map_or((block as u64, 0), |caller_blocks| caller_blocks[block])
    }

    /// Returns the rank that holds a block initially. Returns `None` for a vector that is combined.
    pub fn owner(&self, block: usize) -> Option<usize> {
        let (number, _) = self.caller_block(block);
        match self.operation {
            Operation::Gather { .. } | Operation::AllGather => Some(number as usize),
            Operation::Scatter { root } | Operation::Broadcast { root } => Some(root),
            Operation::AllToAll => Some(number as usize / self.ranks),
            Operation::Reduce { .. } | Operation::ReduceScatter | Operation::AllReduce => None,
        }
    }

    /// Returns whether the receiver of the chunk that a step sends needs it at once.
    pub fn is_due(&self, step: usize) -> bool {
        !self.inner_steps.contains(&step)
    }

    /// Returns the approximate memory use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // A step has one or two successors.
        let steps = self.program.steps.len() * (size_of::<Step>() + 2 * size_of::<usize>());
        let block_count = self.caller_blocks.as_ref().map_or(0, Vec::len);
        let inner_bytes = self.inner_steps.capacity() * size_of::<usize>();
        steps + block_count * size_of::<(u64, u64)>() + inner_bytes
    }
}

/// Returns the steps that send a chunk of an all-to-all before the last one of its block. Nobody
/// passes such a chunk on, so its receiver needs it with the last one only.
fn inner_steps(program: &Program, operation: Operation) -> HashSet<usize> {
    if !matches!(operation, Operation::AllToAll | Operation::AllGather) {
        return HashSet::new();
    }
    let is_send = |step: &Step| matches!(step.action, Action::Send | Action::Post);
    let mut seen = HashSet::new();
    let sends = program.steps.iter().enumerate().rev();
    sends
        .filter(|(_, step)| is_send(step) && !seen.insert((step.peer, step.block)))
        .map(|(index, _)| index)
        .collect()
}

fn plan(network: &Network, request: &Request) -> Result<Plan, PlanError> {
    let Request { root, bytes, .. } = request;
    let length = || match bytes.as_slice() {
        [length] => Ok(*length),
        _ => Err(PlanError::Sizes {
            given: bytes.len(),
            blocks: 1,
        }),
    };
    let vector = || length().map(|length| Vector::new(length, request.element_bytes));
    match request.operation {
        RequestedOperation::Gather => gather_by_turns(network, *root, bytes),
        RequestedOperation::Scatter => scatter(network, *root, bytes),
        RequestedOperation::Broadcast => broadcast(network, *root, vector()?),
        RequestedOperation::Reduce => reduce(network, *root, vector()?),
        RequestedOperation::AllGather => all_gather(network, bytes),
        RequestedOperation::ReduceScatter => reduce_scatter(network, bytes),
        RequestedOperation::AllReduce => Ok(all_reduce(network, vector()?)),
        RequestedOperation::AllToAll => all_to_all(network, bytes.clone()),
    }
}

/// Returns the caller's block number and offset of each block of a plan. The number is a rank, or 0
/// with an offset in the vector. Returns `None` for an all-to-all, whose block numbers are the
/// caller's.
fn caller_blocks(plan: &Plan) -> Option<Vec<(u64, u64)>> {
    match plan.operation {
        Operation::Broadcast { .. } | Operation::Reduce { .. } | Operation::AllReduce => {
            let blocks = plan.block_bytes.iter().scan(0, |offset, bytes| {
                let block_offset = *offset;
                *offset += bytes;
                Some((0, block_offset))
            });
            Some(blocks.collect())
        }
        Operation::AllToAll => None,
        _ => Some(plan.order.iter().map(|rank| (*rank as u64, 0)).collect()),
    }
}
