//! Collectives, one after the other, and how far ahead of the others this rank may be.

use super::{Active, Progress, Wanted};
use crate::group::frame::Kind;
use crate::group::job::Job;
use crate::group::ticket::{Done, Failure};

/// Collectives that a rank may be ahead of the next member. That member keeps what each of them is, 100 bytes or so:
/// a rank whose blocks are empty, or who only sends, could otherwise be ahead without limit.
pub(super) const AHEAD_MAX: u64 = 1024;

/// Collectives between two words that a rank has begun them.
pub(super) const BEGUN_EVERY: u64 = AHEAD_MAX / 4;

/// Collectives that are over, of which it is known what was asked for.
const PAST_MAX: usize = 64;

impl Progress {
    pub(super) fn want(&mut self, wanted: Wanted) {
        match &self.failure {
            Some(failure) => wanted.ticket.settle(Err(failure.clone())),
            None if wanted.term != self.membership.term() => {
                let why = "a member is lost, and the group has shrunk since".to_owned();
                wanted.ticket.settle(Err(Failure::Message(why)));
            }
            None => self.waiting.push_back(wanted),
        }
    }

    /// Goes on with the collective under way, and begins the next when it is over.
    pub(super) fn advance(&mut self) {
        loop {
            if self.active.is_none() && !self.begin() {
                return;
            }
            while let Some(due) = self.active.as_mut().and_then(|active| active.job.next()) {
                self.carry(due);
            }
            // What was being sent may have failed.
            if self.active.is_some() && !self.complete() {
                return;
            }
        }
    }

    /// Ends the collective under way if nothing of it is left to do.
    pub(super) fn complete(&mut self) -> bool {
        if !self
            .active
            .as_mut()
            .is_some_and(|active| active.job.is_over())
        {
            return false;
        }
        self.flush_got();
        if let Some(active) = self.active.take() {
            self.remember(active.sequence, active.text);
            active.ticket.settle(Ok(Done::default()));
        }
        true
    }

    /// Says what was received of a collective while it is the one under way.
    fn flush_got(&mut self) {
        let Some(sequence) = self.active.as_ref().map(|active| active.sequence) else {
            return;
        };
        for peer in 0..self.peers.len() {
            let got = std::mem::take(&mut self.peers[peer].got);
            if got > 0 {
                self.say(peer, Kind::Got, sequence, got, &[]);
            }
        }
    }

    pub(super) fn remember(&mut self, sequence: u64, text: String) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back((sequence, text));
    }

    /// Begins the next collective. False if there is none, or not yet.
    fn begin(&mut self) -> bool {
        if self.joins.is_some() || self.is_far_ahead() {
            return false;
        }
        let Some(wanted) = self.waiting.pop_front() else {
            return false;
        };
        let sequence = self.begun;
        self.begun += 1;
        let Some(work) = wanted.work else {
            let mut memory = wanted.memory;
            memory.finish();
            wanted.ticket.settle(Ok(Done::default()));
            return true;
        };
        let members = self.membership.members().len();
        self.active = Some(Active {
            job: Job::new(work, wanted.memory, wanted.combine, members),
            sequence,
            text: wanted.text,
            ticket: wanted.ticket,
        });
        self.agree_on_what(sequence);
        self.is_anybody_gone(sequence);
        true
    }

    /// The members before and behind this rank in their circle.
    pub(super) fn neighbours(&self) -> (usize, usize) {
        let (members, rank) = (self.membership.members(), self.membership.rank());
        let count = members.len();
        (
            members[(rank + count - 1) % count],
            members[(rank + 1) % count],
        )
    }

    /// Whether the next collective has to wait until the next member is nearer. Of all ranks the one that is furthest
    /// behind never waits, so some rank goes on.
    fn is_far_ahead(&self) -> bool {
        let (_, next) = self.neighbours();
        next != self.settings.rank
            && self.peers[next].left_after.is_none()
            && self.begun > self.next_begun.saturating_add(AHEAD_MAX)
    }
}
