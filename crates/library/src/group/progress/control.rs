//! Handling of the peers' control messages.

use super::collectives::{AHEAD_MAX, BEGUN_INTERVAL};
use super::{ActiveCollective, EARLY_MAX, LATER_BYTES_MAX, Progress};
use crate::group::channel::{InConnection, ReadOutcome};
use crate::group::frame::{Channel, Header, Kind};
use crate::group::job::DueAction;
use crate::group::ticket::Failure;
use std::time::Instant;

impl Progress {
    pub(super) fn read_control(&mut self, peer: usize) {
        loop {
            let Some(connection) = &mut self.peers[peer].control_in else {
                return;
            };
            let outcome = match connection.header {
                None => match connection.read_header() {
                    Ok(outcome) => outcome,
                    Err(_) => return self.lose(peer, "its control message is invalid".to_owned()),
                },
                Some(header) => connection.read_scratch(header.bytes as usize),
            };
            match outcome {
                ReadOutcome::WouldBlock => return,
                ReadOutcome::End => {
                    self.peers[peer].control_in = None;
                    if self.peers[peer].leave_sequence.is_none() && self.join_promise.is_none() {
                        self.lose(peer, "its connection has ended".to_owned());
                    }
                    return;
                }
                ReadOutcome::Bytes(_) => {}
            }
            self.peers[peer].received_at = Instant::now();
            let Some(connection) = &mut self.peers[peer].control_in else {
                return;
            };
            if let Some((header, body)) = take_control_message(connection) {
                self.handle_control(peer, header, &body);
            }
        }
    }

    /// Handles a control message.
    pub(super) fn handle_control(&mut self, peer: usize, header: Header, body: &[u8]) {
        let text = || String::from_utf8_lossy(body).into_owned();
        match header.kind {
            Kind::Alive | Kind::Chunk | Kind::Message => return,
            Kind::Lost => return self.handle_lost(peer, header.number, &text()),
            Kind::Vote => return self.handle_vote(peer, body),
            Kind::Bye => return self.handle_bye(peer, header),
            _ => {}
        }
        let term = self.membership.term();
        if header.term > term {
            let bytes = &mut self.peers[peer].later_bytes;
            *bytes += size_of::<(usize, Header, Vec<u8>)>() + body.len();
            match *bytes > LATER_BYTES_MAX {
                true => self.lose(peer, "it sent too many control messages early".to_owned()),
                false => self.later.push((peer, header, body.to_vec())),
            }
            return;
        }
        let Some(member) = self.member(peer) else {
            return;
        };
        if header.term < term || self.failure.is_some() {
            return;
        }
        let is_valid = match header.kind {
            Kind::Grant => self.handle_grant(member, header),
            Kind::Ack => self.handle_ack(member, header),
            Kind::Request => self.handle_request(peer, header.sequence, text()),
            Kind::Disagree => self.handle_disagree(header.sequence, text()),
            Kind::Offer => match <[u8; 8]>::try_from(body) {
                Ok(bytes) => {
                    let (name, tag) = (header.number, header.sequence);
                    self.messages
                        .handle_offer(member, name, tag, u64::from_le_bytes(bytes));
                    true
                }
                Err(_) => false,
            },
            Kind::Begun => {
                self.next_member_sequence = self.next_member_sequence.max(header.sequence);
                peer == self.neighbours().1
            }
            Kind::Hold => self.messages.handle_hold(member, header.number).is_ok(),
            Kind::Want if header.number > 1 => false,
            Kind::Want => {
                let is_on = header.number == 1;
                self.messages
                    .handle_want(member, header.sequence, is_on)
                    .is_ok()
            }
            Kind::Take => self.handle_take(peer, member, header.number),
            Kind::Call => self.handle_call(peer, header.number),
            _ => self.handle_refuse(member, header.number, text()),
        };
        self.queue_message_control();
        if !is_valid {
            let kind = header.kind;
            self.lose(
                peer,
                format!("it sent an invalid control message ({kind:?})"),
            );
        }
    }

