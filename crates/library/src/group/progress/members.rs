//! Liveness of the peers, loss of ranks, and continuation without them.

use super::{Active, Progress};
use crate::group::frame::{Kind, Lane};
use crate::group::lane::Out;
use crate::group::ticket::{Done, Failure, Promise};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Number of heartbeats in the time after which a rank counts as lost (ADR 019).
const BEATS: u32 = 7;

/// Largest number of ranks with the full heartbeat rate. In larger groups heartbeats are rarer, so
/// each rank handles about 640 a second (ADR 019).
const RANKS_OFTEN_MAX: u32 = 64;

/// Times of the liveness check in a group of a given size.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    /// Time between two heartbeats to a peer.
    beat: Duration,
    /// Time without a sign of life after which a rank counts as lost. Large groups have rarer
    /// heartbeats, so it is longer there.
    silence: Duration,
}

impl Pulse {
    fn new(silence: Duration, ranks: usize) -> Self {
        let crowd = (ranks as u32).div_ceil(RANKS_OFTEN_MAX).max(1);
        let beat = silence / BEATS * crowd;
        Self {
            beat,
            silence: silence.max(beat * 3),
        }
    }

    /// Returns the maximum time to wait for events.
    fn tick(self) -> Duration {
        self.beat / 2
    }

    /// Returns the time between two turns after which this process itself must have been stopped.
    /// It exceeds a tick in groups of any size.
    fn stopped(self) -> Duration {
        self.silence / 2
    }
}

impl Progress {
    fn pulse(&self) -> Pulse {
        Pulse::new(self.settings.silence, self.peers.len())
    }

    /// Returns the maximum time to wait for events.
    pub(super) fn tick(&self) -> Duration {
        match self.is_closing {
            true => Duration::from_millis(1),
            false => self.pulse().tick(),
        }
    }

    /// Returns the time between two turns after which this process itself must have been stopped.
    pub(super) fn stopped(&self) -> Duration {
        self.pulse().stopped()
    }

    /// Checks the liveness of all peers and sends heartbeats.
    pub(super) fn watch(&mut self, now: Instant) {
        let Pulse { beat, silence } = self.pulse();
        self.dismiss(now);
        self.give_up_shrinking(now);
        if self.joins.is_some() {
            self.call_the_silent(now);
        }
        // If the ranks made different requests, the report of that has arrived by now.
        let is_due = |at: Instant| now.saturating_duration_since(at) > silence / 2;
        if let Some((sequence, text, _)) = self.odd.take_if(|(_, _, at)| is_due(*at)) {
            let is_now = |active: &Active| active.sequence == sequence;
            if self.active.as_ref().is_some_and(is_now) {
                self.disagree(sequence, text);
            }
        }
        for peer in self.others() {
            if self.joins.is_some() {
                self.lane(peer, Lane::Words);
            }
            let of = &self.peers[peer];
            // Heartbeats may be half an interval early, because ticks are half an interval apart.
            let is_due = now.saturating_duration_since(of.said_at) >= beat / 2;
            let is_silent = now.saturating_duration_since(of.heard_at) > silence;
            let is_broken = of
                .broken_at
                .is_some_and(|at| now.saturating_duration_since(at) > silence);
            let is_watched = self.joins.is_none() && of.left_after.is_none();
            if is_due && of.words.is_some() && of.left_after.is_none() {
                self.say(peer, Kind::Alive, 0, 0, &[]);
            }
            if is_watched && is_silent {
                self.lose(
                    peer,
                    format!("nothing received from it for {} ms", silence.as_millis()),
                );
            } else if is_watched && is_broken {
                self.lose(peer, "it cannot be reached".to_owned());
            }
        }
        if self.joins.is_some() && now - self.began_at > self.settings.patience {
            self.give_up_joining();
        }
    }

