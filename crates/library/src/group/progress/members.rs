//! Liveness of the peers, loss of ranks, and continuation without them.

use super::{ActiveCollective, Progress};
use crate::group::channel::OutConnection;
use crate::group::frame::{Channel, Kind};
use crate::group::ticket::{Completion, Failure, Promise};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Number of heartbeats in the time after which a rank counts as lost (ADR 019).
const HEARTBEATS: u32 = 7;

/// Largest number of ranks with the full heartbeat rate. In larger groups heartbeats are rarer, so
/// each rank handles about 640 a second (ADR 019).
const FULL_RATE_RANKS_MAX: u32 = 64;

/// Times of the liveness check in a group of a given size.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    /// Time between two heartbeats to a peer.
    heartbeat_interval: Duration,
    /// Time without a sign of life after which a rank counts as lost. Large groups have rarer
    /// heartbeats, so it is longer there.
    loss_timeout: Duration,
}

impl Pulse {
    fn new(loss_timeout: Duration, ranks: usize) -> Self {
        let factor = (ranks as u32).div_ceil(FULL_RATE_RANKS_MAX).max(1);
        let heartbeat_interval = loss_timeout / HEARTBEATS * factor;
        Self {
            heartbeat_interval,
            loss_timeout: loss_timeout.max(heartbeat_interval * 3),
        }
    }

    /// Returns the maximum time to wait for events.
    fn tick(self) -> Duration {
        self.heartbeat_interval / 2
    }

    /// Returns the time between two turns after which this process itself must have been stopped.
    /// It exceeds a tick in groups of any size.
    fn stop_threshold(self) -> Duration {
        self.loss_timeout / 2
    }
}

impl Progress {
    fn pulse(&self) -> Pulse {
        Pulse::new(self.settings.loss_timeout, self.peers.len())
    }

    /// Returns the maximum time to wait for events.
    pub(super) fn tick(&self) -> Duration {
        match self.is_closing {
            true => Duration::from_millis(1),
            false => self.pulse().tick(),
        }
    }

    /// Returns the time between two turns after which this process itself must have been stopped.
    pub(super) fn stop_threshold(&self) -> Duration {
        self.pulse().stop_threshold()
    }

    /// Checks the liveness of all peers and sends heartbeats.
    pub(super) fn check_liveness(&mut self, now: Instant) {
        let Pulse {
            heartbeat_interval,
            loss_timeout,
        } = self.pulse();
        self.expire_strangers(now);
        self.lose_silent_on_wind();
        self.fail_late_shrinks(now);
        if self.join_promise.is_some() {
            self.call_missing_peers(now);
        }
        // If the ranks made different requests, the report of that has arrived by now.
        let is_due = |start: Instant| now.saturating_duration_since(start) > loss_timeout / 2;
        if let Some((sequence, text, _)) =
            self.unexpected_chunk.take_if(|(_, _, time)| is_due(*time))
        {
            let is_current = |active: &ActiveCollective| active.sequence == sequence;
            if self.active.as_ref().is_some_and(is_current) {
                self.disagree(sequence, text);
            }
        }
        for peer in self.live_peers() {
            if self.join_promise.is_some() {
                self.open_connection(peer, Channel::Control);
            }
            let state = &self.peers[peer];
            // Heartbeats may be half an interval early, because ticks are half an interval apart.
            let is_due = now.saturating_duration_since(state.sent_at) >= heartbeat_interval / 2;
            let is_silent = now.saturating_duration_since(state.received_at) > loss_timeout;
            let is_broken = state
                .broken_at
                .is_some_and(|time| now.saturating_duration_since(time) > loss_timeout);
            let is_watched = self.join_promise.is_none() && state.leave_sequence.is_none();
            if is_due && state.control_out.is_some() && state.leave_sequence.is_none() {
                self.queue_control(peer, Kind::Alive, 0, 0, &[]);
            }
            if is_watched && is_silent {
                self.lose(
                    peer,
                    format!(
                        "nothing received from it for {} ms",
                        loss_timeout.as_millis()
                    ),
                );
            } else if is_watched && is_broken {
                self.lose(peer, "it cannot be reached".to_owned());
            }
        }
        if self.join_promise.is_some() && now - self.began_at > self.settings.start_timeout {
            self.fail_join();
        }
    }

