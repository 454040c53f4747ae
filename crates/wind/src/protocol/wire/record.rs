//! Records of a sealed packet.

use super::Malformed;
use crate::protocol::model::{Atomic, Class, Mode, Operation, Place, Refused};
use kumi_multilink::wire::Reader;
use std::ops::Range;

const ACK: u8 = 1;
const GRANT: u8 = 2;
const SEGMENT: u8 = 3;
const OPERATION: u8 = 4;
const ANSWER: u8 = 5;
const PLACED: u8 = 6;
const WANTED: u8 = 7;
const PING: u8 = 8;
const CLOSE: u8 = 9;
const REJECTION: u8 = 10;
const SERVES: u8 = 11;
const SUMMARY: u8 = 12;

/// Most ranges of an acknowledgement. Packets in older ranges are reported by earlier
/// acknowledgements, or are sent again.
pub const ACK_RANGES_MAX: usize = 32;

/// Acknowledgement of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Time from the arrival of the highest packet to this acknowledgement, in µs.
    pub delay_us: u32,
    /// Ranges of packet numbers, the highest first, with a gap between each two.
    pub ranges: Vec<Range<u64>>,
}

/// Numbers of items that were submitted before an ordered message. It is delivered after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// Unordered messages.
    pub unordered: u64,
    /// Operations in Data packets.
    pub operations: u64,
    /// Operations in Requests.
    pub requests: u64,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Class of the message.
    pub class: Class,
    /// Mode of the message.
    pub mode: Mode,
    /// Number of the message: ordered and unordered messages are counted separately.
    pub message: u64,
    /// Length of header and data together, in bytes.
    pub total_bytes: u32,
    /// Offset of the payload in header and data.
    pub offset: u32,
    /// Length of the header, in bytes.
    pub header_bytes: u16,
    /// Numbers of what was submitted before the message; only in the first segment of an ordered one.
    pub after: Option<Before>,
    /// Place of the data; `None` for [`Mode::MessageThrough`].
    pub place: Option<Place>,
    /// Bytes of this part.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Length of a segment at `offset` beyond its payload, in bytes.
    pub fn head_bytes(class: Class, mode: Mode, offset: u32) -> usize {
        let ordered = if has_before(class, offset) { 24 } else { 0 };
        let placed = if mode.is_direct() { PLACE_BYTES } else { 0 };
        22 + ordered + placed
    }
}

/// Returns whether a segment at `offset` says what was submitted before its message.
fn has_before(class: Class, offset: u32) -> bool {
    class.is_ordered() && offset == 0
}

const PLACE_BYTES: usize = 28;

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Number of the operation.
    pub operation: u64,
    /// The word before an atomic operation, or the bytes of a get, or nothing.
    pub result: Result<&'a [u8], Refused>,
}

/// Bitmap of the requests of a session that were executed, of the last 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Number of the highest request.
    pub highest: u64,
    /// Bit i stands for the request `highest` − i: it was executed and not refused.
    pub executed: u64,
}

impl Summary {
    /// Returns the numbers of the executed requests, in their order.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        let places = (0..64)
            .rev()
            .filter(move |place| self.executed >> place & 1 == 1);
        places.filter_map(move |place| self.highest.checked_sub(place))
    }
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record<'a> {
    /// Packets have arrived.
    Ack(Ack),
    /// The receiver may get this number of bytes of payload in all, retransmissions not counted.
    Grant(u64),
    /// A part of a message.
    Segment(Segment<'a>),
    /// An operation on a place of the receiver's memory.
    Operation {
        /// Number of the operation.
        number: u64,
        /// The place.
        place: Place,
        /// The operation.
        operation: Operation,
    },
    /// Result of an operation.
    Answer(Answer<'a>),
    /// Requests that were executed. Only in responses.
    Summary(Summary),
    /// Number of ordered messages that have been delivered.
    Placed(u64),
    /// Number of bytes of payload that the sender would like to have sent in all.
    Wanted(u64),
    /// The data of a message was refused.
    Rejection {
        /// The message has a place in the order.
        is_ordered: bool,
        /// Number of the message.
        message: u64,
        /// Reason for the refusal.
        reason: Refused,
    },
    /// Asks for an acknowledgement.
    Ping,
    /// The sender ends the session.
    Close,
    /// The sender executes requests.
    Serves,
}

impl Record<'_> {
    /// Returns whether the record asks for an acknowledgement.
    pub fn is_eliciting(&self) -> bool {
        !matches!(self, Self::Ack(_) | Self::Close)
    }
}

