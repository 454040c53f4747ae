//! Requests and responses: packets that the kernel of the target can execute and answer.
//!
//! ```text
//!   request    | header | one operation                       | tag (64) |
//!   response   | header | answers, and a summary if asked for | tag (64) |
//! ```
//!
//! The tag is SipHash-2-4 of everything before it, little-endian. A plain session has none.

use super::WANTS_SUMMARY;
use super::record::{Answer, Record, Summary, parse_records};
use super::{HEADER_BYTES, Header, Kind};
use crate::protocol::model::{Operation, Place};
use kumi_multilink::secure::{Seal, derive};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use subtle::ConstantTimeEq;

/// Length of the tag of an authenticated session, in bytes.
pub const REQUEST_TAG_BYTES: usize = 8;

/// Most bytes that a request may read: the response then fits a frame of 1500 bytes.
const REQUESTED_BYTES_MAX: u16 = 1444;

/// Key of the tags of one direction.
pub type TagKey = [u8; 16];

/// Authenticates requests and responses of one direction of a session.
#[derive(Debug, Clone, Copy)]
pub struct Authenticator {
    key: Option<TagKey>,
}

impl Authenticator {
    /// Derives the key from that of the direction. A plain session has none.
    pub fn new(session_key: &[u8; 32], seal: Seal) -> Self {
        let key = derive(session_key, "kumihimo wind requests 1");
        Self {
            key: (seal != Seal::Plain).then_some(key),
        }
    }

    /// Returns the key; `None` for a plain session.
    pub fn key(&self) -> Option<TagKey> {
        self.key
    }

    fn tag(key: &TagKey, bytes: &[u8]) -> [u8; REQUEST_TAG_BYTES] {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(bytes);
        hasher.finish().to_le_bytes()
    }

    /// Appends the tag of the packet that begins at `start`.
    fn append(&self, start: usize, packet: &mut Vec<u8>) {
        if let Some(key) = &self.key {
            let tag = Self::tag(key, &packet[start..]);
            packet.extend_from_slice(&tag);
        }
    }

    /// Returns the records of an authentic packet.
    fn records<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let body = match &self.key {
            None => packet,
            Some(key) => {
                let (body, tag) = packet.split_last_chunk::<REQUEST_TAG_BYTES>()?;
                bool::from(Self::tag(key, body).ct_eq(tag)).then_some(body)?
            }
        };
        body.get(HEADER_BYTES..)
    }
}

/// An operation for the kernel of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Number of the request in its session.
    pub number: u64,
    /// Place in the target's memory.
    pub place: Place,
    /// The operation.
    pub operation: Operation,
}

/// Appends a request to `out`.
pub fn emit_request(
    header: Header,
    request: &Request,
    authenticator: &Authenticator,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.extend_from_slice(&header.to_bytes());
    super::record::emit_operation(request.number, &request.place, &request.operation, out);
    authenticator.append(start, out);
}

/// Returns whether a packet must not be coalesced with others: a get that is sent again. Where
/// super-packets pass, the kernel of the target has one packet for all responses to several gets,
/// and leaves them to the program, which may be stopped.
pub fn is_repeated_get(packet: &[u8]) -> bool {
    const GET: u8 = 2;
    let is_request = packet
        .first()
        .is_some_and(|byte| byte >> 4 == Kind::Request as u8);
    let is_repeated = packet
        .get(1)
        .is_some_and(|flags| flags & WANTS_SUMMARY != 0);
    is_request && is_repeated && packet.get(HEADER_BYTES + 1) == Some(&GET)
}

/// Parses an authentic request. `None` for a forged or malformed one.
pub fn parse_request(packet: &[u8], authenticator: &Authenticator) -> Option<Request> {
    let records = parse_records(authenticator.records(packet)?).ok()?;
    match <[Record<'_>; 1]>::try_from(records).ok()? {
        [
            Record::Operation {
                operation: Operation::Get(bytes),
                ..
            },
        ] if bytes > REQUESTED_BYTES_MAX => None,
        [
            Record::Operation {
                number,
                place,
                operation,
            },
        ] => Some(Request {
            number,
            place,
            operation,
        }),
        _ => None,
    }
}

