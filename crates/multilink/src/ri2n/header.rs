//! The RI2N header (paper §5.2, figure 7): eight bytes between the Ethernet header and the payload.
//!
//! ```text
//!  0      6      12     14     16        18        22              (bytes of the frame)
//! +------+------+------+------+----------+---------+---------------
//! | dst  | src  |0x1004| type | protocol | sequence number | payload
//! +------+------+------+------+----------+---------+---------------
//!                       16 bit  16 bit     32 bit
//! ```
//!
//! `dst` and `src` are the addresses of the devices, not of the NICs (§5.6). All fields are in
//! network byte order. The paper names the fields and their widths; the values of `type` are ours.

use crate::frame::{Frame, VNET_BYTES};

/// Number in the Ethernet header of every frame on a link (§5.3).
pub const ETHER_TYPE: u16 = 0x1004;
/// Bytes of the RI2N header.
pub const HEADER_BYTES: usize = 8;
/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;

const ADDRESSES_BYTES: usize = 12;
const TYPE_DATA: u16 = 1;
const TYPE_HEARTBEAT: u16 = 2;

/// Six bytes that name a device.
pub type Mac = [u8; 6];

/// Whether an address is broadcast or multicast.
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// What a frame on a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A frame of the host.
    Data {
        /// Its own EtherType, as the host had it.
        protocol: u16,
        /// Its place in what its sender sent to this peer.
        sequence: u32,
    },
    /// A sign of life.
    Heartbeat,
}

/// The parsed headers of a frame on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The device it is for, or a group.
    pub to: Mac,
    /// The device it is from.
    pub from: Mac,
    /// What it is.
    pub kind: Kind,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Repr {
    /// Reads the headers of `frame`, from the Ethernet header on. `None` for anything but a whole
    /// header of this protocol.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let kind = array(frame, ETHERNET_BYTES).map(u16::from_be_bytes)?;
        let protocol = array(frame, 16).map(u16::from_be_bytes)?;
        let sequence = array(frame, 18).map(u32::from_be_bytes)?;
        if array(frame, ADDRESSES_BYTES).map(u16::from_be_bytes)? != ETHER_TYPE {
            return None;
        }
        let kind = match kind {
            TYPE_DATA => Kind::Data { protocol, sequence },
            TYPE_HEARTBEAT => Kind::Heartbeat,
            _ => return None,
        };
        Some(Self {
            to: array(frame, 0)?,
            from: array(frame, 6)?,
            kind,
        })
    }

    /// The header's bytes, from the first address to the sequence number.
    fn bytes(&self) -> [u8; ETHERNET_BYTES + HEADER_BYTES] {
        let (kind, protocol, sequence) = match self.kind {
            Kind::Data { protocol, sequence } => (TYPE_DATA, protocol, sequence),
            Kind::Heartbeat => (TYPE_HEARTBEAT, 0, 0),
        };
        let mut bytes = [0; ETHERNET_BYTES + HEADER_BYTES];
        bytes[..6].copy_from_slice(&self.to);
        bytes[6..12].copy_from_slice(&self.from);
        bytes[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        bytes[14..16].copy_from_slice(&kind.to_be_bytes());
        bytes[16..18].copy_from_slice(&protocol.to_be_bytes());
        bytes[18..].copy_from_slice(&sequence.to_be_bytes());
        bytes
    }
}

/// A frame that goes out on a link. It lives in the buffer the host's frame came in: the ten bytes
/// of its virtio_net header are room enough for the eight of ours.
#[derive(Debug)]
pub struct LinkFrame {
    frame: Frame,
}

/// Where a link frame starts in its buffer.
const START: usize = VNET_BYTES - HEADER_BYTES;

impl LinkFrame {
    /// Puts the header into the host's `frame`, which must have an Ethernet header.
    pub fn wrap(mut frame: Frame, from: Mac, sequence: u32) -> Self {
        let ethernet = frame.ethernet();
        let to: Mac = array(ethernet, 0).expect("a frame has an Ethernet header");
        let protocol = array(ethernet, ADDRESSES_BYTES).map(u16::from_be_bytes);
        let protocol = protocol.expect("a frame has an Ethernet header");
        let kind = Kind::Data { protocol, sequence };
        let header = Repr { to, from, kind }.bytes();
        frame.buffer()[START..START + header.len()].copy_from_slice(&header);
        Self { frame }
    }