fn push_place(place: &Place, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.region.to_be_bytes());
    out.extend_from_slice(&place.key);
    out.extend_from_slice(&place.offset.to_be_bytes());
}

pub(super) fn push_before(before: &Before, out: &mut Vec<u8>) {
    out.extend_from_slice(&before.unordered.to_be_bytes());
    out.extend_from_slice(&before.operations.to_be_bytes());
    out.extend_from_slice(&before.requests.to_be_bytes());
}

pub(super) fn before(reader: &mut Reader<'_>) -> Result<Before, Malformed> {
    Ok(Before {
        unordered: reader.u64()?,
        operations: reader.u64()?,
        requests: reader.u64()?,
    })
}

fn place(reader: &mut Reader<'_>) -> Result<Place, Malformed> {
    Ok(Place {
        region: reader.u32()?,
        key: reader.take(16)?.try_into().map_err(|_| Malformed::Short)?,
        offset: reader.u64()?,
    })
}

impl Record<'_> {
    /// Appends the record to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let word = |out: &mut Vec<u8>, kind: u8, value: u64| {
            out.extend_from_slice(&[kind, 0, 0, 0]);
            out.extend_from_slice(&value.to_be_bytes());
        };
        match self {
            Self::Ack(ack) => emit_ack(ack, out),
            Self::Grant(bytes) => word(out, GRANT, *bytes),
            Self::Placed(messages) => word(out, PLACED, *messages),
            Self::Wanted(bytes) => word(out, WANTED, *bytes),
            Self::Rejection {
                is_ordered,
                message,
                reason,
            } => {
                out.extend_from_slice(&[REJECTION, *reason as u8, 0, u8::from(*is_ordered)]);
                out.extend_from_slice(&message.to_be_bytes());
            }
            Self::Ping => out.extend_from_slice(&[PING, 0, 0, 0]),
            Self::Close => out.extend_from_slice(&[CLOSE, 0, 0, 0]),
            Self::Serves => out.extend_from_slice(&[SERVES, 0, 0, 0]),
            Self::Summary(summary) => {
                word(out, SUMMARY, summary.highest);
                out.extend_from_slice(&summary.executed.to_be_bytes());
            }
            Self::Segment(segment) => emit_segment(segment, out),
            Self::Operation {
                number,
                place,
                operation,
            } => emit_operation(*number, place, operation, out),
            Self::Answer(answer) => {
                let (status, bytes) = match answer.result {
                    Ok(bytes) => (0, bytes),
                    Err(reason) => (reason as u8, &[][..]),
                };
                out.extend_from_slice(&[ANSWER, status]);
                out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
                out.extend_from_slice(&answer.operation.to_be_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// ```text
/// | 1 (8) | ranges (8) | 0 (16) | delay_us (32) | highest (64) | length (32) |
/// then for each further range: | gap (32) | length (32) |
/// ```
fn emit_ack(ack: &Ack, out: &mut Vec<u8>) {
    let mut ranges = Vec::new();
    let mut before: Option<&Range<u64>> = None;
    for range in ack.ranges.iter().take(ACK_RANGES_MAX) {
        let gap = before.map_or(0, |before| before.start - range.end);
        // A range that is too far below or too long for its field ends the list.
        let (Ok(gap), Ok(length)) = (u32::try_from(gap), u32::try_from(range.end - range.start))
        else {
            break;
        };
        if before.is_some() {
            ranges.extend_from_slice(&gap.to_be_bytes());
        }
        ranges.extend_from_slice(&length.to_be_bytes());
        before = Some(range);
    }
    let count = (ranges.len() + 4) / 8;
    out.extend_from_slice(&[ACK, count as u8, 0, 0]);
    out.extend_from_slice(&ack.delay_us.to_be_bytes());
    let highest = ack.ranges.first().map_or(0, |range| range.end - 1);
    out.extend_from_slice(&highest.to_be_bytes());
    out.extend_from_slice(&ranges);
}

/// ```text
/// | 3 (8) | class (4) | mode (4) | payload length (16) | message (64) | total (32) | offset (32) |
/// | header length (16) |
/// ordered, offset 0: | unordered before (64) | operations before (64) | requests before (64) |
/// direct:  | region (32) | key (128) | place (64) |
/// ```
fn emit_segment(segment: &Segment<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[SEGMENT, (segment.class as u8) << 4 | segment.mode as u8]);
    out.extend_from_slice(&(segment.payload.len() as u16).to_be_bytes());
    out.extend_from_slice(&segment.message.to_be_bytes());
    out.extend_from_slice(&segment.total_bytes.to_be_bytes());
    out.extend_from_slice(&segment.offset.to_be_bytes());
    out.extend_from_slice(&segment.header_bytes.to_be_bytes());
    if let Some(before) = &segment.after {
        push_before(before, out);
    }
    if let Some(place) = &segment.place {
        push_place(place, out);
    }
    out.extend_from_slice(segment.payload);
}

/// ```text
/// | 4 (8) | operation (8) | length (16) | number (64) | region (32) | key (128) | offset (64) |
/// then the payload, or one or two operands of 64 bits
/// ```
pub(super) fn emit_operation(number: u64, place: &Place, operation: &Operation, out: &mut Vec<u8>) {
    let (kind, length) = match operation {
        Operation::Put(bytes) => (0, bytes.len() as u16),
        Operation::PutDiff(bytes) => (1, bytes.len() as u16),
        Operation::Get(bytes) => (2, *bytes),
        Operation::Atomic(Atomic::FetchAdd(_)) => (3, 0),
        Operation::Atomic(Atomic::CompareSwap { .. }) => (4, 0),
        Operation::Atomic(Atomic::Swap(_)) => (5, 0),
        Operation::Atomic(Atomic::MaskedStore { .. }) => (6, 0),
    };
    out.extend_from_slice(&[OPERATION, kind]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    push_place(place, out);
    match operation {
        Operation::Put(bytes) | Operation::PutDiff(bytes) => out.extend_from_slice(bytes),
        Operation::Get(_) => {}
        Operation::Atomic(Atomic::FetchAdd(value) | Atomic::Swap(value)) => {
            out.extend_from_slice(&value.to_be_bytes());
        }
        Operation::Atomic(Atomic::CompareSwap { expected, new }) => {
            out.extend_from_slice(&expected.to_be_bytes());
            out.extend_from_slice(&new.to_be_bytes());
        }
        Operation::Atomic(Atomic::MaskedStore { mask, value }) => {
            out.extend_from_slice(&mask.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

/// Length of an operation without payload and operands, in bytes.
pub const OPERATION_HEAD_BYTES: usize = 12 + PLACE_BYTES;

/// Length of an answer without its bytes.
pub const ANSWER_HEAD_BYTES: usize = 12;

/// Parses all records of a packet. A damaged record refuses the whole packet, so that nothing of it
/// has an effect.
pub fn parse_records(body: &[u8]) -> Result<Vec<Record<'_>>, Malformed> {
    let mut reader = Reader::new(body);
    let mut records = Vec::new();
    while let Ok(kind) = reader.u8() {
        records.push(parse(kind, &mut reader)?);
    }
    Ok(records)
}

fn parse<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let detail = reader.u8()?;
    let length = reader.u16()?;
    let has_zeros = || match (detail, length) {
        (0, 0) => Ok(()),
        _ => Err(Malformed::Field("reserved")),
    };
    match kind {
        ACK => ack(detail, length, reader),
        SEGMENT => segment(detail, length, reader),
        OPERATION => operation(detail, length, reader),
        ANSWER => answer(detail, length, reader),
        GRANT => has_zeros().and(Ok(Record::Grant(reader.u64()?))),
        PLACED => has_zeros().and(Ok(Record::Placed(reader.u64()?))),
        WANTED => has_zeros().and(Ok(Record::Wanted(reader.u64()?))),
        SUMMARY => has_zeros().and(Ok(Record::Summary(Summary {
            highest: reader.u64()?,
            executed: reader.u64()?,
        }))),
        REJECTION => rejection(detail, length, reader),
        PING => has_zeros().and(Ok(Record::Ping)),
        CLOSE => has_zeros().and(Ok(Record::Close)),
        SERVES => has_zeros().and(Ok(Record::Serves)),
        kind => Err(Malformed::Kind(kind)),
    }
}

fn ack<'a>(count: u8, zero: u16, reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    if count == 0 || usize::from(count) > ACK_RANGES_MAX || zero != 0 {
        return Err(Malformed::Field("ranges"));
    }
    let delay_us = reader.u32()?;
    let mut end = reader
        .u64()?
        .checked_add(1)
        .ok_or(Malformed::Field("highest"))?;
    let mut ranges = Vec::with_capacity(usize::from(count));
    for number in 0..count {
        let gap = if number == 0 { 0 } else { reader.u32()? };
        let length = reader.u32()?;
        if (number > 0 && gap == 0) || length == 0 {
            return Err(Malformed::Field("ranges"));
        }
        end = end
            .checked_sub(gap.into())
            .ok_or(Malformed::Field("ranges"))?;
        let start = end
            .checked_sub(length.into())
            .ok_or(Malformed::Field("ranges"))?;
        ranges.push(start..end);
        end = start;
    }
    Ok(Record::Ack(Ack { delay_us, ranges }))
}

fn segment<'a>(detail: u8, length: u16, reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let class = Class::from_wire(detail >> 4).ok_or(Malformed::Field("class"))?;
    let mode = Mode::from_wire(detail & 0xf).ok_or(Malformed::Field("mode"))?;
    let message = reader.u64()?;
    let total_bytes = reader.u32()?;
    let offset = reader.u32()?;
    let header_bytes = reader.u16()?;
    let after = match has_before(class, offset) {
        true => Some(before(reader)?),
        false => None,
    };
    let place = match mode.is_direct() {
        true => Some(place(reader)?),
        false => None,
    };
    let payload = reader.take(length.into())?;
    let end = u64::from(offset) + u64::from(length);
    if end > total_bytes.into() || u32::from(header_bytes) > total_bytes {
        return Err(Malformed::Field("offset"));
    }
    if length == 0 && total_bytes > 0 {
        return Err(Malformed::Field("length"));
    }
    // A part of a diff has whole runs, so header and data do not share a segment.
    let splits_header = u64::from(offset) < header_bytes.into() && end > header_bytes.into();
    if mode.is_diff() && splits_header {
        return Err(Malformed::Field("header"));
    }
    Ok(Record::Segment(Segment {
        class,
        mode,
        message,
        total_bytes,
        offset,
        header_bytes,
        after,
        place,
        payload,
    }))
}

fn operation<'a>(kind: u8, length: u16, reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let number = reader.u64()?;
    let place = place(reader)?;
    if kind > 2 && length != 0 {
        return Err(Malformed::Field("length"));
    }
    let operation = match kind {
        0 => Operation::Put(reader.take(length.into())?.to_vec()),
        1 => Operation::PutDiff(reader.take(length.into())?.to_vec()),
        2 => Operation::Get(length),
        3 => Operation::Atomic(Atomic::FetchAdd(reader.u64()?)),
        4 => Operation::Atomic(Atomic::CompareSwap {
            expected: reader.u64()?,
            new: reader.u64()?,
        }),
        5 => Operation::Atomic(Atomic::Swap(reader.u64()?)),
        6 => Operation::Atomic(Atomic::MaskedStore {
            mask: reader.u64()?,
            value: reader.u64()?,
        }),
        _ => return Err(Malformed::Field("operation")),
    };
    Ok(Record::Operation {
        number,
        place,
        operation,
    })
}

fn answer<'a>(status: u8, length: u16, reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let operation = reader.u64()?;
    let bytes = reader.take(length.into())?;
    let result = match status {
        0 => Ok(bytes),
        status => Err(Refused::from_wire(status).ok_or(Malformed::Field("status"))?),
    };
    if result.is_err() && length != 0 {
        return Err(Malformed::Field("length"));
    }
    Ok(Record::Answer(Answer { operation, result }))
}

fn rejection<'a>(
    reason: u8,
    is_ordered: u16,
    reader: &mut Reader<'a>,
) -> Result<Record<'a>, Malformed> {
    if is_ordered > 1 {
        return Err(Malformed::Field("reserved"));
    }
    Ok(Record::Rejection {
        is_ordered: is_ordered == 1,
        message: reader.u64()?,
        reason: Refused::from_wire(reason).ok_or(Malformed::Field("status"))?,
    })
}

#[cfg(test)]
mod tests;
