//! Execution of collectives in order, and the limit on a rank's lead over the others.

use super::{Active, Progress, Wanted};
use crate::group::frame::Kind;
use crate::group::job::Job;
use crate::group::ticket::{Done, Failure};

/// Maximum number of collectives by which a rank may be ahead of the next member. That member
/// stores a description of each, of about 100 bytes. Without a limit, the lead of a rank that only
/// sends or whose blocks are empty would be unbounded.
pub(super) const AHEAD_MAX: u64 = 1024;

/// Number of collectives between two messages of kind `Begun`.
pub(super) const BEGUN_EVERY: u64 = AHEAD_MAX / 4;

/// Number of completed collectives whose descriptions are kept.
const PAST_MAX: usize = 64;

impl Progress {
    pub(super) fn want(&mut self, wanted: Wanted) {
        match &self.failure {
            Some(failure) => wanted.ticket.settle(Err(failure.clone())),
            None if wanted.term != self.membership.term() => {
                let why = "a rank was lost and the group has shrunk; repeat the request".to_owned();
                wanted.ticket.settle(Err(Failure::Message(why)));
            }
            None => self.waiting.push_back(wanted),
        }
    }

    /// Continues the active collective, and begins the next one when it is complete.
    pub(super) fn advance(&mut self) {
        loop {
            if self.active.is_none() && !self.begin() {
                return;
            }
            while let Some(due) = self.active.as_mut().and_then(|active| active.job.next()) {
                self.carry(due);
            }
            // A failed send may have ended the collective.
            if self.active.is_some() && !self.complete() {
                return;
            }
        }
    }

    /// Ends the active collective if all its steps are complete. Returns whether it did.
    pub(super) fn complete(&mut self) -> bool {
        if !self
            .active
            .as_mut()
            .is_some_and(|active| active.job.is_complete())
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

    /// Acknowledges the received chunks while their collective is still the active one.
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

    /// Begins the next collective. Returns false without one, or if it must wait.
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

    /// Returns the previous and the next member of the ring that the members form.
    pub(super) fn neighbours(&self) -> (usize, usize) {
        let (members, rank) = (self.membership.members(), self.membership.rank());
        let count = members.len();
        (
            members[(rank + count - 1) % count],
            members[(rank + 1) % count],
        )
    }

    /// Returns whether the next collective must wait until the next member has caught up. The rank
    /// that is furthest behind never waits, so some rank always proceeds.
    fn is_far_ahead(&self) -> bool {
        let (_, next) = self.neighbours();
        next != self.settings.rank
            && self.peers[next].left_after.is_none()
            && self.begun > self.next_begun.saturating_add(AHEAD_MAX)
    }
}
