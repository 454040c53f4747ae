//! Messages and operations that this side sends to one peer, until they have arrived.

use crate::protocol::model::{Operation, Place};
use crate::protocol::outgoing::{ITEM_COST_BYTES, Message, Outgoing};
use crate::protocol::recovery::Part;
use crate::protocol::sequence::Sequence;
use crate::protocol::wire::{Before, OPERATION_HEAD_BYTES, Record};
use std::collections::VecDeque;
use std::ops::Range;

/// Most unordered messages, and most operations, between the oldest one that has not arrived and
/// the newest one that may be sent. The receiver remembers this number of them.
pub const UNACKED_SPAN_MAX: u64 = 16_384;

#[derive(Debug)]
struct Pending {
    place: Place,
    operation: Operation,
}

/// An item that waits for its first transmission, in the program's order.
#[derive(Debug, Clone, Copy)]
enum Fresh {
    Message(u64),
    Operation(u64),
}

/// Messages and operations to one peer.
#[derive(Debug, Default)]
pub struct Outbox {
    /// By the sender's number: the order of submission.
    messages: Sequence<Outgoing>,
    operations: Sequence<Pending>,
    ordered: u64,
    /// Unordered messages that have not arrived, by their number.
    unordered_open: Sequence<()>,
    fresh: VecDeque<Fresh>,
    again: VecDeque<Part>,
    /// Credit that all items submitted so far cost, and those sent so far.
    wanted_bytes: u64,
    used_bytes: u64,
    /// Credit that the peer knows to be wanted.
    pub announced_bytes: u64,
    /// Bytes of messages and operations that wait or are in flight.
    held_bytes: u64,
}

impl Outbox {
    /// Submits a message after `requests` requests. Returns its number: ordered and unordered ones
    /// are counted separately.
    pub fn submit(&mut self, message: Message, requests: u64) -> u64 {
        let (place_in_class, after) = match message.class.is_ordered() {
            true => {
                self.ordered += 1;
                let before = Before {
                    unordered: self.unordered_open.next(),
                    operations: self.operations.next(),
                    requests,
                };
                (self.ordered - 1, Some(before))
            }
            false => (self.unordered_open.push(()), None),
        };
        let cost = ITEM_COST_BYTES + message.bytes() as u64;
        self.wanted_bytes += cost;
        self.held_bytes += cost;
        if let Some(Fresh::Message(number)) = self.fresh.back() {
            // The numbers follow one another: nothing was submitted after the batch.
            let batch = self.messages.get_mut(*number);
            if batch.is_some_and(|batch| batch.join(&message, after)) {
                return place_in_class;
            }
        }
        let outgoing = Outgoing::new(message, place_in_class, after);
        let number = self.messages.push(outgoing);
        self.fresh.push_back(Fresh::Message(number));
        place_in_class
    }

    /// Submits an operation. Returns its number.
    pub fn submit_operation(&mut self, place: Place, operation: Operation) -> u64 {
        let pending = Pending { place, operation };
        let cost = ITEM_COST_BYTES + pending.operation.payload_bytes() as u64;
        self.wanted_bytes += cost;
        self.held_bytes += cost;
        let number = self.operations.push(pending);
        self.fresh.push_back(Fresh::Operation(number));
        number
    }

