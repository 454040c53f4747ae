//! The header of a unit: one equal slice of a frame, or a whole small frame.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-------+-------+-------------------------------+
//! | kind=1| ver=2 | link  | flags |            session            |
//! +-------+-------+-------+-------+-------------------------------+
//! |                link sequence number (low 32 bits)             |
//! +---------------------------------------------------------------+
//! |                       unit sequence number                    |
//! +---------------+---------------+-------------------------------+
//! |  unit index   |  last index   |        depends / unit bytes   |
//! +---------------+---------------+-------------------------------+
//! |  payload …, then the 16-byte tag                              |
//! ```

use super::{Kind, Malformed, Reader, kind_of, lead};
use crate::frame::VNET_BYTES;

/// Length of the header, in bytes.
pub const DATA_HEADER_BYTES: usize = 16;

/// Highest index of a unit in its frame: the field is one byte.
pub const UNIT_INDEX_MAX: usize = 255;

/// Flags of a unit.
pub mod flag {
    /// A repair of a lost unit. It is out of order on its link, so the proof of loss ignores it.
    pub const REPAIR: u8 = 1;
    /// The frame begins with the 10-byte virtio_net header, because offloads are in use.
    pub const VNET: u8 = 2;
    /// All flags of this version. The other bits must be zero.
    pub const ALL: u8 = REPAIR | VNET;
}

/// Header of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHeader {
    /// Sender's number for the link on which the unit is sent.
    pub link: u8,
    /// Flags of the unit, from [`flag`].
    pub flags: u8,
    /// Receiver's number for the session.
    pub session: u16,
    /// Position among all datagrams that the sender has given to this link under this session: the
    /// low 32 bits of 64. With `link` it is the AEAD nonce.
    pub link_seq: u32,
    /// Position among all units that the sender has made for this peer. A repair keeps it.
    pub unit_seq: u32,
    /// Index of the slice in its frame.
    pub index: u8,
    /// Index of the frame's last slice.
    pub last: u8,
    /// On slice 0: distance in units back to the end of the previous frame *of its flow*, 0 if none
    /// is remembered. On other slices: bytes of a slice, which give the slice's offset.
    pub aux: u16,
}

impl DataHeader {
    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; DATA_HEADER_BYTES]) {
        debug_assert!(self.link < 16 && self.flags & !flag::ALL == 0);
        out[0] = lead(Kind::Data);
        out[1] = self.link << 4 | self.flags;
        out[2..4].copy_from_slice(&self.session.to_be_bytes());
        out[4..8].copy_from_slice(&self.link_seq.to_be_bytes());
        out[8..12].copy_from_slice(&self.unit_seq.to_be_bytes());
        out[12] = self.index;
        out[13] = self.last;
        out[14..16].copy_from_slice(&self.aux.to_be_bytes());
    }

    /// Parses and checks the header at the front of `datagram`.
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        if kind_of(datagram)? != Kind::Data {
            return Err(Malformed::Field("kind"));
        }
        let mut reader = Reader::new(datagram);
        reader.u8()?;
        let link_flags = reader.u8()?;
        let header = Self {
            link: link_flags >> 4,
            flags: link_flags & 0x0f,
            session: reader.u16()?,
            link_seq: reader.u32()?,
            unit_seq: reader.u32()?,
            index: reader.u8()?,
            last: reader.u8()?,
            aux: reader.u16()?,
        };
        if header.flags & !flag::ALL != 0 {
            return Err(Malformed::Field("flags"));
        }
        if header.index > header.last {
            return Err(Malformed::Field("unit index"));
        }
        if header.index > 0 && header.aux == 0 {
            return Err(Malformed::Field("unit bytes"));
        }
        Ok(header)
    }

    /// Checks the length of the opened payload. The first unit of a frame must contain the complete
    /// virtio_net header that its flags announce.
    pub fn check_payload(&self, bytes: usize) -> Result<(), Malformed> {
        let has_vnet_header = self.index == 0 && self.flags & flag::VNET != 0;
        if has_vnet_header && bytes < VNET_BYTES {
            return Err(Malformed::Short);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: [u8; 16] = [
        0x12, 0x32, 0xbe, 0xef, 0x00, 0x00, 0x01, 0x02, 0xff, 0xff, 0xff, 0xfe, 0x01, 0x2c, 0x05,
        0x8c,
    ];

    #[test]
    fn data_header__golden_bytes__are_stable() {
        let header = DataHeader {
            link: 3,
            flags: flag::VNET,
            session: 0xbeef,
            link_seq: 258,
            unit_seq: u32::MAX - 1,
            index: 1,
            last: 44,
            aux: 1420,
        };
        let mut bytes = [0; DATA_HEADER_BYTES];
        header.emit(&mut bytes);
        assert_eq!(bytes, GOLDEN);
        assert_eq!(DataHeader::parse(&bytes), Ok(header));
    }

    #[test]
    fn data_header__invalid_index_flags_or_length__is_refused() {
        let mut index_past_last = GOLDEN;
        index_past_last[13] = 0;
        assert_eq!(
            DataHeader::parse(&index_past_last),
            Err(Malformed::Field("unit index"))
        );
        let mut reserved = GOLDEN;
        reserved[1] |= 8;
        assert_eq!(DataHeader::parse(&reserved), Err(Malformed::Field("flags")));
        assert_eq!(DataHeader::parse(&GOLDEN[..15]), Err(Malformed::Short));
    }
}
