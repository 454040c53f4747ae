//! One rank's execution of one collective.

use crate::equal_blocks::{EqualBlocks, OwnBytes};
use crate::flow_log::{FlowLog, Watch};
use crate::rank_plan::RankPlan;
use crate::ranks::Ranks;
use crate::request::{Request, WorkError};
use kumi_coll::{Action, Engine};
use std::sync::Arc;

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
    planned: Arc<RankPlan>,
    engine: Engine,
    /// Rank that executes the plan, recorded as the receiver of the watched flows.
    rank: usize,
    watch: Option<Box<(Arc<FlowLog>, Watch)>>,
}

impl Work {
    /// Starts the execution of `rank`'s part of a collective.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn new(ranks: &Ranks, rank: usize, asked: Request) -> Result<Self, WorkError> {
        Ok(Self::of(ranks, rank, ranks.planned(rank, asked)?))
    }

    /// Starts the execution of `rank`'s part of a collective in which it knows only its own
    /// lengths.
    ///
    /// # Errors
    /// The operation relays blocks, or the number of lengths is not the number of ranks.
    pub fn like(
        ranks: &Ranks,
        rank: usize,
        like: EqualBlocks,
        own: &OwnBytes,
    ) -> Result<Self, WorkError> {
        let planned = ranks.order(rank, like)?.planned(own)?;
        Ok(Self::of(ranks, rank, Arc::new(planned)))
    }

    fn of(ranks: &Ranks, rank: usize, planned: Arc<RankPlan>) -> Self {
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
            Action::Grant | Action::Await => (0, 0),
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
    pub fn complete(&mut self, step: usize) -> bool {
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
        self.engine.complete(step);
        true
    }

    /// Returns whether all steps are complete.
    pub fn is_complete(&self) -> bool {
        self.engine.is_complete()
    }

    /// Returns the planner's estimate of the collective's total time, in seconds.
    pub fn predicted_s(&self) -> f64 {
        self.planned.predicted_s
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let (Some(kept), true) = (&self.watch, self.engine.is_complete()) {
            let (seen, watch) = &**kept;
            seen.keep(self.rank, watch.flows());
        }
    }
}
