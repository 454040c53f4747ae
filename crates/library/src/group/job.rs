//! Progress of one collective in a group: the chunks and grants awaited from each member.

use crate::group::combine::Combine;
use crate::group::memory::Memory;
use crate::work::{Named, Work};
use kumi_coll::Action;
use std::collections::VecDeque;

/// Action that is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Send this chunk to a member.
    Send(usize, Named),
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
    expected: Vec<VecDeque<(usize, Named)>>,
    /// Chunks sent to each member and not yet acknowledged, in order.
    sent: Vec<VecDeque<usize>>,
    /// Steps that await a grant, by member; and in `heard` the grants that arrived early.
    hears: Vec<VecDeque<usize>>,
    heard: Vec<u64>,
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
            expected: vec![VecDeque::new(); members],
            sent: vec![VecDeque::new(); members],
            hears: vec![VecDeque::new(); members],
            heard: vec![0; members],
        }
    }

    /// Returns the next due action, if there is one.
    pub fn next(&mut self) -> Option<Due> {
        while let Some((at, named)) = self.work.begin() {
            let peer = named.peer;
            match named.action {
                // A member acknowledges every chunk, including those that need no acknowledgement.
                Action::Send | Action::Post => {
                    self.sent[peer].push_back(at);
                    return Some(Due::Send(peer, named));
                }
                Action::Grant => {
                    self.work.complete(at);
                    return Some(Due::Grant(peer));
                }
                Action::Receive | Action::Combine => {
                    self.expected[peer].push_back((at, named));
                    return Some(Due::Expect(peer));
                }
                Action::Await if self.heard[peer] > 0 => {
                    self.heard[peer] -= 1;
                    self.work.complete(at);
                }
                Action::Await => self.hears[peer].push_back(at),
            }
        }
        None
    }

    /// Handles a number of grants from a member.
    pub fn hear(&mut self, peer: usize, words: u64) {
        for used in 0..words {
            match self.hears[peer].pop_front() {
                Some(at) => {
                    self.work.complete(at);
                }
                None => {
                    self.heard[peer] = self.heard[peer].saturating_add(words - used);
                    return;
                }
            }
        }
    }

    /// Handles an acknowledgement of `pieces` more chunks. Returns false if this rank did not send
    /// that many.
    #[must_use]
    pub fn got(&mut self, peer: usize, pieces: u64) -> bool {
        for _ in 0..pieces {
            match self.sent[peer].pop_front() {
                Some(at) => {
                    self.work.complete(at);
                }
                None => return false,
            }
        }
        true
    }

    /// Returns the chunk that a member is to send next.
    pub fn expects(&self, peer: usize) -> Option<Named> {
        self.expected[peer].front().map(|(_, named)| *named)
    }

    /// Returns the bytes of a chunk to send.
    pub fn out(&self, named: &Named) -> &[u8] {
        self.memory
            .out(named.block, named.offset, named.bytes as usize)
    }

    /// Returns the destination of a chunk that is not combined.
    pub fn place(&mut self, named: &Named) -> &mut [u8] {
        self.memory
            .place(named.block, named.offset, named.bytes as usize)
    }

    /// Completes the chunk that was expected next. A chunk to combine is in `scratch`; others are
    /// already at their destination.
    pub fn received(&mut self, peer: usize, scratch: &[u8]) {
        let Some((at, named)) = self.expected[peer].pop_front() else {
            return;
        };
        if let (Action::Combine, Some(combine)) = (named.action, self.combine) {
            combine(self.place(&named), scratch);
        }
        self.work.complete(at);
    }

    /// Returns whether all steps are complete. If they are, it also finishes the caller's memory.
    pub fn is_complete(&mut self) -> bool {
        let is_over = self.work.is_complete();
        if is_over {
            self.memory.finish();
        }
        is_over
    }
}