    /// A sign of life, written over whatever `frame` held.
    pub fn heartbeat(mut frame: Frame, from: Mac, to: Mac) -> Self {
        let kind = Kind::Heartbeat;
        let header = Repr { to, from, kind }.bytes();
        frame.set_len(START + header.len());
        frame.buffer()[START..START + header.len()].copy_from_slice(&header);
        Self { frame }
    }

    /// The bytes that go to the NIC.
    pub fn as_slice(&self) -> &[u8] {
        &self.frame.as_slice()[START..]
    }

    /// The buffer, to be used again.
    pub fn into_frame(self) -> Frame {
        self.frame
    }
}

/// Gives the host's frame back out of `received`, whose headers parsed as data of `protocol`, into
/// `frame`, which has room for it (the header replaced by a virtio_net header of zeros).
pub fn unwrap_into(received: &[u8], protocol: u16, frame: &mut Frame) {
    let payload = &received[ETHERNET_BYTES + HEADER_BYTES..];
    let bytes = frame.buffer();
    bytes[..VNET_BYTES].fill(0);
    let ethernet = &mut bytes[VNET_BYTES..];
    ethernet[..ADDRESSES_BYTES].copy_from_slice(&received[..ADDRESSES_BYTES]);
    ethernet[ADDRESSES_BYTES..ETHERNET_BYTES].copy_from_slice(&protocol.to_be_bytes());
    ethernet[ETHERNET_BYTES..ETHERNET_BYTES + payload.len()].copy_from_slice(payload);
    frame.set_len(VNET_BYTES + ETHERNET_BYTES + payload.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    fn host_frame() -> Frame {
        let mut ethernet = Vec::new();
        ethernet.extend_from_slice(&B);
        ethernet.extend_from_slice(&A);
        ethernet.extend_from_slice(&[0x08, 0x00, b'h', b'i']);
        Frame::from_ethernet(&ethernet)
    }

    /// Figure 7, byte by byte.
    #[test]
    fn header__data_frame__has_the_paper_layout() {
        let wire = LinkFrame::wrap(host_frame(), A, 0x0102_0304);
        let golden = [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x10, 0x04, 0, 1, 0x08, 0x00, 1, 2, 3, 4, b'h',
            b'i',
        ];
        assert_eq!(wire.as_slice(), golden);
    }

    #[test]
    fn header__wrapped_and_unwrapped__is_the_same_frame() {
        let wire = LinkFrame::wrap(host_frame(), A, 7);
        let repr = Repr::parse(wire.as_slice()).unwrap();
        let kind = Kind::Data {
            protocol: 0x0800,
            sequence: 7,
        };
        assert_eq!((repr.from, repr.to, repr.kind), (A, B, kind));
        let mut back = Frame::from_ethernet(&[0; 64]);
        unwrap_into(wire.as_slice(), 0x0800, &mut back);
        assert_eq!(back.as_slice(), host_frame().as_slice());
    }

    #[test]
    fn header__heartbeat__is_told_from_data() {
        let wire = LinkFrame::heartbeat(host_frame(), A, B);
        assert_eq!(wire.as_slice().len(), ETHERNET_BYTES + HEADER_BYTES);
        assert_eq!(Repr::parse(wire.as_slice()).unwrap().kind, Kind::Heartbeat);
    }

    #[test]
    fn header__short_or_foreign_bytes__are_refused() {
        let wire = LinkFrame::wrap(host_frame(), A, 7);
        for length in 0..ETHERNET_BYTES + HEADER_BYTES {
            assert_eq!(Repr::parse(&wire.as_slice()[..length]), None);
        }
        for (at, byte) in [(12, 0x08), (15, 3)] {
            let mut foreign = wire.as_slice().to_vec();
            foreign[at] = byte;
            assert_eq!(Repr::parse(&foreign), None);
        }
    }
}
