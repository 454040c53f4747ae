//! Records of a sealed packet.

use super::Malformed;
use super::batch::{self, BATCH, Batch};
use super::segment::{self, PLACE_BYTES, SEGMENT, Segment, place, push_place};
use crate::protocol::model::{Atomic, Operation, Place, Refused};
use kumi_multilink::wire::Reader;
use std::ops::Range;

const PADDING: u8 = 0;
const ACK: u8 = 1;
const GRANT: u8 = 2;
const OPERATION: u8 = 4;
const ANSWER: u8 = 5;
const PLACED: u8 = 6;
const WANTED: u8 = 7;
const PING: u8 = 8;
const CLOSE: u8 = 9;
const REJECTION: u8 = 10;
const SERVES: u8 = 11;
const SUMMARY: u8 = 12;
// 3: segment.rs, 13: batch.rs

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
    /// Whole messages.
    Batch(Batch<'a>),
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
            Self::Segment(segment) => segment::emit(segment, out),
            Self::Batch(batch) => batch.emit(out),
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
        if kind == PADDING {
            return match reader.remaining().iter().all(|byte| *byte == 0) {
                true => Ok(records),
                false => Err(Malformed::Field("padding")),
            };
        }
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
        SEGMENT => segment::parse(detail, length, reader).map(Record::Segment),
        BATCH => batch::parse(detail, length, reader).map(Record::Batch),
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
