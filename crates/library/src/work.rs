//! One rank's part of one collective.

use crate::like::{Like, OwnBytes};
use crate::ranks::Ranks;
use crate::seen::{Seen, Watch};
use kumi_coll::{
    Action, Engine, Operation, Plan, PlanError, Program, Step, Vector, all_gather, all_reduce,
    all_to_all, broadcast, gather_by_turns, reduce, reduce_scatter, scatter,
};
use kumi_topo::Network;
use std::sync::Arc;

/// A collective that is asked for: all ranks ask for the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// What is done.
    pub operation: AskedOperation,
    /// The rank that has or gets all, where one does; else 0.
    pub root: usize,
    /// Bytes of each rank's block, or of `from × ranks + to` in an all-to-all; of the whole vector, one number,
    /// where the operation is on a vector.
    pub bytes: Vec<u64>,
    /// Bytes of an element, within which nothing is cut.
    pub element_bytes: u64,
}

/// An operation, apart from its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum AskedOperation {
    /// [`Operation::Gather`].
    Gather = 0,
    /// [`Operation::Scatter`].
    Scatter = 1,
    /// [`Operation::Broadcast`].
    Broadcast = 2,
    /// [`Operation::Reduce`].
    Reduce = 3,
    /// [`Operation::AllGather`].
    AllGather = 4,
    /// [`Operation::ReduceScatter`].
    ReduceScatter = 5,
    /// [`Operation::AllReduce`].
    AllReduce = 6,
    /// [`Operation::AllToAll`].
    AllToAll = 7,
}

impl AskedOperation {
    /// By number.
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

/// Why a collective cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A rank that is none.
    #[error("rank {rank} is none; there are {ranks}, from 0")]
    Rank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// Elements of no bytes, or a block that ends within one.
    #[error("{bytes} bytes are no whole number of elements of {element_bytes}")]
    Element {
        /// Bytes of a block.
        bytes: u64,
        /// Bytes of an element.
        element_bytes: u64,
    },
    /// An operation whose transfers carry blocks of other ranks.
    #[error("{0:?} cannot be planned for blocks of one length; known: Gather, Scatter, AllToAll")]
    Relayed(AskedOperation),
    /// No operation of that number.
    #[error("operation {0} is none; known: 0 to 7")]
    Operation(i32),
}

/// A plan's part of one rank, and where in the ranks' memory its blocks are.
#[derive(Debug)]
pub(crate) struct Planned {
    pub program: Arc<Program>,
    operation: Operation,
    ranks: usize,
    /// By block number in the plan, the caller's name for it, and where it begins there. `None` where the names are the
    /// numbers: a table of all pairs of ranks would be longer than the rank's own part.
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

    /// One rank's program of a plan, whose blocks have these names.
    pub fn of(program: Program, plan: &Plan, ranks: usize, named: Option<Vec<(u64, u64)>>) -> Self {
        Self {
            program: Arc::new(program),
            operation: plan.operation,
            ranks,
            named,
            predicted_s: plan.predicted_s,
        }
    }

    /// The caller's name for a block, and where it begins there.
    fn name(&self, block: usize) -> (u64, u64) {
        self.named
            .as_ref()
            .map_or((block as u64, 0), |named| named[block])
    }

    /// The rank that has a block from the beginning; of a vector that is combined, none.
    fn owner(&self, block: usize) -> Option<usize> {
        let (name, _) = self.name(block);
        match self.operation {
            Operation::Gather { .. } | Operation::AllGather => Some(name as usize),
            Operation::Scatter { root } | Operation::Broadcast { root } => Some(root),
            Operation::AllToAll => Some(name as usize / self.ranks),
            Operation::Reduce { .. } | Operation::ReduceScatter | Operation::AllReduce => None,
        }
    }

    /// Memory that it takes, about.
    pub fn memory_bytes(&self) -> usize {
        // A step is needed by another or two.
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

/// The caller's names of a plan's blocks: ranks, or 0 and where in the vector. Pairs of ranks are named by number.
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

/// A step as the caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// What it is.
    pub action: Action,
    /// With whom.
    pub peer: usize,
    /// Whose block, `from × ranks + to` in an all-to-all, 0 of a vector.
    pub block: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How much of it.
    pub bytes: u64,
}

/// One rank's part of one collective, under way.
#[derive(Debug)]
pub struct Work {
    planned: Arc<Planned>,
    engine: Engine,
    /// Whose part it is, and what comes to it.
    rank: usize,
    watch: Option<Box<(Arc<Seen>, Watch)>>,
}

impl Work {
    /// Begins `rank`'s part.
    ///
    /// # Errors
    /// What was asked for makes no sense.
    pub fn new(ranks: &Ranks, rank: usize, asked: Asked) -> Result<Self, WorkError> {
        Ok(Self::of(ranks, rank, ranks.planned(rank, asked)?))
    }

    /// Begins `rank`'s part of a collective of which it knows its own lengths only.
    ///
    /// # Errors
    /// The operation has transfers that are not direct, or there is not one length for each rank.
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

    /// A step to begin now, by its index, if there is one.
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

    /// A step is over. False if there is no such step.
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

    /// Whether all is done.
    pub fn is_over(&self) -> bool {
        self.engine.is_over()
    }

    /// How long the whole takes by the planner's reckoning, in seconds.
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
