//! Transport of chunks and messages.

use super::{Progress, Ready};
use crate::group::frame::{Header, Kind, Lane};
use crate::group::lane::{Payload, Took};
use crate::group::messages::{Act, Parcel};
use crate::group::ticket::{Done, Failure};
use crate::work::Named;
use kumi_coll::Action;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::time::Instant;

/// Maximum number of bytes read from one connection before the others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// Destination of a received chunk.
enum Place {
    /// The active collective, at this step.
    Here(Named),
    /// None: it belongs to a collective that has failed, or to an earlier term.
    Nowhere,
    /// Not known yet, because the chunk is early.
    Later,
    /// None: it contradicts this step of the plan.
    Wrong(Named),
}

impl Progress {
    pub(super) fn send_piece(&mut self, peer: usize, sequence: u64, named: Named) {
        let header = Header {
            kind: Kind::Piece,
            term: self.membership.term(),
            sequence,
            number: 0,
            bytes: named.bytes,
        };
        if let Some(out) = self.lane(peer, Lane::Pieces) {
            let was_idle = out.is_idle();
            out.push(header.bytes().to_vec(), Some(Payload::Piece(named)));
            if was_idle {
                self.write(peer, Lane::Pieces);
            }
        }
    }

    /// Polls a paused connection again. Returns whether it was paused. The caller then has to read:
    /// the bytes already read may complete a frame, and epoll does not report those.
    pub(super) fn resume(&mut self, peer: usize, lane: Lane) -> bool {
        let token = Ready::In(peer, lane).token();
        let Self { peers, epoll, .. } = self;
        let come = match lane {
            Lane::Words => &mut peers[peer].words_in,
            Lane::Pieces => &mut peers[peer].pieces_in,
            Lane::Messages => &mut peers[peer].messages_in,
        };
        let Some(come) = come.as_mut().filter(|come| come.is_paused) else {
            return false;
        };
        come.is_paused = false;
        let _ = epoll.add(&*come, EpollEvent::new(EpollFlags::EPOLLIN, token));
        true
    }

    /// Pauses a connection. Its sender stops when TCP's window is full. The connection is not
    /// polled, because epoll would report its end over and over.
    fn pause(&mut self, peer: usize, lane: Lane) {
        let Self { peers, epoll, .. } = self;
        let come = match lane {
            Lane::Words => &mut peers[peer].words_in,
            Lane::Pieces => &mut peers[peer].pieces_in,
            Lane::Messages => &mut peers[peer].messages_in,
        };
        if let Some(come) = come {
            come.is_paused = true;
            let _ = epoll.delete(&*come);
        }
    }

    /// Returns the current header of a data connection, or `None` if it has not arrived completely.
    fn data_header(&mut self, peer: usize, lane: Lane) -> Option<Header> {
        let come = self.come(peer, lane).as_mut()?;
        while come.header.is_none() {
            match come.read_header() {
                Ok(Took::Bytes(_)) => {}
                Ok(Took::Nothing) => return None,
                Ok(Took::End) => {
                    *self.come(peer, lane) = None;
                    return None;
                }
                Err(_) => {
                    self.lose(peer, "it sent an invalid frame".to_owned());
                    return None;
                }
            }
        }
        self.peers[peer].heard_at = Instant::now();
        self.come(peer, lane).as_ref()?.header
    }

    pub(super) fn read_pieces(&mut self, peer: usize) {
        self.read_pieces_there(peer);
        let expected = self.member(peer).zip(self.active.as_ref());
        let expected = expected.and_then(|(member, active)| active.job.expects(member));
        if let Some(come) = &mut self.peers[peer].pieces_in {
            come.wait_for(expected.map(|named| named.bytes));
        }
    }

