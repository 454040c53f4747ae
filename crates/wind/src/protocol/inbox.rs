//! Messages from one peer, until they are delivered.
//!
//! ```text
//!   unordered: delivered when complete
//!   ordered k: delivered when complete, and
//!              ordered 0 … k − 1 are delivered, and
//!              unordered 0 … u − 1 are delivered, and operations 0 … p − 1 and
//!              requests 0 … r − 1 are executed
//!              (u, p, r: what was submitted before k, in its first segment)
//! ```
//!
//! The sender never waits for this: the receiver holds the ordered message back (Wind, Hayashi et
//! al., §2.1). Data for a region is written when it arrives. Data of an ordered message is held
//! until the message's turn, so that an earlier one cannot overwrite it.

use crate::protocol::memory;
use crate::protocol::model::{Class, Mode, Place, Refused, Regions, place};
use crate::protocol::outbox::UNACKED_SPAN_MAX;
use crate::protocol::outgoing::ITEM_COST_BYTES;
use crate::protocol::ranges::Ranges;
use crate::protocol::wire::{Before, Segment};
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that is reserved for a message when its first segment arrives, at most, in bytes.
const PREFIX_BYTES: usize = 256 << 10;

/// A message for the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Delivery class.
    pub class: Class,
    /// Delivery mode.
    pub mode: Mode,
    /// Header, as the sender gave it.
    pub header: Vec<u8>,
    /// Data; empty for data that went to a region.
    pub data: Vec<u8>,
    /// Place of the data; `None` for [`Mode::MessageThrough`].
    pub place: Option<Place>,
}

/// Violation of the protocol by the peer. The session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More bytes than were granted.
    #[error("the peer sent more than it was granted")]
    Credit,
    /// Segments of one message contradict each other.
    #[error("segments of one message contradict each other")]
    Contradiction,
    /// A message longer than the limit.
    #[error("the peer sent a message above the limit")]
    Length,
    /// A number too far above the oldest missing one.
    #[error("the peer is too far ahead of the oldest missing message")]
    Span,
}

/// A message of which something has arrived.
#[derive(Debug)]
struct Incoming {
    class: Class,
    mode: Mode,
    total_bytes: u32,
    header_bytes: u16,
    /// Numbers of what was submitted before an ordered message, from its first segment.
    after: Option<Before>,
    place: Option<Place>,
    arrived: Ranges,
    /// Bytes for the program from the beginning to the first gap.
    prefix: Vec<u8>,
    /// Other bytes that are held, by their offset.
    held: BTreeMap<u32, Vec<u8>>,
    refused: Option<Refused>,
}

impl Incoming {
    fn new(segment: &Segment<'_>) -> Self {
        Self {
            class: segment.class,
            mode: segment.mode,
            total_bytes: segment.total_bytes,
            header_bytes: segment.header_bytes,
            after: segment.after,
            place: segment.place,
            arrived: Ranges::default(),
            prefix: Vec::new(),
            held: BTreeMap::new(),
            refused: None,
        }
    }

    /// Returns whether a segment has what the first of the message to arrive had. Takes what only
    /// the segment at the beginning has.
    fn agrees(&mut self, segment: &Segment<'_>) -> bool {
        self.after = self.after.or(segment.after);
        self.class == segment.class
            && self.mode == segment.mode
            && self.total_bytes == segment.total_bytes
            && self.header_bytes == segment.header_bytes
            && (segment.after.is_none() || self.after == segment.after)
            && self.place == segment.place
    }

    fn is_complete(&self) -> bool {
        self.arrived.covers(0..u64::from(self.total_bytes).max(1))
    }