    /// Returns whether control messages can pass in both directions between a peer and this rank.
    fn is_connected(&self, peer: usize) -> bool {
        let state = &self.peers[peer];
        state.control_in.is_some()
            && state
                .control_out
                .as_ref()
                .is_some_and(OutConnection::is_established)
    }

    /// Settles the join if all ranks have found each other.
    pub(super) fn settle_join(&mut self) {
        if self.join_promise.is_some()
            && self
                .live_peers()
                .iter()
                .all(|peer| self.is_connected(*peer))
        {
            let now = Instant::now();
            for peer in &mut self.peers {
                peer.received_at = now;
            }
            if let Some(join_promise) = self.join_promise.take() {
                join_promise.settle(Ok(Completion::default()));
            }
        }
    }

    fn fail_join(&mut self) {
        let peers = self.live_peers();
        let mut absent = peers.into_iter().filter(|peer| !self.is_connected(*peer));
        let Some(first) = absent.next() else { return };
        let count = absent.count();
        let timeout_s = self.settings.start_timeout.as_secs();
        let card = &self.settings.cards[first];
        let addresses: Vec<String> = card.addresses.iter().map(ToString::to_string).collect();
        let suffix = match count {
            0 => String::new(),
            count => format!("; the same holds for {count} other ranks"),
        };
        let reason = format!(
            "rank {first} on {} ({}) {}; check that it runs, and that no firewall blocks connections between it and rank {}{suffix}",
            card.host,
            addresses.join(", "),
            match self.peers[first].control_in.is_some() {
                true => format!("cannot be reached, and has not called back for {timeout_s} s"),
                false => format!("has not connected for {timeout_s} s"),
            },
            self.settings.rank,
        );
        self.fail(Failure::System(reason));
    }

    /// Handles the failure of a connection on which this rank sends.
    pub(super) fn handle_broken_connection(&mut self, peer: usize, channel: Channel) {
        *self.out_connection(peer, channel) = None;
        let now = Instant::now();
        let state = &mut self.peers[peer];
        state.broken_at.get_or_insert(now);
        if channel != Channel::Control || self.join_promise.is_some() {
            return;
        }
        // The peer may have announced that it leaves, in a message not read yet.
        self.read_control(peer);
        if self.peers[peer].leave_sequence.is_none() {
            self.lose(peer, "its connection has ended".to_owned());
        }
    }

    /// Marks a rank as lost, which fails all pending operations.
    pub(super) fn lose(&mut self, peer: usize, reason: String) {
        let rank = self.member(peer).unwrap_or(peer);
        if self.is_closing || self.membership.is_lost(peer) {
            return;
        }
        // The last step may have completed during this turn. A collective that completed before the
        // loss does not fail.
        self.complete();
        if !self.membership.lose(peer) {
            return;
        }
        let host = &self.settings.cards[peer].host;
        let reason = format!("{reason} (it ran on {host})");
        let text = reason.clone();
        self.queue_control_to_all(Kind::Lost, 0, peer as u64, text.as_bytes());
        self.publish_membership();
        let state = &mut self.peers[peer];
        state.unsent_control.clear();
        (state.control_out, state.control_in) = (None, None);
        self.fail(Failure::Lost { rank, reason });
        if self.membership.is_voting() {
            self.vote();
        }
    }

    /// Fails all pending operations. New ones fail too until the group has shrunk.
    pub(super) fn fail(&mut self, failure: Failure) {
        let is_final = !matches!(failure, Failure::Lost { .. });
        let failure = match (is_final, &self.failure) {
            (false, Some(current)) => current.clone(),
            _ => failure,
        };
        self.failure = Some(failure.clone());
        if is_final {
            for (ticket, _) in self.shrinks.drain(..) {
                ticket.settle(Err(failure.clone()));
            }
        }
        if let Some(join_promise) = self.join_promise.take() {
            join_promise.settle(Err(failure.clone()));
        }
        self.abandon(&failure);
    }

