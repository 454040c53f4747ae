//! Control messages inside a session: their common header, and the two that have nothing else, the
//! ping and the goodbye.
//!
//! ```text
//! +-------+-------+-------+-------+-------------------------------+
//! | kind=2| ver=2 | link  | what  |            session            |
//! +-------+-------+-------+-------+-------------------------------+
//! |                link sequence number (low 32 bits)             |
//! +---------------------------------------------------------------+
//! |  body (a report), then the 16-byte tag                        |
//! ```
//!
//! A ping has no body: it takes a sequence number of its link, and the report that answers it says
//! how far that link has come. So a ping measures the round trip, finds a loss at the tail, keeps
//! an idle path known to be alive and probes a dead one, all by one mechanism.

use super::{Kind, Malformed, Reader, kind_of, lead};

/// Bytes of the header.
pub const CONTROL_HEADER_BYTES: usize = 8;

/// What a control message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlKind {
    /// Asks for a report at once.
    Ping = 1,
    /// A [`super::Report`]; never itself reported on at once.
    Report = 2,
    /// The sender's instance ends. A version that does not know it drops it as malformed.
    Goodbye = 3,
}

/// Header of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    /// The sender's number for the link.
    pub link: u8,
    /// What follows.
    pub kind: ControlKind,
    /// The receiver's number for the session.
    pub session: u16,
    /// As in a data header; control messages count in the same sequence.
    pub link_seq: u32,
}

impl ControlHeader {
    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; CONTROL_HEADER_BYTES]) {
        out[0] = lead(Kind::Control);
        out[1] = self.link << 4 | self.kind as u8;
        out[2..4].copy_from_slice(&self.session.to_be_bytes());
        out[4..8].copy_from_slice(&self.link_seq.to_be_bytes());
    }

    /// Reads and checks the header at the front of `datagram`.
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        if kind_of(datagram)? != Kind::Control {
            return Err(Malformed::Field("kind"));
        }
        let mut reader = Reader::new(datagram);
        reader.u8()?;
        let link_kind = reader.u8()?;
        let kind = match link_kind & 0x0f {
            1 => ControlKind::Ping,
            2 => ControlKind::Report,
            3 => ControlKind::Goodbye,
            _ => return Err(Malformed::Field("control kind")),
        };
        Ok(Self {
            link: link_kind >> 4,
            kind,
            session: reader.u16()?,
            link_seq: reader.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_header__golden_bytes__are_stable() {
        let header = ControlHeader {
            link: 1,
            kind: ControlKind::Report,
            session: 7,
            link_seq: 0x01020304,
        };
        let mut bytes = [0; CONTROL_HEADER_BYTES];
        header.emit(&mut bytes);
        assert_eq!(bytes, [0x22, 0x12, 0, 7, 1, 2, 3, 4]);
        assert_eq!(ControlHeader::parse(&bytes), Ok(header));
        bytes[1] = 0x13;
        let goodbye = ControlHeader {
            kind: ControlKind::Goodbye,
            ..header
        };
        assert_eq!(ControlHeader::parse(&bytes), Ok(goodbye));
        bytes[1] = 0x14;
        assert_eq!(
            ControlHeader::parse(&bytes),
            Err(Malformed::Field("control kind"))
        );
    }
}