    /// Returns whether control messages can pass in both directions between a peer and this rank.
    fn is_found(&self, peer: usize) -> bool {
        let of = &self.peers[peer];
        of.words_in.is_some() && of.words.as_ref().is_some_and(Out::has_begun)
    }

    /// Settles the join if all ranks have found each other.
    pub(super) fn is_joined(&mut self) {
        if self.joins.is_some() && self.others().iter().all(|peer| self.is_found(*peer)) {
            let now = Instant::now();
            for peer in &mut self.peers {
                peer.heard_at = now;
            }
            if let Some(joins) = self.joins.take() {
                joins.settle(Ok(Done::default()));
            }
        }
    }

    fn give_up_joining(&mut self) {
        let others = self.others();
        let mut absent = others.into_iter().filter(|peer| !self.is_found(*peer));
        let Some(first) = absent.next() else { return };
        let count = absent.count();
        let patience = self.settings.patience.as_secs();
        let card = &self.settings.cards[first];
        let addresses: Vec<String> = card.addresses.iter().map(ToString::to_string).collect();
        let more = match count {
            0 => String::new(),
            count => format!("; the same holds for {count} other ranks"),
        };
        let why = format!(
            "rank {first} on {} ({}) {}; check that it runs, and that no firewall blocks connections between it and rank {}{more}",
            card.host,
            addresses.join(", "),
            match self.peers[first].words_in.is_some() {
                true => format!("cannot be reached, and has not called back for {patience} s"),
                false => format!("has not connected for {patience} s"),
            },
            self.settings.rank,
        );
        self.fail(Failure::System(why));
    }

    /// Handles the failure of a connection on which this rank sends.
    pub(super) fn broke(&mut self, peer: usize, lane: Lane) {
        *self.out(peer, lane) = None;
        let now = Instant::now();
        let of = &mut self.peers[peer];
        of.broken_at.get_or_insert(now);
        if lane != Lane::Words || self.joins.is_some() {
            return;
        }
        // The peer may have announced that it leaves, in a message not read yet.
        self.read_words(peer);
        if self.peers[peer].left_after.is_none() {
            self.lose(peer, "its connection has ended".to_owned());
        }
    }

    /// Marks a rank as lost, which fails all pending operations.
    pub(super) fn lose(&mut self, peer: usize, why: String) {
        let number = self.member(peer).unwrap_or(peer);
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
        let why = format!("{why} (it ran on {host})");
        let text = why.clone();
        self.say_to_all(Kind::Lost, 0, peer as u64, text.as_bytes());
        self.share();
        let of = &mut self.peers[peer];
        of.unsaid.clear();
        (of.words, of.words_in) = (None, None);
        self.fail(Failure::Lost { rank: number, why });
        if self.membership.is_voting() {
            self.vote();
        }
    }

    /// Fails all pending operations. New ones fail too until the group has shrunk.
    pub(super) fn fail(&mut self, failure: Failure) {
        let is_final = !matches!(failure, Failure::Lost { .. });
        let failure = match (is_final, &self.failure) {
            (false, Some(standing)) => standing.clone(),
            _ => failure,
        };
        self.failure = Some(failure.clone());
        if is_final {
            for (ticket, _) in self.shrinks.drain(..) {
                ticket.settle(Err(failure.clone()));
            }
        }
        if let Some(joins) = self.joins.take() {
            joins.settle(Err(failure.clone()));
        }
        self.abandon(&failure);
    }

    pub(super) fn abandon(&mut self, failure: &Failure) {
        let active = self.active.take().map(|active| active.ticket);
        let waiting = self.waiting.drain(..).map(|wanted| wanted.ticket);
        let messages = self.messages.abandon();
        let messages = messages.into_iter().map(|parcel| parcel.ticket);
        let mut all = active.into_iter().chain(waiting).chain(messages);
        all.by_ref()
            .for_each(|ticket| ticket.settle(Err(failure.clone())));
        let term = self.membership.term();
        for peer in &mut self.peers {
            (peer.pieces, peer.messages) = (None, None);
            // Connections of a term that has not begun here are kept.
            peer.pieces_in.take_if(|come| come.term <= term);
            peer.messages_in.take_if(|come| come.term <= term);
            (peer.got, peer.broken_at) = (0, None);
        }
    }