    fn handle_lost(&mut self, from: usize, lost: u64, reason: &str) {
        let lost = usize::try_from(lost).unwrap_or(usize::MAX);
        if lost == self.settings.rank {
            return self.fail(Failure::Excluded(format!("rank {from} reports: {reason}")));
        }
        if lost < self.peers.len() && !self.membership.is_lost(lost) {
            // The host is cut off, because `lose` appends it again.
            let reason = reason.split(" (it ran on").next().unwrap_or(reason);
            self.lose(lost, format!("{reason}, as rank {from} reports"));
        }
    }

    fn handle_vote(&mut self, from: usize, set: &[u8]) {
        let Some(new_losses) = self.membership.record_vote(from, set) else {
            return self.lose(from, "it sent an invalid vote".to_owned());
        };
        for lost in new_losses {
            if lost == self.settings.rank {
                let reason = format!("rank {from} continues without it");
                return self.fail(Failure::Excluded(reason));
            }
            self.lose(lost, format!("rank {from} continues without it"));
        }
        self.try_begin_term();
    }

    fn handle_bye(&mut self, peer: usize, header: Header) {
        // Collectives of an earlier term do not count in this one.
        let completed = match header.term == self.membership.term() {
            true => header.sequence,
            false => 0,
        };
        self.peers[peer].leave_sequence = Some(completed);
        let member = self.member(peer);
        let needs_it = member.is_some_and(|member| self.messages.needs(member));
        match &self.active {
            Some(active) => self.lose_departed(active.sequence),
            None if needs_it => self.lose(peer, "it has left the group".to_owned()),
            None => {}
        }
        if self.membership.is_voting() {
            self.lose(peer, "it has left the group".to_owned());
        }
    }

    fn handle_grant(&mut self, member: usize, header: Header) -> bool {
        match &mut self.active {
            Some(active) if active.sequence == header.sequence => {
                active.job.add_grants(member, header.number);
                true
            }
            _ if header.sequence >= self.begun_count => {
                let early = self.early.entry(header.sequence).or_default();
                let grants = early.grants.entry(member).or_default();
                *grants = grants.saturating_add(header.number);
                self.early_count += 1;
                self.early_count <= EARLY_MAX
            }
            // That collective has failed.
            _ => true,
        }
    }

    pub(super) fn handle_ack(&mut self, member: usize, header: Header) -> bool {
        match &mut self.active {
            Some(active) if active.sequence == header.sequence => {
                active.job.acknowledge(member, header.number)
            }
            _ => header.sequence < self.begun_count,
        }
    }

    fn handle_request(&mut self, peer: usize, sequence: u64, text: String) -> bool {
        if sequence >= self.begun_count {
            let early = self.early.entry(sequence).or_default();
            early.request = Some((peer, text));
            self.early_count += 1;
            return sequence - self.begun_count <= 2 * AHEAD_MAX && self.early_count <= EARLY_MAX;
        }
        let active = self.active.as_ref();
        let current = active.filter(|active| active.sequence == sequence);
        let past = || {
            self.past_requests
                .iter()
                .find(|(past_sequence, _)| *past_sequence == sequence)
        };
        let own = match current {
            Some(active) => Some(active.text.clone()),
            None => past().map(|(_, text)| text.clone()),
        };
        if let Some(own) = own {
            self.compare(sequence, peer, &text, &own);
        }
        true
    }