    /// Takes the bytes of a segment that had not arrived. Returns their number.
    fn take(&mut self, segment: &Segment<'_>) -> u64 {
        let start = u64::from(segment.offset);
        let end = start + segment.payload.len() as u64;
        let whole = start..end.max(start + 1);
        if self.mode.is_diff() {
            // Its parts are sent again as they are.
            if self.arrived.covers(whole.clone()) {
                return 0;
            }
            self.arrived.insert(whole);
            self.held.insert(segment.offset, segment.payload.to_vec());
            return end - start;
        }
        if !self.mode.is_direct() && start == self.prefix.len() as u64 {
            return self.extend(segment, whole);
        }
        let mut fresh = 0;
        let mut from = start;
        while from < end {
            let gap = self.arrived.first_gap(from);
            if gap >= end {
                break;
            }
            let to = self.arrived.first_member(gap).map_or(end, |to| to.min(end));
            let bytes = &segment.payload[(gap - start) as usize..(to - start) as usize];
            self.held.insert(gap as u32, bytes.to_vec());
            fresh += to - gap;
            from = to;
        }
        self.arrived.insert(whole);
        fresh
    }

    /// Takes a segment that continues the prefix. Returns the bytes that had not arrived.
    fn extend(&mut self, segment: &Segment<'_>, whole: Range<u64>) -> u64 {
        if self.prefix.is_empty() {
            let total = (self.total_bytes as usize).min(PREFIX_BYTES);
            self.prefix.reserve_exact(total);
        }
        let present = self.prefix.len() as u64;
        self.prefix.extend_from_slice(segment.payload);
        let fresh = self.arrived.insert(whole);
        // Held parts may begin within the segment: what they repeat is dropped.
        while let Some((offset, _)) = self.held.first_key_value() {
            let end = self.prefix.len();
            let offset = *offset as usize;
            if offset > end {
                break;
            }
            let Some((_, bytes)) = self.held.pop_first() else {
                break;
            };
            if let Some(rest) = bytes.get(end - offset..) {
                self.prefix.extend_from_slice(rest);
            }
        }
        // An empty message has no byte, and its range has one.
        fresh.min(self.prefix.len() as u64 - present)
    }

    /// Writes the held data to its region. The header stays.
    fn write_held(&mut self, regions: &mut dyn Regions) -> u64 {
        let Some(target) = self.place else { return 0 };
        let header_bytes = u32::from(self.header_bytes);
        let mut written = 0;
        for (offset, mut bytes) in std::mem::take(&mut self.held) {
            let in_header = header_bytes.saturating_sub(offset) as usize;
            if in_header >= bytes.len() {
                self.held.insert(offset, bytes);
                continue;
            }
            let data = bytes.split_off(in_header);
            if in_header > 0 {
                self.held.insert(offset, bytes);
            }
            written += data.len() as u64;
            // A diff has offsets of its own.
            let at = match self.mode.is_diff() {
                true => target,
                false => {
                    target.plus(u64::from(offset) + in_header as u64 - u64::from(header_bytes))
                }
            };
            let result = place(regions, &at, &data, self.mode.is_diff());
            self.refused = self.refused.or(result.err());
        }
        written
    }

    /// Returns the bytes that are held.
    fn held_bytes(&self) -> u64 {
        let held: usize = self.held.values().map(Vec::len).sum();
        (self.prefix.len() + held) as u64
    }

    fn into_delivery(self) -> Delivery {
        let mut data = self.prefix;
        for part in self.held.values() {
            data.extend_from_slice(part);
        }
        let (header, data) = split(data, usize::from(self.header_bytes));
        Delivery {
            class: self.class,
            mode: self.mode,
            header,
            data,
            place: self.place,
        }
    }
}

/// Divides the bytes of a message into header and data.
fn split(mut bytes: Vec<u8>, header_bytes: usize) -> (Vec<u8>, Vec<u8>) {
    if header_bytes == 0 {
        return (Vec::new(), bytes);
    }
    let data = bytes.split_off(header_bytes);
    (bytes, data)
}

