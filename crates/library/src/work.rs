//! One rank's execution of one collective.

use crate::equal_blocks::{EqualBlocks, OwnBytes};
use crate::flow_log::{FlowLog, FlowRecorder};
use crate::rank_plan::RankPlan;
use crate::ranks::Ranks;
use crate::request::{Request, WorkError};
use kumi_coll::{Action, Engine};
use std::sync::Arc;

/// Step in the caller's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerStep {
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
    /// The peer needs the chunk now: it may pass it on, or it is the last one of its block.
    pub is_due: bool,
}

/// Progress of one rank in one collective.
#[derive(Debug)]
pub struct Work {
    plan: Arc<RankPlan>,
    engine: Engine,
    /// Rank that executes the plan, recorded as the receiver of the watched flows.
    rank: usize,
    recording: Option<Box<(Arc<FlowLog>, FlowRecorder)>>,
}

impl Work {
    /// Starts the execution of `rank`'s part of a collective.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn new(ranks: &Ranks, rank: usize, request: Request) -> Result<Self, WorkError> {
        Ok(Self::from_plan(ranks, rank, ranks.plan(rank, request)?))
    }

    /// Starts the execution of `rank`'s part of a collective in which it knows only its own
    /// lengths.
    ///
    /// # Errors
    /// The operation relays blocks, or the number of lengths is not the number of ranks.
    pub fn with_equal_blocks(
        ranks: &Ranks,
        rank: usize,
        request: EqualBlocks,
        own: &OwnBytes,
    ) -> Result<Self, WorkError> {
        let plan = ranks.order(rank, request)?.rank_plan(own)?;
        Ok(Self::from_plan(ranks, rank, Arc::new(plan)))
    }

    fn from_plan(ranks: &Ranks, rank: usize, plan: Arc<RankPlan>) -> Self {
        Self {
            engine: Engine::new(Arc::clone(&plan.program)),
            plan,
            rank,
            recording: ranks
                .flow_log()
                .map(|flow_log| Box::new((flow_log, FlowRecorder::default()))),
        }
    }

    /// Returns a step that may start now and its index, or `None` if no step may start.
    pub fn begin(&mut self) -> Option<(usize, CallerStep)> {
        let index = self.engine.begin()?;
        let plan_step = &self.plan.program.steps[index];
        let (block, block_offset) = match plan_step.action {
            Action::Grant | Action::Await => (0, 0),
            _ => self.plan.caller_block(plan_step.block as usize),
        };
        let step = CallerStep {
            action: plan_step.action,
            peer: plan_step.peer as usize,
            block,
            offset: block_offset + plan_step.offset,
            bytes: plan_step.bytes,
            is_due: self.plan.is_due(index),
        };
        Some((index, step))
    }

    /// Marks a step as complete. Returns false if the step does not exist.
    pub fn complete(&mut self, index: usize) -> bool {
        let Some(step) = self.plan.program.steps.get(index) else {
            return false;
        };
        if let (Some(recording), Action::Receive) = (&mut self.recording, step.action) {
            let (_, recorder) = &mut **recording;
            let peer = step.peer as usize;
            if self.plan.owner(step.block as usize) == Some(peer) {
                recorder.record(peer, step.bytes);
            }
        }
        self.engine.complete(index);
        true
    }

    /// Returns whether all steps are complete.
    pub fn is_complete(&self) -> bool {
        self.engine.is_complete()
    }

    /// Returns the planner's estimate of the collective's total time, in seconds.
    pub fn predicted_s(&self) -> f64 {
        self.plan.predicted_s
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let (Some(recording), true) = (&self.recording, self.engine.is_complete()) {
            let (flow_log, recorder) = &**recording;
            flow_log.append(self.rank, recorder.flows());
        }
    }
}