    /// Sends this rank's request to the next member, and compares the previous member's request
    /// with it. If not all ranks make the same request, some two neighbours differ.
    pub(super) fn exchange_request(&mut self, sequence: u64) {
        let (previous, next) = self.neighbours();
        if sequence % BEGUN_INTERVAL == 0 {
            self.queue_control(previous, Kind::Begun, sequence, 0, &[]);
        }
        let Some(own) = self.active.as_ref().map(|active| active.text.clone()) else {
            return;
        };
        self.queue_control(next, Kind::Request, sequence, 0, own.as_bytes());
        // Control messages for earlier collectives are useless now.
        let later = self.early.split_off(&(sequence + 1));
        let Some(early) = self.early.remove(&sequence) else {
            self.early = later;
            return;
        };
        self.early = later;
        let counts = self.early.values().map(|early| early.grants.len() + 1);
        self.early_count = counts.sum();
        if let Some(active) = &mut self.active {
            for (member, grants) in early.grants {
                active.job.add_grants(member, grants);
            }
        }
        if let Some((peer, text)) = early.request {
            self.compare(sequence, peer, &text, &own);
        }
        if let Some(text) = early.disagreement {
            self.handle_disagree(sequence, text);
        }
    }

    fn compare(&mut self, sequence: u64, peer: usize, text: &str, own: &str) {
        if text == own {
            return;
        }
        let (rank, peer_rank) = (self.membership.rank(), self.member(peer).unwrap_or(peer));
        let text = format!("rank {peer_rank} requests {text}, and rank {rank} requests {own}");
        self.disagree(sequence, text);
    }

    /// Fails one collective on all ranks.
    pub(super) fn disagree(&mut self, sequence: u64, text: String) {
        self.queue_control_to_all(Kind::Disagree, sequence, 0, text.as_bytes());
        self.handle_disagree(sequence, text);
    }

    fn handle_disagree(&mut self, sequence: u64, text: String) -> bool {
        if sequence >= self.begun_count {
            self.early.entry(sequence).or_default().disagreement = Some(text);
            self.early_count += 1;
            return self.early_count <= EARLY_MAX;
        }
        let is_current = |active: &mut ActiveCollective| active.sequence == sequence;
        if let Some(active) = self.active.take_if(is_current) {
            active.ticket.settle(Err(Failure::Disagree(text)));
            self.remember(sequence, active.text);
            if let Some(wind) = &mut self.wind {
                wind.drop_unsent();
            }
            for peer in 0..self.peers.len() {
                self.deliver_wind(peer);
                self.peers[peer].unacked_chunks = 0;
                if let Some(connection) = &mut self.peers[peer].chunks_out {
                    connection.drop_chunks();
                }
                // The expected chunk may never arrive, and the next one may be shorter.
                if let Some(connection) = &mut self.peers[peer].chunks_in {
                    connection.set_low_water(None);
                }
                if self.resume(peer, Channel::Chunks) {
                    self.read_chunks(peer);
                }
            }
        }
        true
    }

    fn handle_refuse(&mut self, member: usize, name: u64, text: String) -> bool {
        let result = self.messages.handle_refuse(member, name);
        if let Ok(Some(parcel)) = &result {
            parcel.ticket.settle(Err(Failure::Message(text)));
        }
        result.is_ok()
    }

    /// Performs a due action.
    pub(super) fn perform(&mut self, action: DueAction) {
        let Some(sequence) = self.active.as_ref().map(|active| active.sequence) else {
            return;
        };
        let peer = |member: usize| self.membership.members()[member];
        match action {
            DueAction::Grant(member) => {
                self.queue_control(peer(member), Kind::Grant, sequence, 1, &[])
            }
            DueAction::Send(member, step) => self.send_chunk(peer(member), sequence, step),
            DueAction::Expect(member) => {
                let peer = peer(member);
                self.deliver_wind(peer);
                // The chunk expected before may never arrive, and the next one may be shorter.
                if let Some(connection) = &mut self.peers[peer].chunks_in {
                    connection.set_low_water(None);
                }
                if self.resume(peer, Channel::Chunks) {
                    self.read_chunks(peer);
                }
            }
        }
    }
}

/// Returns a control message if it has arrived completely.
fn take_control_message(connection: &mut InConnection) -> Option<(Header, Vec<u8>)> {
    let header = connection.header?;
    if connection.read_bytes < header.bytes as usize {
        return None;
    }
    connection.header = None;
    Some((header, connection.scratch[..header.bytes as usize].to_vec()))
}
