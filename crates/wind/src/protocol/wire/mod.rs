//! Format of the datagrams. `docs/spec/wind.md` is the specification. Every integer is big-endian.
//!
//! A packet has a header and records. Its number is never used twice. A record that is lost is sent
//! again in another packet, so each record has an identity of its own.

pub mod batch;
mod record;
mod request;
mod segment;

pub use batch::Batch;
pub use record::{
    ACK_RANGES_MAX, ANSWER_HEAD_BYTES, Ack, Answer, OPERATION_HEAD_BYTES, Record, Summary,
    parse_records,
};
pub use request::{
    Authenticator, REQUEST_TAG_BYTES, Request, Response, TagKey, emit_request, emit_response,
    is_repeated_get, parse_request, parse_response,
};

pub use segment::{Before, Segment};

use kumi_multilink::wire::{Reader, Short};

/// Version of the format.
pub const VERSION: u8 = 1;

/// Length of the header of a packet, in bytes.
pub const HEADER_BYTES: usize = 16;

/// Kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// First message of the handshake.
    Init = 1,
    /// Second message of the handshake.
    Reply = 2,
    /// Sealed records of a session.
    Data = 3,
    /// The receiver has no such session, for example after a restart.
    Unknown = 4,
    /// An operation that the kernel of the receiver may execute.
    Request = 5,
    /// Answers to requests.
    Response = 6,
    /// Padding, which finds out whether the path carries a datagram of this length.
    PathProbe = 7,
    /// Reply to a path probe, with its number.
    PathReply = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Init,
        Self::Reply,
        Self::Data,
        Self::Unknown,
        Self::Request,
        Self::Response,
        Self::PathProbe,
        Self::PathReply,
    ];
}

/// Reason why a packet or a record was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the format requires.
    #[error("packet shorter than its contents")]
    Short,
    /// A version other than [`VERSION`].
    #[error("format version {0}; this side speaks version {VERSION}")]
    Version(u8),
    /// An unknown kind of packet or record.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// A field has a value that the specification excludes.
    #[error("field {0} out of range")]
    Field(&'static str),
}

impl From<Short> for Malformed {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

/// Header of a packet.
///
/// ```text
/// | kind (4) | version (4) | flags (8) | 0 (16) | receiver (32) | number (64) |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// Requests of the sender beside the contents.
    pub flags: Flags,
    /// Index of the session at the receiver.
    pub receiver: u32,
    /// Packet number, from 0 for each session. Requests and path probes have numbers of their own;
    /// a response has that of the last request that it answers, and a path reply that of the probe.
    pub number: u64,
}

/// Flags of a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags {
    /// The sender waits for an acknowledgement and has nothing more to send.
    pub wants_ack: bool,
    /// The sender expects an answer of the program, with which the acknowledgement may come.
    pub may_hold_ack: bool,
    /// A put that is executed gets no response of its own. Of requests only.
    pub is_quiet: bool,
    /// The response states which of the requests before were executed. Of requests only.
    pub wants_summary: bool,
}

const WANTS_ACK: u8 = 1;
const QUIET: u8 = 2;
const WANTS_SUMMARY: u8 = 4;
const MAY_HOLD_ACK: u8 = 8;

impl Flags {
    fn to_byte(self) -> u8 {
        let flag = |is_set: bool, value: u8| if is_set { value } else { 0 };
        flag(self.wants_ack, WANTS_ACK)
            | flag(self.may_hold_ack, MAY_HOLD_ACK)
            | flag(self.is_quiet, QUIET)
            | flag(self.wants_summary, WANTS_SUMMARY)
    }

    /// Returns the flags of a packet of `kind`.
    fn parse(kind: Kind, byte: u8) -> Result<Self, Malformed> {
        let known = match kind {
            Kind::Request => QUIET | WANTS_SUMMARY,
            Kind::Data => WANTS_ACK | MAY_HOLD_ACK,
            _ => WANTS_ACK,
        };
        if byte & !known != 0 {
            return Err(Malformed::Field("flags"));
        }
        Ok(Self {
            wants_ack: byte & WANTS_ACK != 0,
            may_hold_ack: byte & MAY_HOLD_ACK != 0,
            is_quiet: byte & QUIET != 0,
            wants_summary: byte & WANTS_SUMMARY != 0,
        })
    }
}

impl Header {
    /// Returns the header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = (self.kind as u8) << 4 | VERSION;
        bytes[1] = self.flags.to_byte();
        bytes[4..8].copy_from_slice(&self.receiver.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Parses the header of a packet.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(packet);
        let first = reader.u8()?;
        if first & 0xf != VERSION {
            return Err(Malformed::Version(first & 0xf));
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == first >> 4);
        let kind = kind.ok_or(Malformed::Kind(first >> 4))?;
        let flags = Flags::parse(kind, reader.u8()?)?;
        if reader.u16()? != 0 {
            return Err(Malformed::Field("reserved"));
        }
        Ok(Self {
            kind,
            flags,
            receiver: reader.u32()?,
            number: reader.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header__round_trip_and_damage__is_equal_or_refused() {
        let header = Header {
            kind: Kind::Data,
            flags: Flags {
                wants_ack: true,
                ..Flags::default()
            },
            receiver: 7,
            number: u64::MAX - 1,
        };
        let bytes = header.to_bytes();
        assert_eq!(Header::parse(&bytes), Ok(header));
        for length in 0..HEADER_BYTES {
            assert_eq!(Header::parse(&bytes[..length]), Err(Malformed::Short));
        }
        let with = |place: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[place] = byte;
            Header::parse(&bytes).unwrap_err()
        };
        assert_eq!(with(0, 3 << 4 | 2), Malformed::Version(2));
        assert_eq!(with(0, 9 << 4 | 1), Malformed::Kind(9));
        assert_eq!(with(1, QUIET), Malformed::Field("flags"));
        let mut request = bytes;
        (request[0], request[1]) = ((Kind::Request as u8) << 4 | VERSION, QUIET);
        assert!(Header::parse(&request).unwrap().flags.is_quiet);
        request[1] = WANTS_ACK;
        assert_eq!(Header::parse(&request), Err(Malformed::Field("flags")));
        assert_eq!(with(3, 1), Malformed::Field("reserved"));
    }
}
