//! Messages and operations that this side sends to one peer, until they have arrived.

use crate::protocol::model::{Class, Mode, Operation, Place};
use crate::protocol::ranges::Ranges;
use crate::protocol::recovery::Part;
use crate::protocol::sequence::Sequence;
use crate::protocol::wire::{Before, OPERATION_HEAD_BYTES, Record, Segment};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of credit that a message or an operation costs beyond its payload: the receiver's memory
/// for its state.
pub const ITEM_COST_BYTES: u64 = 64;

/// Most unordered messages, and most operations, between the oldest one that has not arrived and
/// the newest one that may be sent. The receiver remembers this number of them.
pub const UNACKED_SPAN_MAX: u64 = 16_384;

/// A segment that does not fit into a packet is not cut for the rest of it below this length.
const CUT_BYTES_MIN: usize = 256;

/// A message as the program gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Delivery class.
    pub class: Class,
    /// Delivery mode.
    pub mode: Mode,
    /// Header, for the receiving program.
    pub header: Vec<u8>,
    /// Data, or in the diff modes the parts of a diff, each with whole runs.
    pub data: Vec<Vec<u8>>,
    /// Place of the data; `None` for [`Mode::MessageThrough`].
    pub place: Option<Place>,
}

#[derive(Debug)]
struct Outgoing {
    class: Class,
    mode: Mode,
    number: u64,
    /// Numbers of what was submitted before an ordered message.
    after: Option<Before>,
    header_bytes: u16,
    body: Vec<u8>,
    place: Option<Place>,
    /// Ends of the header and of each part of a diff, in ascending order; empty if the message may
    /// be cut anywhere.
    cuts: Vec<u32>,
    arrived: Ranges,
    sent_bytes: u32,
}

impl Outgoing {
    fn total_bytes(&self) -> u32 {
        self.body.len() as u32
    }

    fn has_arrived(&self) -> bool {
        // An empty message has one segment, which is recorded as one byte.
        self.arrived.covers(0..u64::from(self.total_bytes()).max(1))
    }

    /// Returns the bytes from `start` on that a packet with `room` bytes takes; `None` if it should
    /// take none.
    fn cut(&self, start: u32, end: u32, room: usize) -> Option<Range<u32>> {
        let room = room.checked_sub(Segment::head_bytes(self.class, self.mode, start))?;
        let whole = (end - start) as usize;
        if !self.cuts.is_empty() {
            let part_end = *self.cuts.iter().find(|cut| **cut > start)?;
            let part = (part_end - start) as usize;
            return (part <= room).then_some(start..part_end);
        }
        let bytes = whole.min(room);
        (bytes == whole || bytes >= CUT_BYTES_MIN).then_some(start..start + bytes as u32)
    }

    fn segment(&self, range: &Range<u32>) -> Segment<'_> {
        Segment {
            class: self.class,
            mode: self.mode,
            message: self.number,
            total_bytes: self.total_bytes(),
            offset: range.start,
            header_bytes: self.header_bytes,
            after: self.after.filter(|_| range.start == 0),
            place: self.place,
            payload: &self.body[range.start as usize..range.end as usize],
        }
    }
}

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
        let header_bytes = message.header.len();
        let (mut body, mut data) = (message.header, message.data);
        let mut cuts = Vec::new();
        if header_bytes == 0 && data.len() == 1 {
            // The bytes themselves, without a copy.
            body = data.swap_remove(0);
            if message.mode.is_diff() {
                cuts.push(body.len() as u32);
            }
        }
        if message.mode.is_diff() && header_bytes > 0 {
            cuts.push(header_bytes as u32);
        }
        for part in &data {
            body.extend_from_slice(part);
            if message.mode.is_diff() {
                cuts.push(body.len() as u32);
            }
        }
        self.wanted_bytes += ITEM_COST_BYTES + body.len() as u64;
        self.held_bytes += ITEM_COST_BYTES + body.len() as u64;
        let outgoing = Outgoing {
            class: message.class,
            mode: message.mode,
            number: place_in_class,
            after,
            header_bytes: header_bytes as u16,
            body,
            place: message.place,
            cuts,
            arrived: Ranges::default(),
            sent_bytes: 0,
        };
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

    /// Returns whether something waits for transmission, with the credit `granted_bytes`.
    pub fn is_ready(&self, granted_bytes: u64) -> bool {
        !self.again.is_empty()
            || self
                .fresh
                .front()
                .is_some_and(|item| self.may_send(*item, granted_bytes))
    }

    fn may_send(&self, item: Fresh, granted_bytes: u64) -> bool {
        let has_credit = |bytes: u64| self.used_bytes + ITEM_COST_BYTES + bytes <= granted_bytes;
        match item {
            Fresh::Message(number) => {
                let Some(message) = self.messages.get(number) else {
                    return true;
                };
                let first = self.unordered_open.first().unwrap_or_default();
                let is_near =
                    message.class.is_ordered() || message.number < first + UNACKED_SPAN_MAX;
                // The cost of a message is due with its first segment.
                let is_paid = message.sent_bytes > 0 && self.used_bytes < granted_bytes;
                is_near && (is_paid || has_credit(1.min(message.total_bytes().into())))
            }
            Fresh::Operation(number) => {
                let Some(pending) = self.operations.get(number) else {
                    return true;
                };
                let first = self.operations.first().unwrap_or_default();
                number < first + UNACKED_SPAN_MAX
                    && has_credit(pending.operation.payload_bytes() as u64)
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
        let first_cost = if start == 0 { ITEM_COST_BYTES } else { 0 };
        let range = message.cut(start, end, room)?;
        // A segment is not cut for lack of credit: more comes before the present one is used up.
        let cost = first_cost + u64::from(range.end - range.start);
        if self.used_bytes + cost > granted_bytes {
            return None;
        }
        Record::Segment(message.segment(&range)).emit(out);
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
                let whole =
                    u64::from(range.start)..u64::from(range.end).max(u64::from(range.start) + 1);
                if message.arrived.covers(whole) {
                    return Again::Arrived;
                }
                let Some(cut) = message.cut(range.start, range.end, room) else {
                    return Again::NoRoom;
                };
                Record::Segment(message.segment(&cut)).emit(out);
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
        // An empty message is recorded as one byte.
        let end = u64::from(range.end).max(u64::from(range.start) + 1);
        message.arrived.insert(u64::from(range.start)..end);
        if !message.has_arrived() || message.sent_bytes < message.total_bytes() {
            return false;
        }
        self.held_bytes -= ITEM_COST_BYTES + message.body.len() as u64;
        if !message.class.is_ordered() {
            self.unordered_open.remove(message.number);
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
