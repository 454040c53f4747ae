//! One rank's execution of one collective.

use crate::like::{Like, OwnBytes};
use crate::ranks::Ranks;
use crate::seen::{Seen, Watch};
use kumi_coll::{
    Action, Engine, Operation, Plan, PlanError, Program, Step, Vector, all_gather, all_reduce,
    all_to_all, broadcast, gather_by_turns, reduce, reduce_scatter, scatter,
};
use kumi_topo::Network;
use std::sync::Arc;

/// Request for a collective. All ranks make the same request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// Operation to perform.
    pub operation: AskedOperation,
    /// Rank that holds all input or gets the whole result; 0 in operations without a root.
    pub root: usize,
    /// Length of each rank's block in bytes, or of block `from × ranks + to` in an all-to-all.
    /// Operations on a vector have one entry, the length of the whole vector.
    pub bytes: Vec<u64>,
    /// Bytes of an element. A plan never splits an element.
    pub element_bytes: u64,
}

/// Collective operation, without its root. The numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum AskedOperation {
    /// Corresponds to [`Operation::Gather`].
    Gather = 0,
    /// Corresponds to [`Operation::Scatter`].
    Scatter = 1,
    /// Corresponds to [`Operation::Broadcast`].
    Broadcast = 2,
    /// Corresponds to [`Operation::Reduce`].
    Reduce = 3,
    /// Corresponds to [`Operation::AllGather`].
    AllGather = 4,
    /// Corresponds to [`Operation::ReduceScatter`].
    ReduceScatter = 5,
    /// Corresponds to [`Operation::AllReduce`].
    AllReduce = 6,
    /// Corresponds to [`Operation::AllToAll`].
    AllToAll = 7,
}

impl AskedOperation {
    /// Returns the operation that has this number in the C interface.
    pub fn from_number(number: i32) -> Option<Self> {
        let all = [
            Self::Gather,
            Self::Scatter,
            Self::Broadcast,
            Self::Reduce,
            Self::AllGather,
            Self::ReduceScatter,
            Self::AllReduce,
            Self::AllToAll,
        ];
        all.into_iter().find(|one| *one as i32 == number)
    }
}

/// Reason that a collective cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The planner rejects the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The rank is out of range.
    #[error("rank {rank} out of range (0–{})", .ranks.saturating_sub(1))]
    Rank {
        /// Requested rank.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The element size is 0, or a block is not a whole number of elements.
    #[error("{bytes} bytes are not a whole number of elements of {element_bytes} bytes")]
    Element {
        /// Length of the block, in bytes.
        bytes: u64,
        /// Length of an element, in bytes.
        element_bytes: u64,
    },
    /// The operation relays blocks of other ranks, so it cannot be planned for blocks of one
    /// length.
    #[error(
        "{0:?} cannot be planned for blocks of one length: expected Gather, Scatter or AllToAll"
    )]
    Relayed(AskedOperation),
    /// The C interface has no operation of this number.
    #[error("operation {0} out of range (0–7)")]
    Operation(i32),
}

/// Rank plan, and the location of its blocks in the caller's memory.
#[derive(Debug)]
pub(crate) struct Planned {
    pub program: Arc<Program>,
    operation: Operation,
    ranks: usize,
    /// Caller's block number and offset in that block, by block number of the plan. `None` if the
    /// numbers are equal: a table of all pairs of ranks would be longer than the rank plan itself.
    named: Option<Vec<(u64, u64)>>,
    pub predicted_s: f64,
}