    /// Publishes the membership to the program.
    fn share(&self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = self.membership.clone();
    }

    /// Continues without the lost ranks when all remaining ranks have voted for it.
    pub(super) fn shrink(&mut self, ticket: Promise, until: Option<Instant>) {
        match &self.failure {
            None => ticket.settle(Ok(Done::default())),
            Some(Failure::Lost { .. }) => {
                self.shrinks.push((ticket, until));
                self.vote();
            }
            Some(other) => ticket.settle(Err(other.clone())),
        }
    }

    /// Fails the shrinks whose limit has passed. This rank's vote remains, so an agreement is still
    /// possible later.
    fn give_up_shrinking(&mut self, now: Instant) {
        let is_late = |until: &Option<Instant>| until.is_some_and(|until| now >= until);
        if !self.shrinks.iter().any(|(_, until)| is_late(until)) {
            return;
        }
        let silent = self.membership.silent();
        let first = silent.first().map_or(String::new(), |rank| {
            let member = self.member(*rank).unwrap_or(*rank);
            let more = match silent.len() {
                1 => String::new(),
                count => format!(", nor have {} other ranks", count - 1),
            };
            let host = &self.settings.cards[*rank].host;
            format!(": rank {member} on {host} has not called shrink{more}")
        });
        let failure = Failure::Late(format!(
            "not all ranks have agreed to shrink in time{first}"
        ));
        self.shrinks.retain(|(ticket, until)| {
            if is_late(until) {
                ticket.settle(Err(failure.clone()));
            }
            !is_late(until)
        });
    }

    fn vote(&mut self) {
        let set = self.membership.begin();
        self.say_to_all(Kind::Vote, 0, 0, &set);
        self.is_agreed();
    }

    /// Begins a new term if all remaining ranks agree.
    pub(super) fn is_agreed(&mut self) {
        if !self.membership.agree() {
            return;
        }
        self.share();
        self.failure = None;
        (self.begun, self.next_begun) = (0, 0);
        for peer in &mut self.peers {
            peer.later_bytes = 0;
        }
        self.past.clear();
        self.early.clear();
        self.early_count = 0;
        for peer in self.others() {
            if self.resume(peer, Lane::Pieces) {
                self.read_pieces(peer);
            }
            if self.resume(peer, Lane::Messages) {
                self.read_messages(peer);
            }
        }
        for (ticket, _) in self.shrinks.drain(..) {
            ticket.settle(Ok(Done::default()));
        }
        for (peer, header, body) in std::mem::take(&mut self.later) {
            if !self.membership.is_lost(peer) {
                self.hear(peer, header, &body);
            }
        }
    }

    /// Marks a rank as lost if it left before collective `sequence`, which needs it.
    pub(super) fn is_anybody_gone(&mut self, sequence: u64) {
        let is_gone = |peer: &usize| {
            let left_after = self.peers[*peer].left_after;
            left_after.is_some_and(|done| done <= sequence)
        };
        if let Some(gone) = self.others().into_iter().find(is_gone) {
            self.lose(gone, "it has left the group".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulse__any_group_size__never_takes_an_idle_turn_for_a_stopped_process() {
        let silence = Duration::from_millis(700);
        for ranks in [1, 2, 64, 384, 385, 1000, 16_384] {
            let pulse = Pulse::new(silence, ranks);
            assert!(pulse.tick() < pulse.stopped(), "{ranks} ranks: {pulse:?}");
            assert!(pulse.beat * 3 <= pulse.silence, "{ranks} ranks: {pulse:?}");
        }
    }
}
