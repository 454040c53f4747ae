//! Handling of the peers' control messages.

use super::collectives::{AHEAD_MAX, BEGUN_EVERY};
use super::{Active, EARLY_MAX, LATER_BYTES_MAX, Progress};
use crate::group::frame::{Header, Kind, Lane};
use crate::group::job::Due;
use crate::group::lane::{In, Took};
use crate::group::ticket::Failure;
use std::time::Instant;

impl Progress {
    pub(super) fn read_words(&mut self, peer: usize) {
        loop {
            let Some(come) = &mut self.peers[peer].words_in else {
                return;
            };
            let took = match come.header {
                None => match come.read_header() {
                    Ok(took) => took,
                    Err(_) => return self.lose(peer, "its control message is invalid".to_owned()),
                },
                Some(header) => come.read_scratch(header.bytes as usize),
            };
            match took {
                Took::Nothing => return,
                Took::End => {
                    self.peers[peer].words_in = None;
                    if self.peers[peer].left_after.is_none() && self.joins.is_none() {
                        self.lose(peer, "its connection has ended".to_owned());
                    }
                    return;
                }
                Took::Bytes(_) => {}
            }
            self.peers[peer].heard_at = Instant::now();
            let Some(come) = &mut self.peers[peer].words_in else {
                return;
            };
            if let Some((header, body)) = whole_word(come) {
                self.hear(peer, header, &body);
            }
        }
    }

