//! Execution of collectives in order, and the limit on a rank's lead over the others.

use super::{ActiveCollective, Progress, QueuedCollective};
use crate::group::frame::Kind;
use crate::group::job::Job;
use crate::group::ticket::{Completion, Failure};

/// Maximum number of collectives by which a rank may be ahead of the next member. That member
/// stores a description of each, of about 100 bytes. Without a limit, the lead of a rank that only
/// sends or whose blocks are empty would be unbounded.
pub(super) const AHEAD_MAX: u64 = 1024;

/// Number of collectives between two messages of kind `Begun`.
pub(super) const BEGUN_INTERVAL: u64 = AHEAD_MAX / 4;

/// Number of completed collectives whose descriptions are kept.
const PAST_MAX: usize = 64;

impl Progress {
    pub(super) fn queue_collective(&mut self, collective: QueuedCollective) {
        match &self.failure {
            Some(failure) => collective.ticket.settle(Err(failure.clone())),
            None if collective.term != self.membership.term() => {
                let reason =
                    "a rank was lost and the group has shrunk; repeat the request".to_owned();
                collective.ticket.settle(Err(Failure::Message(reason)));
            }
            None => self.queued_collectives.push_back(collective),
        }
    }

    /// Continues the active collective, and begins the next one when it is complete.
    pub(super) fn advance(&mut self) {
        loop {
            if self.active.is_none() && !self.begin() {
                return;
            }
            while let Some(action) = self.active.as_mut().and_then(|active| active.job.next()) {
                self.perform(action);
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
        if let Some(active) = self.active.take() {
            // The program may end as soon as it knows, and the others need what is queued.
            self.queue_acks(active.sequence);
            self.flush_control();
            self.remember(active.sequence, active.text);
            active.ticket.settle(Ok(Completion::default()));
        }
        true
    }

    /// Acknowledges the received chunks of a collective.
    fn queue_acks(&mut self, sequence: u64) {
        for peer in 0..self.peers.len() {
            let count = std::mem::take(&mut self.peers[peer].unacked_chunks);
            if count > 0 {
                self.queue_control(peer, Kind::Ack, sequence, count, &[]);
            }
        }
    }

    pub(super) fn remember(&mut self, sequence: u64, text: String) {
        if self.past_requests.len() == PAST_MAX {
            self.past_requests.pop_front();
        }
        self.past_requests.push_back((sequence, text));
    }

    /// Begins the next collective. Returns false without one, or if it must wait.
    fn begin(&mut self) -> bool {
        if self.join_promise.is_some() || self.is_far_ahead() {
            return false;
        }
        let Some(collective) = self.queued_collectives.pop_front() else {
            return false;
        };
        let sequence = self.begun_count;
        self.begun_count += 1;
        let Some(work) = collective.work else {
            let mut memory = collective.memory;
            memory.finish();
            collective.ticket.settle(Ok(Completion::default()));
            return true;
        };
        let members = self.membership.members().len();
        self.active = Some(ActiveCollective {
            job: Job::new(work, collective.memory, collective.combine, members),
            sequence,
            text: collective.text,
            ticket: collective.ticket,
        });
        self.exchange_request(sequence);
        self.lose_departed(sequence);
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
            && self.peers[next].leave_sequence.is_none()
            && self.begun_count > self.next_member_sequence.saturating_add(AHEAD_MAX)
    }
}