    pub(super) fn abandon(&mut self, failure: &Failure) {
        let active = self.active.take().map(|active| active.ticket);
        let queued = self
            .queued_collectives
            .drain(..)
            .map(|collective| collective.ticket);
        let messages = self.messages.abandon();
        let messages = messages.into_iter().map(|parcel| parcel.ticket);
        let mut tickets = active.into_iter().chain(queued).chain(messages);
        tickets
            .by_ref()
            .for_each(|ticket| ticket.settle(Err(failure.clone())));
        if let Some(wind) = &mut self.wind {
            wind.drop_unsent();
        }
        let term = self.membership.term();
        for peer in &mut self.peers {
            (peer.chunks_out, peer.messages_out) = (None, None);
            // Connections of a term that has not begun here are kept.
            peer.chunks_in.take_if(|connection| connection.term <= term);
            peer.messages_in
                .take_if(|connection| connection.term <= term);
            (peer.unacked_chunks, peer.broken_at) = (0, None);
        }
    }

    /// Publishes the membership to the program.
    fn publish_membership(&self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = self.membership.clone();
    }

    /// Continues without the lost ranks when all remaining ranks have voted for it.
    pub(super) fn shrink(&mut self, ticket: Promise, deadline: Option<Instant>) {
        match &self.failure {
            None => ticket.settle(Ok(Completion::default())),
            Some(Failure::Lost { .. }) => {
                self.shrinks.push((ticket, deadline));
                self.vote();
            }
            Some(failure) => ticket.settle(Err(failure.clone())),
        }
    }

    /// Fails the shrinks whose limit has passed. This rank's vote remains, so an agreement is still
    /// possible later.
    fn fail_late_shrinks(&mut self, now: Instant) {
        let is_late = |deadline: &Option<Instant>| deadline.is_some_and(|end| now >= end);
        if !self.shrinks.iter().any(|(_, deadline)| is_late(deadline)) {
            return;
        }
        let missing = self.membership.missing_votes();
        let detail = missing.first().map_or(String::new(), |rank| {
            let member = self.member(*rank).unwrap_or(*rank);
            let suffix = match missing.len() {
                1 => String::new(),
                count => format!(", nor have {} other ranks", count - 1),
            };
            let host = &self.settings.cards[*rank].host;
            format!(": rank {member} on {host} has not called shrink{suffix}")
        });
        let failure = Failure::Late(format!(
            "not all ranks have agreed to shrink in time{detail}"
        ));
        self.shrinks.retain(|(ticket, deadline)| {
            if is_late(deadline) {
                ticket.settle(Err(failure.clone()));
            }
            !is_late(deadline)
        });
    }

    fn vote(&mut self) {
        let set = self.membership.begin();
        self.queue_control_to_all(Kind::Vote, 0, 0, &set);
        self.try_begin_term();
    }

    /// Begins a new term if all remaining ranks agree.
    pub(super) fn try_begin_term(&mut self) {
        if !self.membership.agree() {
            return;
        }
        self.publish_membership();
        self.failure = None;
        (self.begun_count, self.next_member_sequence) = (0, 0);
        for peer in &mut self.peers {
            peer.later_bytes = 0;
        }
        self.past_requests.clear();
        self.early.clear();
        self.early_count = 0;
        for peer in self.live_peers() {
            self.deliver_wind(peer);
            if self.resume(peer, Channel::Chunks) {
                self.read_chunks(peer);
            }
            if self.resume(peer, Channel::Messages) {
                self.read_messages(peer);
            }
        }
        for (ticket, _) in self.shrinks.drain(..) {
            ticket.settle(Ok(Completion::default()));
        }
        for (peer, header, body) in std::mem::take(&mut self.later) {
            if !self.membership.is_lost(peer) {
                self.handle_control(peer, header, &body);
            }
        }
    }

    /// Marks a rank as lost if it left before collective `sequence`, which needs it.
    pub(super) fn lose_departed(&mut self, sequence: u64) {
        let is_gone = |peer: &usize| {
            let leave_sequence = self.peers[*peer].leave_sequence;
            leave_sequence.is_some_and(|completed| completed <= sequence)
        };
        if let Some(peer) = self.live_peers().into_iter().find(is_gone) {
            self.lose(peer, "it has left the group".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulse__any_group_size__never_takes_an_idle_turn_for_a_stopped_process() {
        let loss_timeout = Duration::from_millis(700);
        for ranks in [1, 2, 64, 384, 385, 1000, 16_384] {
            let pulse = Pulse::new(loss_timeout, ranks);
            assert!(
                pulse.tick() < pulse.stop_threshold(),
                "{ranks} ranks: {pulse:?}"
            );
            assert!(
                pulse.heartbeat_interval * 3 <= pulse.loss_timeout,
                "{ranks} ranks: {pulse:?}"
            );
        }
    }
}