    /// Handles a control message.
    pub(super) fn hear(&mut self, peer: usize, header: Header, body: &[u8]) {
        let text = || String::from_utf8_lossy(body).into_owned();
        match header.kind {
            Kind::Alive | Kind::Piece | Kind::Message => return,
            Kind::Lost => return self.hear_lost(peer, header.number, &text()),
            Kind::Vote => return self.hear_vote(peer, body),
            Kind::Bye => return self.hear_bye(peer, header),
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
        let is_sound = match header.kind {
            Kind::Grant => self.hear_tell(member, header),
            Kind::Got => self.hear_got(member, header),
            Kind::Request => self.hear_asked(peer, header.sequence, text()),
            Kind::Disagree => self.hear_disagree(header.sequence, text()),
            Kind::Offer => match <[u8; 8]>::try_from(body) {
                Ok(bytes) => {
                    let (name, tag) = (header.number, header.sequence);
                    self.messages
                        .offered(member, name, tag, u64::from_le_bytes(bytes));
                    true
                }
                Err(_) => false,
            },
            Kind::Begun => {
                self.next_begun = self.next_begun.max(header.sequence);
                peer == self.neighbours().1
            }
            Kind::Hold => self.messages.held(member, header.number).is_ok(),
            Kind::Want if header.number > 1 => false,
            Kind::Want => {
                let is_on = header.number == 1;
                self.messages.wanted(member, header.sequence, is_on).is_ok()
            }
            Kind::Take => self.hear_take(peer, member, header.number),
            Kind::Call => self.hear_call(peer, header.number),
            _ => self.hear_refuse(member, header.number, text()),
        };
        self.say_of_messages();
        if !is_sound {
            let kind = header.kind;
            self.lose(
                peer,
                format!("it sent an invalid control message ({kind:?})"),
            );
        }
    }

    fn hear_lost(&mut self, from: usize, lost: u64, why: &str) {
        let lost = usize::try_from(lost).unwrap_or(usize::MAX);
        if lost == self.settings.rank {
            return self.fail(Failure::Excluded(format!("rank {from} reports: {why}")));
        }
        if lost < self.peers.len() && !self.membership.is_lost(lost) {
            // The host is cut off, because `lose` appends it again.
            let why = why.split(" (it ran on").next().unwrap_or(why);
            self.lose(lost, format!("{why}, as rank {from} reports"));
        }
    }

    fn hear_vote(&mut self, from: usize, set: &[u8]) {
        let Some(news) = self.membership.hear(from, set) else {
            return self.lose(from, "it sent an invalid vote".to_owned());
        };
        for lost in news {
            if lost == self.settings.rank {
                let why = format!("rank {from} continues without it");
                return self.fail(Failure::Excluded(why));
            }
            self.lose(lost, format!("rank {from} continues without it"));
        }
        self.is_agreed();
    }

    fn hear_bye(&mut self, peer: usize, header: Header) {
        // Collectives of an earlier term do not count in this one.
        let done = match header.term == self.membership.term() {
            true => header.sequence,
            false => 0,
        };
        self.peers[peer].left_after = Some(done);
        let member = self.member(peer);
        let needs_it = member.is_some_and(|member| self.messages.needs(member));
        match &self.active {
            Some(active) => self.is_anybody_gone(active.sequence),
            None if needs_it => self.lose(peer, "it has left the group".to_owned()),
            None => {}
        }
        if self.membership.is_voting() {
            self.lose(peer, "it has left the group".to_owned());
        }
    }

    fn hear_tell(&mut self, member: usize, header: Header) -> bool {
        match &mut self.active {
            Some(active) if active.sequence == header.sequence => {
                active.job.hear(member, header.number);
                true
            }
            _ if header.sequence >= self.begun => {
                let early = self.early.entry(header.sequence).or_default();
                let heard = early.heard.entry(member).or_default();
                *heard = heard.saturating_add(header.number);
                self.early_count += 1;
                self.early_count <= EARLY_MAX
            }
            // That collective has failed.
            _ => true,
        }
    }

    fn hear_got(&mut self, member: usize, header: Header) -> bool {
        match &mut self.active {
            Some(active) if active.sequence == header.sequence => {
                active.job.got(member, header.number)
            }
            _ => header.sequence < self.begun,
        }
    }

    fn hear_asked(&mut self, peer: usize, sequence: u64, text: String) -> bool {
        if sequence >= self.begun {
            let early = self.early.entry(sequence).or_default();
            early.asked = Some((peer, text));
            self.early_count += 1;
            return sequence - self.begun <= 2 * AHEAD_MAX && self.early_count <= EARLY_MAX;
        }
        let active = self.active.as_ref();
        let now = active.filter(|active| active.sequence == sequence);
        let past = || self.past.iter().find(|(at, _)| *at == sequence);
        let own = match now {
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
    pub(super) fn agree_on_what(&mut self, sequence: u64) {
        let (before, next) = self.neighbours();
        if sequence % BEGUN_EVERY == 0 {
            self.say(before, Kind::Begun, sequence, 0, &[]);
        }
        let Some(own) = self.active.as_ref().map(|active| active.text.clone()) else {
            return;
        };
        self.say(next, Kind::Request, sequence, 0, own.as_bytes());
        // Control messages for earlier collectives are useless now.
        let later = self.early.split_off(&(sequence + 1));
        let Some(early) = self.early.remove(&sequence) else {
            self.early = later;
            return;
        };
        self.early = later;
        let left = self.early.values().map(|early| early.heard.len() + 1);
        self.early_count = left.sum();
        if let Some(active) = &mut self.active {
            for (member, words) in early.heard {
                active.job.hear(member, words);
            }
        }
        if let Some((peer, text)) = early.asked {
            self.compare(sequence, peer, &text, &own);
        }
        if let Some(text) = early.disagree {
            self.hear_disagree(sequence, text);
        }
    }

    fn compare(&mut self, sequence: u64, peer: usize, text: &str, own: &str) {
        if text == own {
            return;
        }
        let (rank, other) = (self.membership.rank(), self.member(peer).unwrap_or(peer));
        let text = format!("rank {other} requests {text}, and rank {rank} requests {own}");
        self.disagree(sequence, text);
    }

    /// Fails one collective on all ranks.
    pub(super) fn disagree(&mut self, sequence: u64, text: String) {
        self.say_to_all(Kind::Disagree, sequence, 0, text.as_bytes());
        self.hear_disagree(sequence, text);
    }

    fn hear_disagree(&mut self, sequence: u64, text: String) -> bool {
        if sequence >= self.begun {
            self.early.entry(sequence).or_default().disagree = Some(text);
            self.early_count += 1;
            return self.early_count <= EARLY_MAX;
        }
        let is_now = |active: &mut Active| active.sequence == sequence;
        if let Some(active) = self.active.take_if(is_now) {
            active.ticket.settle(Err(Failure::Disagree(text)));
            self.remember(sequence, active.text);
            for peer in 0..self.peers.len() {
                self.peers[peer].got = 0;
                if let Some(out) = &mut self.peers[peer].pieces {
                    out.forget_pieces();
                }
                // The expected chunk may never arrive, and the next one may be shorter.
                if let Some(come) = &mut self.peers[peer].pieces_in {
                    come.wait_for(None);
                }
                if self.resume(peer, Lane::Pieces) {
                    self.read_pieces(peer);
                }
            }
        }
        true
    }

    fn hear_refuse(&mut self, member: usize, name: u64, text: String) -> bool {
        let refused = self.messages.refused(member, name);
        if let Ok(Some(parcel)) = &refused {
            parcel.ticket.settle(Err(Failure::Message(text)));
        }
        refused.is_ok()
    }

    /// Performs a due action.
    pub(super) fn carry(&mut self, due: Due) {
        let Some(sequence) = self.active.as_ref().map(|active| active.sequence) else {
            return;
        };
        let peer = |member: usize| self.membership.members()[member];
        match due {
            Due::Grant(member) => self.say(peer(member), Kind::Grant, sequence, 1, &[]),
            Due::Send(member, named) => self.send_piece(peer(member), sequence, named),
            Due::Expect(member) => {
                let peer = peer(member);
                // The chunk expected before may never arrive, and the next one may be shorter.
                if let Some(come) = &mut self.peers[peer].pieces_in {
                    come.wait_for(None);
                }
                if self.resume(peer, Lane::Pieces) {
                    self.read_pieces(peer);
                }
            }
        }
    }
}

/// Returns a control message if it has arrived completely.
fn whole_word(come: &mut In) -> Option<(Header, Vec<u8>)> {
    let header = come.header?;
    if come.done < header.bytes as usize {
        return None;
    }
    come.header = None;
    Some((header, come.scratch[..header.bytes as usize].to_vec()))
}