    /// Returns the credit that everything submitted so far costs, in bytes.
    pub fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes
    }

    /// Returns the credit that was used, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes of messages and operations that wait or are in flight.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the bytes that wait for their first transmission, and their costs.
    pub fn waiting_bytes(&self) -> u64 {
        self.wanted_bytes - self.used_bytes
    }

    /// Returns whether something that was lost waits for its next transmission.
    pub fn sends_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Returns whether something waits for transmission, with the credit `granted_bytes`.
    pub fn is_ready(&self, granted_bytes: u64) -> bool {
        !self.again.is_empty()
            || self
                .fresh
                .front()
                .is_some_and(|item| self.may_send(*item, granted_bytes))
    }

    fn may_send(&self, item: Fresh, granted_bytes: u64) -> bool {
        match item {
            Fresh::Message(number) => {
                let Some(message) = self.messages.get(number) else {
                    return true;
                };
                let first = self.unordered_open.first().unwrap_or_default();
                let last_number = message.number + message.messages() - 1;
                let is_near = message.class.is_ordered() || last_number < first + UNACKED_SPAN_MAX;
                is_near
                    && match message.next_cost_bytes() {
                        Some(cost) => self.used_bytes + cost <= granted_bytes,
                        None => self.used_bytes < granted_bytes,
                    }
            }
            Fresh::Operation(number) => {
                let Some(pending) = self.operations.get(number) else {
                    return true;
                };
                let first = self.operations.first().unwrap_or_default();
                let cost = ITEM_COST_BYTES + pending.operation.payload_bytes() as u64;
                number < first + UNACKED_SPAN_MAX && self.used_bytes + cost <= granted_bytes
            }
        }
    }

    /// Appends at most one record to `out`, of at most `room` bytes. Returns its part; `None` if
    /// nothing fits or may be sent.
    pub fn emit(&mut self, room: usize, granted_bytes: u64, out: &mut Vec<u8>) -> Option<Part> {
        while let Some(part) = self.again.pop_front() {
            match self.emit_again(&part, room, out) {
                Again::Sent(sent, rest) => {
                    self.again.extend(rest);
                    return Some(sent);
                }
                Again::NoRoom => {
                    self.again.push_front(part);
                    return None;
                }
                Again::Arrived => {}
            }
        }
        loop {
            let item = *self.fresh.front()?;
            if !self.may_send(item, granted_bytes) {
                return None;
            }
            match item {
                Fresh::Message(number) if !self.messages.contains(number) => {}
                Fresh::Operation(number) if !self.operations.contains(number) => {}
                Fresh::Message(number) => {
                    return self.emit_message(number, room, granted_bytes, out);
                }
                Fresh::Operation(number) => return self.emit_operation(number, room, out),
            }
            self.fresh.pop_front();
        }
    }

    fn emit_message(
        &mut self,
        number: u64,
        room: usize,
        granted_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Part> {
        let message = self.messages.get_mut(number)?;
        let (start, end) = (message.sent_bytes, message.total_bytes());
        let credit_bytes = granted_bytes.saturating_sub(self.used_bytes);
        let (range, cost) = message.cut(start, end, room, credit_bytes)?;
        message.emit(&range, out);
        message.sent_bytes = range.end;
        self.used_bytes += cost;
        if range.end == end {
            self.fresh.pop_front();
        }
        Some(Part::Segment {
            message: number,
            range,
        })
    }

    fn emit_operation(&mut self, number: u64, room: usize, out: &mut Vec<u8>) -> Option<Part> {
        let pending = self.operations.get(number)?;
        let bytes = pending.operation.payload_bytes();
        if OPERATION_HEAD_BYTES + bytes > room {
            return None;
        }
        let record = Record::Operation {
            number,
            place: pending.place,
            operation: pending.operation.clone(),
        };
        record.emit(out);
        self.used_bytes += ITEM_COST_BYTES + bytes as u64;
        self.fresh.pop_front();
        Some(Part::Operation(number))
    }

    fn emit_again(&self, part: &Part, room: usize, out: &mut Vec<u8>) -> Again {
        match part {
            Part::Segment {
                message: number,
                range,
            } => {
                let Some(message) = self.messages.get(*number) else {
                    return Again::Arrived;
                };
                if message.has_arrived(range) {
                    return Again::Arrived;
                }
                let cut = message.cut(range.start, range.end, room, u64::MAX);
                let Some((cut, _)) = cut else {
                    return Again::NoRoom;
                };
                message.emit(&cut, out);
                let rest = Part::Segment {
                    message: *number,
                    range: cut.end..range.end,
                };
                let rest = (cut.end < range.end).then_some(rest);
                let sent = Part::Segment {
                    message: *number,
                    range: cut,
                };
                Again::Sent(sent, rest)
            }
            Part::Operation(number) => {
                let Some(pending) = self.operations.get(*number) else {
                    return Again::Arrived;
                };
                if OPERATION_HEAD_BYTES + pending.operation.payload_bytes() > room {
                    return Again::NoRoom;
                }
                let record = Record::Operation {
                    number: *number,
                    place: pending.place,
                    operation: pending.operation.clone(),
                };
                record.emit(out);
                Again::Sent(part.clone(), None)
            }
            Part::Answer(_) | Part::Rejection(..) | Part::State => Again::Arrived,
        }
    }

    /// Schedules a part for retransmission.
    pub fn send_again(&mut self, part: Part) {
        self.again.push_back(part);
    }

    /// Records that bytes of a message arrived. Returns true if it is the last part.
    pub fn note_segment(&mut self, number: u64, range: &Range<u32>) -> bool {
        let Some(message) = self.messages.get_mut(number) else {
            return false;
        };
        message.note_arrived(range);
        let total_bytes = message.total_bytes();
        if message.sent_bytes < total_bytes || !message.has_arrived(&(0..total_bytes)) {
            return false;
        }
        self.held_bytes -= message.cost_bytes();
        if !message.class.is_ordered() {
            for number in message.number..message.number + message.messages() {
                self.unordered_open.remove(number);
            }
        }
        self.messages.remove(number);
        true
    }

    /// Records the answer of an operation. Returns false if it had one before.
    pub fn note_answer(&mut self, number: u64) -> bool {
        let Some(pending) = self.operations.remove(number) else {
            return false;
        };
        self.held_bytes -= ITEM_COST_BYTES + pending.operation.payload_bytes() as u64;
        true
    }

    /// Frees what the collections keep beyond their entries.
    pub fn release(&mut self) {
        self.messages.release();
        self.operations.release();
        self.unordered_open.release();
        self.fresh.shrink_to_fit();
        self.again.shrink_to_fit();
    }
}

enum Again {
    Sent(Part, Option<Part>),
    NoRoom,
    Arrived,
}
