//! A message, or a batch of short ones, until it has arrived.

use crate::protocol::model::{Class, Mode, Place};
use crate::protocol::ranges::Ranges;
use crate::protocol::wire::{Batch, Before, Record, Segment, batch};
use std::ops::Range;

/// Bytes of credit that a message or an operation costs beyond its payload: the receiver's memory
/// for its state.
pub const ITEM_COST_BYTES: u64 = 64;

/// A segment that does not fit into a packet is not cut for the rest of it below this length, and
/// shorter messages join a batch.
const CUT_BYTES_MIN: usize = 256;

/// A segment is not cut for lack of credit up to this length: more credit comes before the present
/// one is used up. A longer one, for a path that carries it, might never get as much at once.
const UNCUT_BYTES: usize = 2048;

/// Longest body of a batch, in bytes. It is cut between messages to fill packets.
const BATCH_BYTES_MAX: usize = 16 << 10;

/// A message as the program gives it. Several short ones share a record.
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

/// Forms of an item.
#[derive(Debug)]
enum Form {
    /// A message that may be cut anywhere.
    Plain,
    /// A diff: ends of the header and of each part, in ascending order.
    Diff(Vec<u32>),
    /// Short messages with consecutive numbers.
    Batch { count: u64, has_headers: bool },
}

/// A message or a batch.
#[derive(Debug)]
pub struct Outgoing {
    pub class: Class,
    mode: Mode,
    /// Number of the message, or of the first one.
    pub number: u64,
    /// Numbers of what was submitted before an ordered message.
    after: Option<Before>,
    header_bytes: u16,
    body: Vec<u8>,
    place: Option<Place>,
    form: Form,
    arrived: Ranges,
    pub sent_bytes: u32,
}

/// Returns whether a message is short enough for a batch.
fn is_short(message: &Message) -> bool {
    message.mode == Mode::MessageThrough && message.bytes() < CUT_BYTES_MIN
}

impl Message {
    /// Creates a message without a header, for the peer's program.
    pub fn through(class: Class, data: Vec<u8>) -> Self {
        Self {
            class,
            mode: Mode::MessageThrough,
            header: Vec::new(),
            data: vec![data],
            place: None,
        }
    }

    /// Returns the length of header and data.
    pub fn bytes(&self) -> usize {
        self.header.len() + self.data.iter().map(Vec::len).sum::<usize>()
    }
}

impl Outgoing {
    pub fn new(message: Message, number: u64, after: Option<Before>) -> Self {
        let header_bytes = message.header.len();
        let form = if is_short(&message) {
            Form::Batch {
                count: 1,
                has_headers: header_bytes > 0,
            }
        } else if message.mode.is_diff() {
            Form::Diff(Vec::new())
        } else {
            Form::Plain
        };
        let mut new = Self {
            class: message.class,
            mode: message.mode,
            number,
            after,
            header_bytes: header_bytes as u16,
            body: Vec::new(),
            place: message.place,
            form,
            arrived: Ranges::default(),
            sent_bytes: 0,
        };
        match &new.form {
            Form::Batch { has_headers, .. } => {
                let (header, data) = (&message.header, &message.data);
                batch::push_message(*has_headers, header, data, &mut new.body);
            }
            _ => new.fill(message.header, message.data),
        }
        new
    }

    fn fill(&mut self, header: Vec<u8>, mut data: Vec<Vec<u8>>) {
        let header_end = header.len() as u32;
        let lengths: Vec<u32> = data.iter().map(|part| part.len() as u32).collect();
        // The bytes themselves, without a copy.
        self.body = match header.is_empty() && data.len() == 1 {
            true => data.swap_remove(0),
            false => header,
        };
        data.iter()
            .for_each(|part| self.body.extend_from_slice(part));
        if let Form::Diff(ends) = &mut self.form {
            let parts = lengths.iter().scan(header_end, |end, bytes| {
                *end += bytes;
                Some(*end)
            });
            *ends = std::iter::once(header_end).chain(parts).collect();
        }
    }