/// Messages from one peer.
#[derive(Debug, Default)]
pub struct Inbox {
    ordered: BTreeMap<u64, Incoming>,
    unordered: BTreeMap<u64, Incoming>,
    /// Number of ordered messages delivered.
    ordered_delivered: u64,
    unordered_delivered: Ranges,
    /// Credit that the peer has used.
    used_bytes: u64,
    /// Bytes and costs of messages that are not delivered.
    held_bytes: u64,
}

impl Inbox {
    /// Returns the credit that the peer has used, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes of messages that are not delivered, and their costs.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the number of ordered messages that were delivered.
    pub fn ordered_delivered(&self) -> u64 {
        self.ordered_delivered
    }

    /// Charges the peer for an operation.
    pub fn charge(&mut self, bytes: u64, granted_bytes: u64) -> Result<(), Violation> {
        self.used_bytes += ITEM_COST_BYTES + bytes;
        match self.used_bytes <= granted_bytes {
            true => Ok(()),
            false => Err(Violation::Credit),
        }
    }

    /// Takes a segment. `executed` are the operations and requests executed without a gap.
    ///
    /// Returns messages that are now delivered, and the reason for each that was refused.
    pub fn take(
        &mut self,
        segment: &Segment<'_>,
        limits: Limits,
        executed: Executed,
        regions: &mut dyn Regions,
        out: &mut Vec<Delivered>,
    ) -> Result<(), Violation> {
        if segment.total_bytes > limits.message_bytes_max {
            return Err(Violation::Length);
        }
        let is_ordered = segment.class.is_ordered();
        let (first, is_done) = match is_ordered {
            true => (
                self.ordered_delivered,
                segment.message < self.ordered_delivered,
            ),
            false => (
                self.unordered_delivered.first_gap(0),
                self.unordered_delivered.contains(segment.message),
            ),
        };
        if is_done {
            return Ok(());
        }
        if segment.message - first > UNACKED_SPAN_MAX && !is_ordered {
            return Err(Violation::Span);
        }
        if self.take_whole(segment, limits, executed, out)? {
            if !self.ordered.is_empty() {
                self.advance(executed, regions, out);
            }
            return Ok(());
        }
        let table = match is_ordered {
            true => &mut self.ordered,
            false => &mut self.unordered,
        };
        let is_new = !table.contains_key(&segment.message);
        let incoming = table
            .entry(segment.message)
            .or_insert_with(|| Incoming::new(segment));
        if !incoming.agrees(segment) {
            return Err(Violation::Contradiction);
        }
        let fresh = incoming.take(segment);
        let cost = fresh + if is_new { ITEM_COST_BYTES } else { 0 };
        self.used_bytes += cost;
        self.held_bytes += cost;
        if self.used_bytes > limits.granted_bytes {
            return Err(Violation::Credit);
        }
        if !is_ordered {
            self.held_bytes -= incoming.write_held(regions);
            if incoming.is_complete() {
                self.unordered_delivered
                    .insert(segment.message..segment.message + 1);
                if let Some(incoming) = self.unordered.remove(&segment.message) {
                    self.finish(segment.message, incoming, out);
                }
            }
        }
        self.advance(executed, regions, out);
        Ok(())
    }

    /// Delivers a message for the program that arrived as a whole, if its turn has come. Returns
    /// false for another one.
    fn take_whole(
        &mut self,
        segment: &Segment<'_>,
        limits: Limits,
        executed: Executed,
        out: &mut Vec<Delivered>,
    ) -> Result<bool, Violation> {
        let is_whole = segment.payload.len() as u64 == u64::from(segment.total_bytes);
        if !is_whole || segment.mode.is_direct() {
            return Ok(false);
        }
        let number = segment.message;
        let is_ordered = segment.class.is_ordered();
        let has_turn = match is_ordered {
            true => {
                number == self.ordered_delivered
                    && !self.ordered.contains_key(&number)
                    && self.is_after(segment.after, executed)
            }
            false => !self.unordered.contains_key(&number),
        };
        if !has_turn {
            return Ok(false);
        }
        self.used_bytes += ITEM_COST_BYTES + segment.payload.len() as u64;
        if self.used_bytes > limits.granted_bytes {
            return Err(Violation::Credit);
        }
        match is_ordered {
            true => self.ordered_delivered += 1,
            false => drop(self.unordered_delivered.insert(number..number + 1)),
        }
        let (header, data) = segment.payload.split_at(segment.header_bytes.into());
        out.push(Delivered {
            number,
            is_ordered,
            is_synchronous: segment.class == Class::Synchronous,
            refused: None,
            message: Some(Delivery {
                class: segment.class,
                mode: segment.mode,
                header: header.to_vec(),
                data: data.to_vec(),
                place: None,
            }),
        });
        Ok(true)
    }

