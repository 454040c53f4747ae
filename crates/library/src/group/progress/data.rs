//! Transport of chunks and messages.

use super::{EventSource, Progress};
use crate::group::channel::{Payload, ReadOutcome};
use crate::group::frame::{Channel, Header, Kind};
use crate::group::messages::{ControlMessage, Parcel};
use crate::group::ticket::{Completion, Failure};
use crate::work::CallerStep;
use kumi_coll::Action;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::time::Instant;

/// Maximum number of bytes read from one connection before the others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// Destination of a received chunk.
pub(super) enum Destination {
    /// The active collective, at this step.
    Step(CallerStep),
    /// None: it belongs to a collective that has failed, or to an earlier term.
    Discard,
    /// Not known yet, because the chunk is early.
    Unknown,
    /// None: it contradicts this step of the plan.
    Mismatch(CallerStep),
}

impl Progress {
    pub(super) fn send_chunk(&mut self, peer: usize, sequence: u64, step: CallerStep) {
        let header = Header {
            kind: Kind::Chunk,
            term: self.membership.term(),
            sequence,
            number: 0,
            bytes: step.bytes,
        };
        if let Some(wind) = &mut self.wind {
            wind.push(peer, header, step);
            self.flush_wind(peer);
        } else if let Some(connection) = self.open_connection(peer, Channel::Chunks) {
            let was_idle = connection.is_idle();
            connection.push(header.bytes().to_vec(), Some(Payload::Chunk(step)));
            if was_idle {
                self.write(peer, Channel::Chunks);
            }
        }
    }

    /// Polls a paused connection again. Returns whether it was paused. The caller then has to read:
    /// the bytes already read may complete a frame, and epoll does not report those.
    pub(super) fn resume(&mut self, peer: usize, channel: Channel) -> bool {
        let token = EventSource::In(peer, channel).token();
        let Self { peers, epoll, .. } = self;
        let slot = match channel {
            Channel::Control => &mut peers[peer].control_in,
            Channel::Chunks => &mut peers[peer].chunks_in,
            Channel::Messages => &mut peers[peer].messages_in,
        };
        let Some(connection) = slot.as_mut().filter(|connection| connection.is_paused) else {
            return false;
        };
        connection.is_paused = false;
        let _ = epoll.add(&*connection, EpollEvent::new(EpollFlags::EPOLLIN, token));
        true
    }

    /// Pauses a connection. Its sender stops when TCP's window is full. The connection is not
    /// polled, because epoll would report its end over and over.
    fn pause(&mut self, peer: usize, channel: Channel) {
        let Self { peers, epoll, .. } = self;
        let slot = match channel {
            Channel::Control => &mut peers[peer].control_in,
            Channel::Chunks => &mut peers[peer].chunks_in,
            Channel::Messages => &mut peers[peer].messages_in,
        };
        if let Some(connection) = slot {
            connection.is_paused = true;
            let _ = epoll.delete(&*connection);
        }
    }

    /// Returns the current header of a data connection, or `None` if it has not arrived completely.
    fn data_header(&mut self, peer: usize, channel: Channel) -> Option<Header> {
        let connection = self.in_connection(peer, channel).as_mut()?;
        while connection.header.is_none() {
            match connection.read_header() {
                Ok(ReadOutcome::Bytes(_)) => {}
                Ok(ReadOutcome::WouldBlock) => return None,
                Ok(ReadOutcome::End) => {
                    *self.in_connection(peer, channel) = None;
                    return None;
                }
                Err(_) => {
                    self.lose(peer, "it sent an invalid frame".to_owned());
                    return None;
                }
            }
        }
        self.peers[peer].received_at = Instant::now();
        self.in_connection(peer, channel).as_ref()?.header
    }

    pub(super) fn read_chunks(&mut self, peer: usize) {
        self.read_available_chunks(peer);
        let current = self.member(peer).zip(self.active.as_ref());
        let next_chunk = current.and_then(|(member, active)| active.job.next_chunk(member));
        if let Some(connection) = &mut self.peers[peer].chunks_in {
            connection.set_low_water(next_chunk.map(|step| step.bytes));
        }
    }

