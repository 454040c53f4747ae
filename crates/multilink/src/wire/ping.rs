//! Control messages within a session: their common header, and the two messages without contents,
//! ping and goodbye.
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
//! A ping takes a sequence number of its link. Its body is empty or padding. The report that
//! answers it states the numbers received on that link. A ping thereby measures the round trip,
//! detects the loss of the last datagram, shows that an idle path is alive and probes a dead one.

use super::{Kind, Malformed, Reader, kind_of, lead};

/// Length of the header, in bytes.
pub const CONTROL_HEADER_BYTES: usize = 8;

/// Kind of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlKind {
    /// Requests a report at once.
    Ping = 1,
    /// A [`super::Report`]. It causes no report itself, unless it leaves a gap.
    Report = 2,
    /// The sender's instance ends. A receiver whose version does not know the kind drops it as
    /// malformed.
    Goodbye = 3,
    /// A [`super::Offer`], sealed in each session. A receiver whose version does not know the kind
    /// drops it as malformed. Offers without a seal were number 4.
    Offer = 5,
}

impl ControlKind {
    /// Returns whether the receiver reports the message at once.
    pub fn is_eliciting(self) -> bool {
        matches!(self, Self::Ping | Self::Offer)
    }
}

/// Header of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    /// Sender's number for the link.
    pub link: u8,
    /// Kind of the message.
    pub kind: ControlKind,
    /// Receiver's number for the session.
    pub session: u16,
    /// As in a data header. Control messages count in the same sequence as data.
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

    /// Parses and checks the header at the front of `datagram`.
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
            5 => ControlKind::Offer,
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