impl Planned {
    pub fn new(network: &Network, rank: usize, asked: &Asked) -> Result<Self, WorkError> {
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
    fn name(&self, block: usize) -> (u64, u64) {
        self.named
            .as_ref()
            .map_or((block as u64, 0), |named| named[block])
    }

    /// Returns the rank that holds a block initially. Returns `None` for a vector that is combined.
    fn owner(&self, block: usize) -> Option<usize> {
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

fn plan(network: &Network, asked: &Asked) -> Result<Plan, PlanError> {
    let Asked { root, bytes, .. } = asked;
    let whole = || match bytes.as_slice() {
        [whole] => Ok(*whole),
        _ => Err(PlanError::Sizes {
            given: bytes.len(),
            blocks: 1,
        }),
    };
    let vector = || whole().map(|whole| Vector::new(whole, asked.element_bytes));
    match asked.operation {
        AskedOperation::Gather => gather_by_turns(network, *root, bytes),
        AskedOperation::Scatter => scatter(network, *root, bytes),
        AskedOperation::Broadcast => broadcast(network, *root, vector()?),
        AskedOperation::Reduce => reduce(network, *root, vector()?),
        AskedOperation::AllGather => all_gather(network, bytes),
        AskedOperation::ReduceScatter => reduce_scatter(network, bytes),
        AskedOperation::AllReduce => Ok(all_reduce(network, vector()?)),
        AskedOperation::AllToAll => all_to_all(network, bytes.clone()),
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

/// Step in the caller's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Action to perform.
    pub action: Action,
    /// Peer rank.
    pub peer: usize,
    /// Rank that owns the block; `from × ranks + to` in an all-to-all, 0 for a vector.
    pub block: u64,
    /// Offset in the block, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Progress of one rank in one collective.
#[derive(Debug)]
pub struct Work {
    planned: Arc<Planned>,
    engine: Engine,
    /// Rank that executes the plan, recorded as the receiver of the watched flows.
    rank: usize,
    watch: Option<Box<(Arc<Seen>, Watch)>>,
}

impl Work {
    /// Starts the execution of `rank`'s part of a collective.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn new(ranks: &Ranks, rank: usize, asked: Asked) -> Result<Self, WorkError> {
        Ok(Self::of(ranks, rank, ranks.planned(rank, asked)?))
    }

    /// Starts the execution of `rank`'s part of a collective in which it knows only its own
    /// lengths.
    ///
    /// # Errors
    /// The operation relays blocks, or the number of lengths is not the number of ranks.
    pub fn like(ranks: &Ranks, rank: usize, like: Like, own: &OwnBytes) -> Result<Self, WorkError> {
        let planned = ranks.order(rank, like)?.planned(own)?;
        Ok(Self::of(ranks, rank, Arc::new(planned)))
    }

    fn of(ranks: &Ranks, rank: usize, planned: Arc<Planned>) -> Self {
        Self {
            engine: Engine::new(Arc::clone(&planned.program)),
            planned,
            rank,
            watch: ranks.seen().map(|seen| Box::new((seen, Watch::default()))),
        }
    }

    /// Returns a step that may start now and its index, or `None` if no step may start.
    pub fn begin(&mut self) -> Option<(usize, Named)> {
        let at = self.engine.begin()?;
        let step = &self.planned.program.steps[at];
        let (block, begins) = match step.action {
            Action::Tell | Action::Hear => (0, 0),
            _ => self.planned.name(step.block as usize),
        };
        let named = Named {
            action: step.action,
            peer: step.peer as usize,
            block,
            offset: begins + step.offset,
            bytes: step.bytes,
        };
        Some((at, named))
    }

    /// Marks a step as complete. Returns false if the step does not exist.
    pub fn over(&mut self, step: usize) -> bool {
        let Some(of) = self.planned.program.steps.get(step) else {
            return false;
        };
        if let (Some(kept), Action::Receive) = (&mut self.watch, of.action) {
            let (_, watch) = &mut **kept;
            let peer = of.peer as usize;
            if self.planned.owner(of.block as usize) == Some(peer) {
                watch.came(peer, of.bytes);
            }
        }
        self.engine.over(step);
        true
    }

    /// Returns whether all steps are complete.
    pub fn is_over(&self) -> bool {
        self.engine.is_over()
    }

    /// Returns the planner's estimate of the collective's total time, in seconds.
    pub fn predicted_s(&self) -> f64 {
        self.planned.predicted_s
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let (Some(kept), true) = (&self.watch, self.engine.is_over()) {
            let (seen, watch) = &**kept;
            seen.keep(self.rank, watch.flows());
        }
    }
}