    fn read_available_chunks(&mut self, peer: usize) {
        let mut turn_bytes = 0;
        while turn_bytes < TURN_BYTES {
            let Some(header) = self.data_header(peer, Channel::Chunks) else {
                return;
            };
            let Some(member) = self.member(peer) else {
                return;
            };
            let destination = self.find_destination(member, &header);
            let outcome = match destination {
                Destination::Unknown => return self.pause(peer, Channel::Chunks),
                Destination::Mismatch(step) => {
                    self.note_mismatch(member, &header, &step);
                    return self.pause(peer, Channel::Chunks);
                }
                Destination::Discard => self.discard(peer, Channel::Chunks, header.bytes),
                Destination::Step(step) => self.read_chunk(peer, &step),
            };
            let Some(ReadOutcome::Bytes(bytes)) = outcome else {
                return;
            };
            turn_bytes += bytes;
            let is_complete = |connection: &crate::group::channel::InConnection| {
                connection.read_bytes as u64 == header.bytes
            };
            let connection = self.peers[peer].chunks_in.as_mut();
            if let Some(connection) = connection.filter(|connection| is_complete(connection)) {
                connection.header = None;
                if matches!(destination, Destination::Step(_)) {
                    let scratch = std::mem::take(&mut connection.scratch);
                    if let Some(active) = &mut self.active {
                        active.job.complete_chunk(member, &scratch);
                    }
                    self.peers[peer].unacked_chunks += 1;
                    // Keep the allocation for the next chunk.
                    if let Some(connection) = &mut self.peers[peer].chunks_in {
                        connection.scratch = scratch;
                    }
                }
            }
        }
    }

    /// Keeps the report of a chunk that contradicts this step of the plan. A difference between the
    /// ranks' requests explains more, and its report may still be in flight.
    pub(super) fn note_mismatch(&mut self, member: usize, header: &Header, step: &CallerStep) {
        let rank = self.membership.rank();
        let (received_bytes, expected_bytes) = (header.bytes, step.bytes);
        let text = format!(
            "rank {member} sends a chunk of {received_bytes} bytes where rank {rank} expects one of {expected_bytes} bytes"
        );
        self.unexpected_chunk
            .get_or_insert((header.sequence, text, Instant::now()));
    }

    pub(super) fn find_destination(&self, member: usize, header: &Header) -> Destination {
        if header.term < self.membership.term() {
            return Destination::Discard;
        }
        if header.term > self.membership.term() || self.failure.is_some() {
            return Destination::Unknown;
        }
        match &self.active {
            Some(active) if active.sequence == header.sequence => {
                match active.job.next_chunk(member) {
                    Some(step) if step.bytes == header.bytes => Destination::Step(step),
                    Some(step) => Destination::Mismatch(step),
                    None => Destination::Unknown,
                }
            }
            _ if header.sequence < self.begun_count => Destination::Discard,
            _ => Destination::Unknown,
        }
    }

    fn read_chunk(&mut self, peer: usize, step: &CallerStep) -> Option<ReadOutcome> {
        let connection = self.peers[peer].chunks_in.as_mut()?;
        let outcome = match (step.action, &mut self.active) {
            (Action::Receive, Some(active)) => connection.read_into(active.job.destination(step)),
            _ => connection.read_scratch(step.bytes as usize),
        };
        self.handle_read(peer, Channel::Chunks, outcome)
    }

    fn discard(&mut self, peer: usize, channel: Channel, bytes: u64) -> Option<ReadOutcome> {
        let outcome = self.in_connection(peer, channel).as_mut()?.discard(bytes);
        self.handle_read(peer, channel, outcome)
    }

    /// Handles the outcome of a read. Returns `None` if no more can be read now.
    fn handle_read(
        &mut self,
        peer: usize,
        channel: Channel,
        outcome: ReadOutcome,
    ) -> Option<ReadOutcome> {
        match outcome {
            ReadOutcome::Bytes(_) => {
                self.peers[peer].received_at = Instant::now();
                Some(outcome)
            }
            ReadOutcome::WouldBlock => None,
            ReadOutcome::End => {
                *self.in_connection(peer, channel) = None;
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
                self.queue_message_control();
                self.lose_if_left(member);
            }
            Err((parcel, reason)) => parcel.ticket.settle(Err(Failure::Message(reason))),
        }
    }

