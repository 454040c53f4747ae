//! The plan of one rank in one collective.

use crate::request::{Request, RequestedOperation, WorkError};
use kumi_coll::{
    Operation, Plan, PlanError, Program, Step, Vector, all_gather, all_reduce, all_to_all,
    broadcast, gather_by_turns, reduce, reduce_scatter, scatter,
};
use kumi_topo::Network;
use std::sync::Arc;

/// Rank plan, and the location of its blocks in the caller's memory.
#[derive(Debug)]
pub(crate) struct RankPlan {
    pub program: Arc<Program>,
    operation: Operation,
    ranks: usize,
    /// Caller's block number and offset in that block, by block number of the plan. `None` if the
    /// numbers are equal: a table of all pairs of ranks would be longer than the rank plan itself.
    named: Option<Vec<(u64, u64)>>,
    pub predicted_s: f64,
}

impl RankPlan {
    pub fn new(network: &Network, rank: usize, asked: &Request) -> Result<Self, WorkError> {
        let ranks = network.hosts.len();
        if rank >= ranks {
            return Err(WorkError::Rank { rank, ranks });
        }
        let element_bytes = asked.element_bytes;
        let is_cut = |bytes: &&u64| element_bytes == 0 || *bytes % element_bytes != 0;
        if let Some(bytes) = asked.bytes.iter().find(is_cut) {
            return Err(WorkError::Element {
                bytes: *bytes,
                element_bytes,
            });
        }
        let plan = plan(network, asked)?;
        let program = Program::on(network, &plan, rank, element_bytes);
        Ok(Self::of(program, &plan, ranks, names(&plan)))
    }

    /// Combines one rank's program with its plan's figures. `named` locates the plan's blocks in
    /// the caller's.
    pub fn of(program: Program, plan: &Plan, ranks: usize, named: Option<Vec<(u64, u64)>>) -> Self {
        Self {
            program: Arc::new(program),
            operation: plan.operation,
            ranks,
            named,
            predicted_s: plan.predicted_s,
        }
    }

    /// Returns the caller's number of a block, and the offset in that block at which the plan's
    /// block begins.
    pub fn name(&self, block: usize) -> (u64, u64) {
        self.named
            .as_ref()
            .map_or((block as u64, 0), |named| named[block])
    }

    /// Returns the rank that holds a block initially. Returns `None` for a vector that is combined.
    pub fn owner(&self, block: usize) -> Option<usize> {
        let (name, _) = self.name(block);
        match self.operation {
            Operation::Gather { .. } | Operation::AllGather => Some(name as usize),
            Operation::Scatter { root } | Operation::Broadcast { root } => Some(root),
            Operation::AllToAll => Some(name as usize / self.ranks),
            Operation::Reduce { .. } | Operation::ReduceScatter | Operation::AllReduce => None,
        }
    }

    /// Returns the approximate memory use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // A step has one or two successors.
        let steps = self.program.steps.len() * (size_of::<Step>() + 2 * size_of::<usize>());
        let named = self.named.as_ref().map_or(0, Vec::len);
        steps + named * size_of::<(u64, u64)>()
    }
}

fn plan(network: &Network, asked: &Request) -> Result<Plan, PlanError> {
    let Request { root, bytes, .. } = asked;
    let whole = || match bytes.as_slice() {
        [whole] => Ok(*whole),
        _ => Err(PlanError::Sizes {
            given: bytes.len(),
            blocks: 1,
        }),
    };
    let vector = || whole().map(|whole| Vector::new(whole, asked.element_bytes));
    match asked.operation {
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
fn names(plan: &Plan) -> Option<Vec<(u64, u64)>> {
    match plan.operation {
        Operation::Broadcast { .. } | Operation::Reduce { .. } | Operation::AllReduce => {
            let begins = plan.block_bytes.iter().scan(0, |begin, bytes| {
                let at = *begin;
                *begin += bytes;
                Some((0, at))
            });
            Some(begins.collect())
        }
        Operation::AllToAll => None,
        _ => Some(plan.order.iter().map(|rank| (*rank as u64, 0)).collect()),
    }
}