/// Answers of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<'a> {
    /// Answers to requests, in the order in which their packets were sent. At least one.
    pub answers: Vec<Answer<'a>>,
    /// Requests that were executed, if one of those that are answered asks for it.
    pub summary: Option<Summary>,
}

/// Appends a response to `out`.
pub fn emit_response(
    header: Header,
    response: Response<'_>,
    authenticator: &Authenticator,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.extend_from_slice(&header.to_bytes());
    for answer in response.answers {
        Record::Answer(answer).emit(out);
    }
    if let Some(summary) = response.summary {
        Record::Summary(summary).emit(out);
    }
    authenticator.append(start, out);
}

/// Parses an authentic response. `None` for a forged or malformed one.
pub fn parse_response<'a>(packet: &'a [u8], authenticator: &Authenticator) -> Option<Response<'a>> {
    let mut records = parse_records(authenticator.records(packet)?).ok()?;
    let summary = match records.last() {
        Some(Record::Summary(summary)) => Some(*summary),
        _ => None,
    };
    records.truncate(records.len() - usize::from(summary.is_some()));
    let answers = records.into_iter().map(|record| match record {
        Record::Answer(answer) => Some(answer),
        _ => None,
    });
    let answers: Vec<Answer<'_>> = answers.collect::<Option<_>>()?;
    (!answers.is_empty()).then_some(Response { answers, summary })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::Flags;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::default(),
            receiver: 9,
            number: 3,
        }
    }

    #[test]
    fn request_and_response__authentic__round_trip_and_any_change_is_refused() {
        let authenticator = Authenticator::new(&[1; 32], Seal::Authenticate);
        let request = Request {
            number: 7,
            place: Place {
                region: 2,
                key: [4; 16],
                offset: 99,
            },
            operation: Operation::Put(b"data".to_vec()),
        };
        let mut packet = Vec::new();
        emit_request(header(Kind::Request), &request, &authenticator, &mut packet);
        assert_eq!(parse_request(&packet, &authenticator), Some(request));
        assert!(!is_repeated_get(&packet) && !is_repeated_get(&[0x51]));
        let sent = Response {
            answers: vec![Answer {
                operation: 7,
                result: Ok(b"bytes"),
            }],
            summary: Some(Summary {
                highest: 7,
                executed: 0b101,
            }),
        };
        let mut response = Vec::new();
        emit_response(
            header(Kind::Response),
            sent.clone(),
            &authenticator,
            &mut response,
        );
        assert_eq!(parse_response(&response, &authenticator), Some(sent));
        for at in 0..packet.len() {
            packet[at] ^= 1;
            assert_eq!(parse_request(&packet, &authenticator), None, "byte {at}");
            packet[at] ^= 1;
            assert_eq!(parse_request(&packet[..at], &authenticator), None);
        }
        for at in 0..response.len() {
            response[at] ^= 1;
            assert_eq!(parse_response(&response, &authenticator), None, "byte {at}");
            response[at] ^= 1;
        }
        let other = Authenticator::new(&[2; 32], Seal::Authenticate);
        assert_eq!(parse_request(&packet, &other), None);
    }

    #[test]
    fn request__plain__has_no_tag() {
        let authenticator = Authenticator::new(&[1; 32], Seal::Plain);
        let request = Request {
            number: 0,
            place: Place {
                region: 0,
                key: [0; 16],
                offset: 0,
            },
            operation: Operation::Get(8),
        };
        let mut packet = Vec::new();
        emit_request(header(Kind::Request), &request, &authenticator, &mut packet);
        assert_eq!(packet.len(), 56);
        assert!(!is_repeated_get(&packet));
        packet[1] |= WANTS_SUMMARY;
        assert!(is_repeated_get(&packet));
        packet[1] = 0;
        assert_eq!(parse_request(&packet, &authenticator), Some(request));
    }
}