    /// Adds a message to a batch. Returns false if it has to be an item of its own.
    pub fn join(&mut self, message: &Message, after: Option<Before>) -> bool {
        let Form::Batch { count, has_headers } = &mut self.form else {
            return false;
        };
        let joins = is_short(message)
            && message.class == self.class
            && after == self.after
            && *has_headers != message.header.is_empty()
            && self.body.len() + batch::prefix_bytes(*has_headers) + message.bytes()
                <= BATCH_BYTES_MAX;
        if joins {
            let (header, data) = (&message.header, &message.data);
            batch::push_message(*has_headers, header, data, &mut self.body);
            *count += 1;
        }
        joins
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> u64 {
        match self.form {
            Form::Batch { count, .. } => count,
            _ => 1,
        }
    }

    /// Returns the credit that the item costs.
    pub fn cost_bytes(&self) -> u64 {
        let prefixes = match self.form {
            Form::Batch { count, has_headers } => count * batch::prefix_bytes(has_headers) as u64,
            _ => 0,
        };
        self.messages() * ITEM_COST_BYTES + self.body.len() as u64 - prefixes
    }

    /// Returns the credit that the next part costs at least; `None` if any is enough.
    pub fn next_cost_bytes(&self) -> Option<u64> {
        match self.form {
            Form::Batch { has_headers, .. } => {
                let mut rest = batch::members(has_headers, &self.body, self.sent_bytes as usize);
                let bytes = rest.next().map_or(0, |member| member.bytes.len());
                Some(ITEM_COST_BYTES + bytes as u64)
            }
            // The cost of a message is due with its first segment.
            _ if self.sent_bytes > 0 => None,
            _ => Some(ITEM_COST_BYTES + 1.min(self.body.len() as u64)),
        }
    }

    pub fn total_bytes(&self) -> u32 {
        self.body.len() as u32
    }

    /// Returns the range of an item's bytes as it is recorded: that of an empty message has one.
    fn recorded(range: &Range<u32>) -> Range<u64> {
        u64::from(range.start)..u64::from(range.end).max(u64::from(range.start) + 1)
    }

    pub fn note_arrived(&mut self, range: &Range<u32>) {
        self.arrived.insert(Self::recorded(range));
    }

    pub fn has_arrived(&self, range: &Range<u32>) -> bool {
        self.arrived.covers(Self::recorded(range))
    }

    /// Returns the part from `start` to at most `end` that a packet with `room` bytes takes, for a
    /// credit of `credit_bytes`, and its cost; `None` if it should take none.
    pub fn cut(
        &self,
        start: u32,
        end: u32,
        room: usize,
        credit_bytes: u64,
    ) -> Option<(Range<u32>, u64)> {
        if let Form::Batch { has_headers, .. } = self.form {
            let room = room.checked_sub(Batch::head_bytes(self.class))?;
            return self.cut_batch(has_headers, start..end, room, credit_bytes);
        }
        let room = room.checked_sub(Segment::head_bytes(self.class, self.mode, start))?;
        let whole = (end - start) as usize;
        let first_cost = if start == 0 { ITEM_COST_BYTES } else { 0 };
        let affordable = usize::try_from(credit_bytes.saturating_sub(first_cost));
        let bytes = match &self.form {
            Form::Diff(cuts) => {
                // An empty diff has one empty part.
                let part_end = cuts.iter().find(|cut| **cut > start);
                let part = (*part_end.unwrap_or(&end) - start) as usize;
                (part <= room).then_some(part)?
            }
            _ => {
                let bytes_max = affordable.unwrap_or(usize::MAX).max(UNCUT_BYTES);
                let bytes = whole.min(room.min(bytes_max));
                (bytes == whole || bytes >= CUT_BYTES_MIN).then_some(bytes)?
            }
        };
        let cost = first_cost + bytes as u64;
        (cost <= credit_bytes).then_some((start..start + bytes as u32, cost))
    }

    fn cut_batch(
        &self,
        has_headers: bool,
        range: Range<u32>,
        room: usize,
        credit_bytes: u64,
    ) -> Option<(Range<u32>, u64)> {
        let start = range.start as usize;
        let (mut cut, mut cost) = (start, 0);
        for member in batch::members(has_headers, &self.body, start) {
            let cost_with = cost + ITEM_COST_BYTES + member.bytes.len() as u64;
            let is_over = member.range.end > range.end as usize;
            if is_over || member.range.end - start > room || cost_with > credit_bytes {
                break;
            }
            (cut, cost) = (member.range.end, cost_with);
        }
        (cut > start).then_some((range.start..cut as u32, cost))
    }

    /// Appends the record of a part to `out`.
    pub fn emit(&self, range: &Range<u32>, out: &mut Vec<u8>) {
        let bytes = &self.body[range.start as usize..range.end as usize];
        let Form::Batch { has_headers, .. } = self.form else {
            let segment = Segment {
                class: self.class,
                mode: self.mode,
                message: self.number,
                total_bytes: self.total_bytes(),
                offset: range.start,
                header_bytes: self.header_bytes,
                after: self.after.filter(|_| range.start == 0),
                place: self.place,
                payload: bytes,
            };
            return Record::Segment(segment).emit(out);
        };
        let before = batch::members(has_headers, &self.body, 0);
        let before = before.take_while(|member| member.range.start < range.start as usize);
        let batch = Batch {
            class: self.class,
            first: self.number + before.count() as u64,
            after: self.after,
            has_headers,
            body: bytes,
        };
        Record::Batch(batch).emit(out);
    }
}