    pub(super) fn receive(&mut self, parcel: Parcel) {
        if let Some(failure) = &self.failure {
            return parcel.ticket.settle(Err(failure.clone()));
        }
        let (from, rank) = (parcel.peer, self.membership.rank());
        let members = (0..self.membership.members().len()).filter(|member| *member != rank);
        match self.messages.receive(parcel, members) {
            Ok(()) => {
                self.queue_message_control();
                if let Some(member) = from {
                    self.lose_if_left(member);
                }
            }
            Err((parcel, reason)) => parcel.ticket.settle(Err(Failure::Message(reason))),
        }
    }

    /// Sends the due control messages about point-to-point messages.
    pub(super) fn queue_message_control(&mut self) {
        for (member, message) in self.messages.drain_control_messages() {
            let peer = self.membership.members()[member];
            match message {
                ControlMessage::Offer { name, tag, bytes } => {
                    self.queue_control(peer, Kind::Offer, tag, name, &bytes.to_le_bytes());
                }
                ControlMessage::Take { name } => self.queue_control(peer, Kind::Take, 0, name, &[]),
                ControlMessage::Hold { name } => self.queue_control(peer, Kind::Hold, 0, name, &[]),
                ControlMessage::Want { tag, is_on } => {
                    self.queue_control(peer, Kind::Want, tag, u64::from(is_on), &[])
                }
                ControlMessage::Refuse {
                    name,
                    bytes,
                    buffer_bytes,
                } => {
                    let rank = self.membership.rank();
                    let text = format!(
                        "a message of {bytes} bytes from rank {member} does not fit the buffer of {buffer_bytes} bytes \
                         on rank {rank}"
                    );
                    self.queue_control(peer, Kind::Refuse, 0, name, text.as_bytes());
                    if let Some(parcel) = self.messages.remove_incoming(member, name) {
                        parcel.ticket.settle(Err(Failure::Message(text)));
                    }
                }
            }
        }
    }

    /// Marks a member as lost if it has left and a message needs it.
    fn lose_if_left(&mut self, member: usize) {
        let peer = self.membership.members()[member];
        if self.peers[peer].leave_sequence.is_some() && self.messages.needs(member) {
            self.lose(peer, "it has left the group".to_owned());
        }
    }

    /// Handles a take: sends the offered message. Returns false if there is no such offer.
    pub(super) fn handle_take(&mut self, peer: usize, member: usize, name: u64) -> bool {
        let Ok(bytes) = self.messages.handle_take(member, name) else {
            return false;
        };
        self.queue_message_control();
        let header = Header {
            kind: Kind::Message,
            term: self.membership.term(),
            sequence: 0,
            number: name,
            bytes,
        };
        if let Some(connection) = self.open_connection(peer, Channel::Messages) {
            connection.push(
                header.bytes().to_vec(),
                Some(Payload::Message(name, header.bytes)),
            );
            self.write(peer, Channel::Messages);
        }
        true
    }

    pub(super) fn read_messages(&mut self, peer: usize) {
        let mut turn_bytes = 0;
        while turn_bytes < TURN_BYTES {
            let Some(header) = self.data_header(peer, Channel::Messages) else {
                return;
            };
            let Some(member) = self.member(peer) else {
                return;
            };
            if header.term > self.membership.term() {
                return self.pause(peer, Channel::Messages);
            }
            let Self {
                peers, messages, ..
            } = self;
            let Some(connection) = &mut peers[peer].messages_in else {
                return;
            };
            let outcome = match messages.incoming(member, header.number) {
                Some(parcel) if parcel.bytes == header.bytes => {
                    connection.read_into(parcel.memory.destination(0, 0, header.bytes as usize))
                }
                _ => return self.lose(peer, "it sent a message that was not accepted".to_owned()),
            };
            let Some(ReadOutcome::Bytes(bytes)) =
                self.handle_read(peer, Channel::Messages, outcome)
            else {
                return;
            };
            turn_bytes += bytes;
            let connection = self.peers[peer].messages_in.as_mut();
            let is_complete = |connection: &crate::group::channel::InConnection| {
                connection.read_bytes as u64 == header.bytes
            };
            if let Some(connection) = connection.filter(|connection| is_complete(connection)) {
                connection.header = None;
                if let Some(parcel) = self.messages.remove_incoming(member, header.number) {
                    parcel.ticket.settle(Ok(Completion {
                        from: member,
                        bytes: parcel.bytes,
                    }));
                }
            }
        }
    }
}