    /// Returns whether everything before an ordered message is known, and delivered or executed,
    /// except earlier ordered messages.
    fn is_after(&self, before: Option<Before>, executed: Executed) -> bool {
        before.is_some_and(|before| {
            before.unordered <= self.unordered_delivered.first_gap(0)
                && before.operations <= executed.operations
                && before.requests <= executed.requests
        })
    }

    /// Delivers the ordered messages whose turn has come. Called also when operations were
    /// executed.
    pub fn advance(
        &mut self,
        executed: Executed,
        regions: &mut dyn Regions,
        out: &mut Vec<Delivered>,
    ) {
        while let Some(incoming) = self.ordered.get(&self.ordered_delivered) {
            if !self.is_after(incoming.after, executed) {
                return;
            }
            let Some(incoming) = self.ordered.get_mut(&self.ordered_delivered) else {
                return;
            };
            // Nothing that is delivered later can be overwritten by this message any more.
            self.held_bytes -= incoming.write_held(regions);
            if !incoming.is_complete() {
                return;
            }
            let number = self.ordered_delivered;
            self.ordered_delivered += 1;
            if let Some(incoming) = self.ordered.remove(&number) {
                self.finish(number, incoming, out);
            }
        }
    }

    /// Returns whether the next ordered message waits for requests, of which `executed` are
    /// executed.
    pub fn waits_for_requests(&self, executed: u64) -> bool {
        let next = self.ordered.get(&self.ordered_delivered);
        let before = next.and_then(|incoming| incoming.after);
        before.is_some_and(|before| before.requests > executed)
    }

    fn finish(&mut self, number: u64, incoming: Incoming, out: &mut Vec<Delivered>) {
        // A delivered message is held by the program's queue until the program takes it.
        self.held_bytes -= ITEM_COST_BYTES + incoming.held_bytes();
        let is_ordered = incoming.class.is_ordered();
        let refused = incoming.refused;
        let notifies = incoming.mode.notifies() && refused.is_none();
        out.push(Delivered {
            number,
            is_ordered,
            is_synchronous: incoming.class == Class::Synchronous,
            refused,
            message: notifies.then(|| incoming.into_delivery()),
        });
    }

    /// Frees what the collections keep beyond their entries.
    pub fn release(&mut self) {
        memory::release(&mut self.ordered);
        memory::release(&mut self.unordered);
    }
}

/// Operations and requests of the peer that were executed without a gap.
#[derive(Debug, Clone, Copy)]
pub struct Executed {
    /// Operations in Data packets.
    pub operations: u64,
    /// Operations in Requests.
    pub requests: u64,
}

/// Limits of what a peer may send.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that were granted in all.
    pub granted_bytes: u64,
    /// Longest message, in bytes.
    pub message_bytes_max: u32,
}

/// A message that was delivered or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Number of the message in its class.
    pub number: u64,
    /// The message has a place in the order.
    pub is_ordered: bool,
    /// The sender waits for it.
    pub is_synchronous: bool,
    /// Reason why the data was not written.
    pub refused: Option<Refused>,
    /// The message, if its mode notifies the program.
    pub message: Option<Delivery>,
}
