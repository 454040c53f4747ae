//! Progress of one collective in a group: the chunks and grants awaited from each member.

use crate::group::combine::Combine;
use crate::group::memory::Memory;
use crate::work::{CallerStep, Work};
use kumi_coll::Action;
use std::collections::VecDeque;

/// Action that is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueAction {
    /// Send this chunk to a member.
    Send(usize, CallerStep),
    /// Send a grant to a member.
    Grant(usize),
    /// Read from a member, because its next chunk now has a destination.
    Expect(usize),
}

/// Execution of one collective by one rank. Peers are members, by their current ranks.
pub struct Job {
    work: Work,
    memory: Box<dyn Memory>,
    combine: Option<Combine>,
    /// Chunks that each member is to send, in order.
    expected_chunks: Vec<VecDeque<(usize, CallerStep)>>,
    /// Chunks sent to each member and not yet acknowledged, in order.
    sent_steps: Vec<VecDeque<usize>>,
    /// Steps that await a grant, by member; and in `early_grants` the grants that arrived early.
    waiting_steps: Vec<VecDeque<usize>>,
    early_grants: Vec<u64>,
}

impl Job {
    pub fn new(
        work: Work,
        memory: Box<dyn Memory>,
        combine: Option<Combine>,
        members: usize,
    ) -> Self {
        Self {
            work,
            memory,
            combine,
            expected_chunks: vec![VecDeque::new(); members],
            sent_steps: vec![VecDeque::new(); members],
            waiting_steps: vec![VecDeque::new(); members],
            early_grants: vec![0; members],
        }
    }

    /// Returns the next due action, if there is one.
    pub fn next(&mut self) -> Option<DueAction> {
        while let Some((index, step)) = self.work.begin() {
            let peer = step.peer;
            match step.action {
                // A member acknowledges every chunk, including those that need no acknowledgement.
                Action::Send | Action::Post => {
                    self.sent_steps[peer].push_back(index);
                    return Some(DueAction::Send(peer, step));
                }
                Action::Grant => {
                    self.work.complete(index);
                    return Some(DueAction::Grant(peer));
                }
                Action::Receive | Action::Combine => {
                    self.expected_chunks[peer].push_back((index, step));
                    return Some(DueAction::Expect(peer));
                }
                Action::Await if self.early_grants[peer] > 0 => {
                    self.early_grants[peer] -= 1;
                    self.work.complete(index);
                }
                Action::Await => self.waiting_steps[peer].push_back(index),
            }
        }
        None
    }

    /// Handles a number of grants from a member.
    pub fn add_grants(&mut self, peer: usize, count: u64) {
        for used in 0..count {
            match self.waiting_steps[peer].pop_front() {
                Some(index) => {
                    self.work.complete(index);
                }
                None => {
                    self.early_grants[peer] = self.early_grants[peer].saturating_add(count - used);
                    return;
                }
            }
        }
    }

    /// Handles an acknowledgement of `chunks` more chunks. Returns false if this rank did not send
    /// that many.
    #[must_use]
    pub fn acknowledge(&mut self, peer: usize, chunks: u64) -> bool {
        for _ in 0..chunks {
            match self.sent_steps[peer].pop_front() {
                Some(index) => {
                    self.work.complete(index);
                }
                None => return false,
            }
        }
        true
    }

    /// Returns the chunk that a member is to send next.
    pub fn next_chunk(&self, peer: usize) -> Option<CallerStep> {
        self.expected_chunks[peer].front().map(|(_, step)| *step)
    }

    /// Returns the bytes of a chunk to send.
    pub fn source(&self, step: &CallerStep) -> &[u8] {
        self.memory
            .source(step.block, step.offset, step.bytes as usize)
    }

    /// Returns the destination of a chunk that is not combined.
    pub fn destination(&mut self, step: &CallerStep) -> &mut [u8] {
        self.memory
            .destination(step.block, step.offset, step.bytes as usize)
    }

    /// Completes the chunk that was expected next. A chunk to combine is in `scratch`; others are
    /// already at their destination.
    pub fn complete_chunk(&mut self, peer: usize, scratch: &[u8]) {
        let Some((index, step)) = self.expected_chunks[peer].pop_front() else {
            return;
        };
        if let (Action::Combine, Some(combine)) = (step.action, self.combine) {
            combine(self.destination(&step), scratch);
        }
        self.work.complete(index);
    }

    /// Returns whether all steps are complete. If they are, it also finishes the caller's memory.
    pub fn is_complete(&mut self) -> bool {
        let is_complete = self.work.is_complete();
        if is_complete {
            self.memory.finish();
        }
        is_complete
    }
}
