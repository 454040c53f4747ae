//! Segments: parts of a message, and what was submitted before it.

use super::Malformed;
use crate::protocol::model::{Class, Mode, Place};
use kumi_multilink::wire::Reader;

/// Kind of the record.
pub(super) const SEGMENT: u8 = 3;

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
    /// Numbers of what was submitted before it; only in the first segment of an ordered message.
    pub after: Option<Before>,
    /// Place of the data; `None` for [`Mode::MessageThrough`].
    pub place: Option<Place>,
    /// Bytes of this part.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Length of a segment at `offset` beyond its payload, in bytes.
    pub fn head_bytes(class: Class, mode: Mode, offset: u32) -> usize {
        let ordered = if has_before(class, offset) {
            BEFORE_BYTES
        } else {
            0
        };
        let placed = if mode.is_direct() { PLACE_BYTES } else { 0 };
        22 + ordered + placed
    }
}

/// Returns whether a segment at `offset` says what was submitted before its message.
fn has_before(class: Class, offset: u32) -> bool {
    class.is_ordered() && offset == 0
}

/// Length of the numbers of a [`Before`], in bytes.
pub(super) const BEFORE_BYTES: usize = 24;

pub(super) const PLACE_BYTES: usize = 28;

pub(super) fn push_place(place: &Place, out: &mut Vec<u8>) {
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

pub(super) fn place(reader: &mut Reader<'_>) -> Result<Place, Malformed> {
    Ok(Place {
        region: reader.u32()?,
        key: reader.take(16)?.try_into().map_err(|_| Malformed::Short)?,
        offset: reader.u64()?,
    })
}

/// ```text
/// | 3 (8) | class (4) | mode (4) | payload length (16) | message (64) | total (32) | offset (32) |
/// | header length (16) |
/// ordered, offset 0: | unordered before (64) | operations before (64) | requests before (64) |
/// direct:  | region (32) | key (128) | place (64) |
/// ```
pub(super) fn emit(segment: &Segment<'_>, out: &mut Vec<u8>) {
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

pub(super) fn parse<'a>(
    detail: u8,
    length: u16,
    reader: &mut Reader<'a>,
) -> Result<Segment<'a>, Malformed> {
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
    Ok(Segment {
        class,
        mode,
        message,
        total_bytes,
        offset,
        header_bytes,
        after,
        place,
        payload,
    })
}
