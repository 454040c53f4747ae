//! A collective under way in a group: what it waits for of whom.

use crate::group::combine::Combine;
use crate::group::memory::Memory;
use crate::work::{Named, Work};
use kumi_coll::Action;
use std::collections::VecDeque;

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Send this piece to a member.
    Send(usize, Named),
    /// Tell a member to go on.
    Tell(usize),
    /// A piece of a member has a place now.
    Expect(usize),
}

/// One rank's part of one collective, its peers the members by their ranks of now.
pub struct Job {
    work: Work,
    memory: Box<dyn Memory>,
    combine: Option<Combine>,
    /// Of each member, pieces that are to come, in order.
    expected: Vec<VecDeque<(usize, Named)>>,
    /// Of each member, pieces sent that it has not received.
    sent: Vec<VecDeque<usize>>,
    /// Of each member, its words that are waited for, and those that came before.
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

    /// The next thing to do, if there is one.
    pub fn next(&mut self) -> Option<Due> {
        while let Some((at, named)) = self.work.begin() {
            let peer = named.peer;
            match named.action {
                // A member answers every piece, also one that need not be.
                Action::Send | Action::Post => {
                    self.sent[peer].push_back(at);
                    return Some(Due::Send(peer, named));
                }
                Action::Tell => {
                    self.work.over(at);
                    return Some(Due::Tell(peer));
                }
                Action::Receive | Action::Combine => {
                    self.expected[peer].push_back((at, named));
                    return Some(Due::Expect(peer));
                }
                Action::Hear if self.heard[peer] > 0 => {
                    self.heard[peer] -= 1;
                    self.work.over(at);
                }
                Action::Hear => self.hears[peer].push_back(at),
            }
        }
        None
    }

    /// A member says so often that this rank may go on.
    pub fn hear(&mut self, peer: usize, words: u64) {
        for used in 0..words {
            match self.hears[peer].pop_front() {
                Some(at) => {
                    self.work.over(at);
                }
                None => {
                    self.heard[peer] = self.heard[peer].saturating_add(words - used);
                    return;
                }
            }
        }
    }

    /// A member has received so many more pieces. False if it was not sent as many.
    #[must_use]
    pub fn got(&mut self, peer: usize, pieces: u64) -> bool {
        for _ in 0..pieces {
            match self.sent[peer].pop_front() {
                Some(at) => {
                    self.work.over(at);
                }
                None => return false,
            }
        }
        true
    }

    /// The piece that comes next from a member.
    pub fn expects(&self, peer: usize) -> Option<Named> {
        self.expected[peer].front().map(|(_, named)| *named)
    }

    /// What a piece is read from.
    pub fn out(&self, named: &Named) -> &[u8] {
        self.memory
            .out(named.block, named.offset, named.bytes as usize)
    }

    /// Where a piece goes that is not combined.
    pub fn place(&mut self, named: &Named) -> &mut [u8] {
        self.memory
            .place(named.block, named.offset, named.bytes as usize)
    }

    /// The piece that was expected next has come; to `scratch` if it is to be combined.
    pub fn received(&mut self, peer: usize, scratch: &[u8]) {
        let Some((at, named)) = self.expected[peer].pop_front() else {
            return;
        };
        if let (Action::Combine, Some(combine)) = (named.action, self.combine) {
            combine(self.place(&named), scratch);
        }
        self.work.over(at);
    }

    /// Whether all is done; then its memory is as it should be.
    pub fn is_over(&mut self) -> bool {
        let is_over = self.work.is_over();
        if is_over {
            self.memory.finish();
        }
        is_over
    }
}