    fn read_pieces_there(&mut self, peer: usize) {
        let mut turn = 0;
        while turn < TURN_BYTES {
            let Some(header) = self.data_header(peer, Lane::Pieces) else {
                return;
            };
            let Some(member) = self.member(peer) else {
                return;
            };
            let place = self.place_of(member, &header);
            let took = match place {
                Place::Later => return self.pause(peer, Lane::Pieces),
                Place::Wrong(named) => {
                    let rank = self.membership.rank();
                    let (has, bytes) = (header.bytes, named.bytes);
                    let text = format!(
                        "rank {member} sends a chunk of {has} bytes where rank {rank} expects one of {bytes} bytes"
                    );
                    // A difference between the ranks' requests explains more. Its report may still
                    // be in flight, so this one is kept for later.
                    self.odd
                        .get_or_insert((header.sequence, text, Instant::now()));
                    return self.pause(peer, Lane::Pieces);
                }
                Place::Nowhere => self.discard(peer, Lane::Pieces, header.bytes),
                Place::Here(named) => self.read_piece(peer, &named),
            };
            let Some(Took::Bytes(bytes)) = took else {
                return;
            };
            turn += bytes;
            let is_whole = |come: &crate::group::lane::In| come.done as u64 == header.bytes;
            let come = self.peers[peer].pieces_in.as_mut();
            if let Some(come) = come.filter(|come| is_whole(come)) {
                come.header = None;
                if matches!(place, Place::Here(_)) {
                    let scratch = std::mem::take(&mut come.scratch);
                    if let Some(active) = &mut self.active {
                        active.job.received(member, &scratch);
                    }
                    self.peers[peer].got += 1;
                    // Keep the allocation for the next chunk.
                    if let Some(come) = &mut self.peers[peer].pieces_in {
                        come.scratch = scratch;
                    }
                }
            }
        }
    }

    fn place_of(&self, member: usize, header: &Header) -> Place {
        if header.term < self.membership.term() {
            return Place::Nowhere;
        }
        if header.term > self.membership.term() || self.failure.is_some() {
            return Place::Later;
        }
        match &self.active {
            Some(active) if active.sequence == header.sequence => {
                match active.job.expects(member) {
                    Some(named) if named.bytes == header.bytes => Place::Here(named),
                    Some(named) => Place::Wrong(named),
                    None => Place::Later,
                }
            }
            _ if header.sequence < self.begun => Place::Nowhere,
            _ => Place::Later,
        }
    }

    fn read_piece(&mut self, peer: usize, named: &Named) -> Option<Took> {
        let come = self.peers[peer].pieces_in.as_mut()?;
        let took = match (named.action, &mut self.active) {
            (Action::Receive, Some(active)) => come.read_into(active.job.place(named)),
            _ => come.read_scratch(named.bytes as usize),
        };
        self.after_read(peer, Lane::Pieces, took)
    }

    fn discard(&mut self, peer: usize, lane: Lane, bytes: u64) -> Option<Took> {
        let took = self.come(peer, lane).as_mut()?.discard(bytes);
        self.after_read(peer, lane, took)
    }

    /// Handles the outcome of a read. Returns `None` if no more can be read now.
    fn after_read(&mut self, peer: usize, lane: Lane, took: Took) -> Option<Took> {
        match took {
            Took::Bytes(_) => {
                self.peers[peer].heard_at = Instant::now();
                Some(took)
            }
            Took::Nothing => None,
            Took::End => {
                *self.come(peer, lane) = None;
                None
            }
        }
    }

    pub(super) fn send(&mut self, parcel: Parcel) {
        if let Some(failure) = &self.failure {
            return parcel.ticket.settle(Err(failure.clone()));
        }
        let Some(member) = parcel.peer else { return };
        match self.messages.send(parcel) {
            Ok(()) => {
                self.say_of_messages();
                self.is_missed(member);
            }
            Err((parcel, why)) => parcel.ticket.settle(Err(Failure::Message(why))),
        }
    }

