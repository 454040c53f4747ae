//! Whole messages with consecutive numbers that share a record.

use super::Malformed;
use super::segment::{BEFORE_BYTES, Before, Segment, before, push_before};
use crate::protocol::model::{Class, Mode};
use kumi_multilink::wire::Reader;
use std::ops::Range;

/// Kind of the record.
pub(super) const BATCH: u8 = 13;

/// Whole messages of one class for the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Class of the messages.
    pub class: Class,
    /// Number of the first one. The others have the next numbers.
    pub first: u64,
    /// For ordered classes: numbers of what was submitted before the first one, and nothing else
    /// between them.
    pub after: Option<Before>,
    /// The messages have headers.
    pub has_headers: bool,
    /// The messages, each in the form of [`push_message`].
    pub body: &'a [u8],
}

/// Appends a message to the body of a batch.
///
/// ```text
/// | length of header and data (16) | header length (16), if the messages have headers | bytes |
/// ```
pub fn push_message(has_headers: bool, header: &[u8], data: &[Vec<u8>], body: &mut Vec<u8>) {
    let bytes = header.len() + data.iter().map(Vec::len).sum::<usize>();
    body.extend_from_slice(&(bytes as u16).to_be_bytes());
    if has_headers {
        body.extend_from_slice(&(header.len() as u16).to_be_bytes());
    }
    body.extend_from_slice(header);
    data.iter().for_each(|part| body.extend_from_slice(part));
}

/// Length of a message in the body of a batch beyond its bytes.
pub fn prefix_bytes(has_headers: bool) -> usize {
    if has_headers { 4 } else { 2 }
}

/// A message in the body of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// Length of the header in `bytes`.
    pub header_bytes: u16,
    /// Header and data.
    pub bytes: &'a [u8],
    /// Place of the message and its lengths in the body.
    pub range: Range<usize>,
}

/// Walk over the messages in the body of a batch.
pub struct Members<'a> {
    has_headers: bool,
    body: &'a [u8],
    at: usize,
}

/// Returns the messages in `body`, from the one at `start` on.
pub fn members(has_headers: bool, body: &[u8], start: usize) -> Members<'_> {
    Members {
        has_headers,
        body,
        at: start,
    }
}

impl<'a> Members<'a> {
    fn parse(&mut self) -> Result<Member<'a>, Malformed> {
        let mut reader = Reader::new(self.body.get(self.at..).ok_or(Malformed::Short)?);
        let bytes = reader.u16()?;
        let header_bytes = if self.has_headers { reader.u16()? } else { 0 };
        if header_bytes > bytes {
            return Err(Malformed::Field("header"));
        }
        let bytes = reader.take(bytes.into())?;
        let start = self.at;
        self.at += prefix_bytes(self.has_headers) + bytes.len();
        Ok(Member {
            header_bytes,
            bytes,
            range: start..self.at,
        })
    }
}

/// Ends at the first message that is damaged.
impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        self.parse().ok()
    }
}

impl<'a> Batch<'a> {
    /// Returns the messages, each as its only segment.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        let (class, after) = (self.class, self.after);
        let members = members(self.has_headers, self.body, 0);
        (self.first..)
            .zip(members)
            .map(move |(message, member)| Segment {
                class,
                mode: Mode::MessageThrough,
                message,
                total_bytes: member.bytes.len() as u32,
                offset: 0,
                header_bytes: member.header_bytes,
                after,
                place: None,
                payload: member.bytes,
            })
    }

    /// Length of a batch beyond its body, in bytes.
    pub fn head_bytes(class: Class) -> usize {
        12 + if class.is_ordered() { BEFORE_BYTES } else { 0 }
    }

    /// ```text
    /// | 13 (8) | class (4) | 0 (3) | has headers (1) | body length (16) | first message (64) |
    /// ordered: | unordered before (64) | operations before (64) | requests before (64) |
    /// ```
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[BATCH, (self.class as u8) << 4 | u8::from(self.has_headers)]);
        out.extend_from_slice(&(self.body.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.first.to_be_bytes());
        if let Some(before) = &self.after {
            push_before(before, out);
        }
        out.extend_from_slice(self.body);
    }
}

pub(super) fn parse<'a>(
    detail: u8,
    length: u16,
    reader: &mut Reader<'a>,
) -> Result<Batch<'a>, Malformed> {
    let class = Class::from_wire(detail >> 4).ok_or(Malformed::Field("class"))?;
    if detail & 0xe != 0 {
        return Err(Malformed::Field("reserved"));
    }
    let has_headers = detail & 1 == 1;
    let first = reader.u64()?;
    let after = match class.is_ordered() {
        true => Some(before(reader)?),
        false => None,
    };
    let body = reader.take(length.into())?;
    let (mut count, mut walk) = (0, members(has_headers, body, 0));
    while walk.at < body.len() {
        walk.parse()?;
        count += 1;
    }
    if count == 0 || first.checked_add(count).is_none() {
        return Err(Malformed::Field("first message"));
    }
    Ok(Batch {
        class,
        first,
        after,
        has_headers,
        body,
    })
}
