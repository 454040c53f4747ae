//! Formats of all datagrams, one file per message. `docs/spec/multilink.md` is the specification
//! and states the cost of the framing. Every integer is big-endian.
//!
//! The first byte of a datagram contains its kind and the version of the format. `Data` and
//! `Control` belong to a session, which seals them. `Hello`, `Init`, `Reply` and `Cookie` establish
//! sessions and carry their own proof of the cluster key.

mod cookie;
mod cursor;
mod data;
mod hello;
mod offer;
mod ping;
mod report;

pub use cookie::{COOKIE_BYTES, CookieReply};
pub use cursor::{Reader, Short};
pub use data::{DATA_HEADER_BYTES, DataHeader, UNIT_INDEX_MAX, flag};
pub use hello::{Hello, NAME_BYTES_MAX, Params};
pub use offer::{Mac, OFFER_BYTES, Offer, QuestionKey};
pub use ping::{CONTROL_HEADER_BYTES, ControlHeader, ControlKind};
pub use report::{LinkReport, Missing, REPORT_MISSING_MAX, Report};

/// Version of the format. A datagram of another version is counted and dropped.
pub const VERSION: u8 = 2;

/// Most member links of a device. The link field of the header has four bits.
pub const LINKS_MAX: usize = 16;

/// Length of the AEAD tag at the end of every sealed datagram (AES-GCM), in bytes.
pub const TAG_BYTES: usize = 16;

/// Kind of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One unit of a frame.
    Data = 1,
    /// A report, a ping, a goodbye or an offer within a session.
    Control = 2,
    /// Multicast introduction on a LAN.
    Hello = 3,
    /// First message of the Noise handshake.
    Init = 4,
    /// Second message of the Noise handshake.
    Reply = 5,
    /// Request for an Init again, with a cookie in it. A responder under load sends it.
    Cookie = 6,
}

impl Kind {
    /// All kinds of datagram.
    pub const ALL: [Self; 6] = [
        Self::Data,
        Self::Control,
        Self::Hello,
        Self::Init,
        Self::Reply,
        Self::Cookie,
    ];
}

/// Reason why a datagram was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the message requires.
    #[error("datagram shorter than its header says")]
    Short,
    /// A version other than [`VERSION`].
    #[error("format version {0}; this side speaks version {VERSION}")]
    Version(u8),
    /// Unknown kind of datagram.
    #[error("unknown kind of datagram {0}: expected 1 to 6")]
    Kind(u8),
    /// A field has a value that the specification excludes.
    #[error("field {0} out of range")]
    Field(&'static str),
}

impl From<Short> for Malformed {
    fn from(_: Short) -> Self {
        Malformed::Short
    }
}

/// Returns the first byte of a datagram of `kind`.
pub const fn lead(kind: Kind) -> u8 {
    (kind as u8) << 4 | VERSION
}

/// Returns the kind of a datagram from its first byte.
pub fn kind_of(datagram: &[u8]) -> Result<Kind, Malformed> {
    let lead = *datagram.first().ok_or(Malformed::Short)?;
    if lead & 0x0f != VERSION {
        return Err(Malformed::Version(lead & 0x0f));
    }
    match lead >> 4 {
        1 => Ok(Kind::Data),
        2 => Ok(Kind::Control),
        3 => Ok(Kind::Hello),
        4 => Ok(Kind::Init),
        5 => Ok(Kind::Reply),
        6 => Ok(Kind::Cookie),
        value => Err(Malformed::Kind(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lead_byte__every_kind__round_trips() {
        for kind in Kind::ALL {
            assert_eq!(kind_of(&[lead(kind)]), Ok(kind));
        }
    }

    #[test]
    fn lead_byte__other_version_or_unknown_kind__is_refused() {
        assert_eq!(kind_of(&[0x11]), Err(Malformed::Version(1)));
        assert_eq!(kind_of(&[0xf2]), Err(Malformed::Kind(15)));
        assert_eq!(kind_of(&[]), Err(Malformed::Short));
        for (datagram, message) in [
            (&[0x11][..], "format version 1; this side speaks version 2"),
            (&[0xf2][..], "unknown kind of datagram 15: expected 1 to 6"),
            (&[][..], "datagram shorter than its header says"),
        ] {
            assert_eq!(kind_of(datagram).unwrap_err().to_string(), message);
        }
        let error = ControlHeader::parse(&[lead(Kind::Control), 0xff]).unwrap_err();
        assert_eq!(error.to_string(), "field control kind out of range");
    }
}