    pub(super) fn receive(&mut self, parcel: Parcel) {
        if let Some(failure) = &self.failure {
            return parcel.ticket.settle(Err(failure.clone()));
        }
        let (from, rank) = (parcel.peer, self.membership.rank());
        let others = (0..self.membership.members().len()).filter(|member| *member != rank);
        match self.messages.receive(parcel, others) {
            Ok(()) => {
                self.say_of_messages();
                if let Some(member) = from {
                    self.is_missed(member);
                }
            }
            Err((parcel, why)) => parcel.ticket.settle(Err(Failure::Message(why))),
        }
    }

    /// Sends the due control messages about point-to-point messages.
    pub(super) fn say_of_messages(&mut self) {
        for (member, act) in self.messages.acts() {
            let peer = self.membership.members()[member];
            match act {
                Act::Offer { name, tag, bytes } => {
                    self.say(peer, Kind::Offer, tag, name, &bytes.to_le_bytes());
                }
                Act::Take { name } => self.say(peer, Kind::Take, 0, name, &[]),
                Act::Hold { name } => self.say(peer, Kind::Hold, 0, name, &[]),
                Act::Want { tag, is_on } => self.say(peer, Kind::Want, tag, u64::from(is_on), &[]),
                Act::Refuse {
                    name,
                    bytes,
                    place_bytes,
                } => {
                    let rank = self.membership.rank();
                    let text = format!(
                        "a message of {bytes} bytes from rank {member} does not fit the buffer of {place_bytes} bytes \
                         on rank {rank}"
                    );
                    self.say(peer, Kind::Refuse, 0, name, text.as_bytes());
                    if let Some(parcel) = self.messages.received(member, name) {
                        parcel.ticket.settle(Err(Failure::Message(text)));
                    }
                }
            }
        }
    }

    /// Marks a member as lost if it has left and a message needs it.
    fn is_missed(&mut self, member: usize) {
        let peer = self.membership.members()[member];
        if self.peers[peer].left_after.is_some() && self.messages.needs(member) {
            self.lose(peer, "it has left the group".to_owned());
        }
    }

    /// Handles a take: sends the offered message. Returns false if there is no such offer.
    pub(super) fn hear_take(&mut self, peer: usize, member: usize, name: u64) -> bool {
        let Ok(bytes) = self.messages.taken(member, name) else {
            return false;
        };
        self.say_of_messages();
        let header = Header {
            kind: Kind::Message,
            term: self.membership.term(),
            sequence: 0,
            number: name,
            bytes,
        };
        if let Some(out) = self.lane(peer, Lane::Messages) {
            out.push(
                header.bytes().to_vec(),
                Some(Payload::Message(name, header.bytes)),
            );
            self.write(peer, Lane::Messages);
        }
        true
    }

    pub(super) fn read_messages(&mut self, peer: usize) {
        let mut turn = 0;
        while turn < TURN_BYTES {
            let Some(header) = self.data_header(peer, Lane::Messages) else {
                return;
            };
            let Some(member) = self.member(peer) else {
                return;
            };
            if header.term > self.membership.term() {
                return self.pause(peer, Lane::Messages);
            }
            let Self {
                peers, messages, ..
            } = self;
            let Some(come) = &mut peers[peer].messages_in else {
                return;
            };
            let took = match messages.incoming(member, header.number) {
                Some(parcel) if parcel.bytes == header.bytes => {
                    come.read_into(parcel.memory.place(0, 0, header.bytes as usize))
                }
                _ => return self.lose(peer, "it sent a message that was not accepted".to_owned()),
            };
            let Some(Took::Bytes(bytes)) = self.after_read(peer, Lane::Messages, took) else {
                return;
            };
            turn += bytes;
            let come = self.peers[peer].messages_in.as_mut();
            let is_whole = |come: &crate::group::lane::In| come.done as u64 == header.bytes;
            if let Some(come) = come.filter(|come| is_whole(come)) {
                come.header = None;
                if let Some(parcel) = self.messages.received(member, header.number) {
                    parcel.ticket.settle(Ok(Done {
                        from: member,
                        bytes: parcel.bytes,
                    }));
                }
            }
        }
    }
}
