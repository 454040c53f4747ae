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
//! network byte order. The paper gives the names and widths of the fields. It does not give the
//! values of `type`, which this module chooses.

use kumi_multilink::frame::{Frame, VNET_BYTES};

/// EtherType of every frame on a link (§5.3).
pub const ETHER_TYPE: u16 = 0x1004;
/// Length of the RI2N header, in bytes.
pub const HEADER_BYTES: usize = 8;
/// Length of an Ethernet header, in bytes.
pub const ETHERNET_BYTES: usize = 14;

const ADDRESSES_BYTES: usize = 12;
const TYPE_DATA: u16 = 1;
const TYPE_HEARTBEAT: u16 = 2;

/// MAC address of a device.
pub type Mac = [u8; 6];

/// Returns true if an address is broadcast or multicast.
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// Kind of a frame on a link, with the fields of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Frame of the host.
    Data {
        /// EtherType that the host gave the frame.
        protocol: u16,
        /// Position among the frames from its sender to this peer.
        sequence: u32,
    },
    /// Frame without payload that shows that the link works.
    Heartbeat,
}

/// Parsed headers of a frame on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Destination device, or a group address.
    pub to: Mac,
    /// Source device.
    pub from: Mac,
    /// Kind of the frame.
    pub kind: Kind,
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

impl Repr {
    /// Parses the headers of `frame`, which starts with the Ethernet header. Returns `None` unless
    /// it has a complete header of this protocol.
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

    /// Returns the bytes of both headers, from the destination address to the sequence number.
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

/// A frame to be sent on a link, in the buffer of the host's frame. The eight bytes of the RI2N
/// header fit into the ten bytes of the frame's virtio_net header.
#[derive(Debug)]
pub struct LinkFrame {
    frame: Frame,
}

/// Offset of a link frame in its buffer, in bytes.
const START: usize = VNET_BYTES - HEADER_BYTES;

impl LinkFrame {
    /// Inserts the header into the host's `frame`, which must have an Ethernet header.
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

    /// Writes a heartbeat over the contents of `frame`.
    pub fn heartbeat(mut frame: Frame, from: Mac, to: Mac) -> Self {
        let kind = Kind::Heartbeat;
        let header = Repr { to, from, kind }.bytes();
        frame.set_len(START + header.len());
        frame.buffer()[START..START + header.len()].copy_from_slice(&header);
        Self { frame }
    }

    /// Returns the bytes to send on the NIC.
    pub fn as_slice(&self) -> &[u8] {
        &self.frame.as_slice()[START..]
    }

    /// Returns the buffer for reuse.
    pub fn into_frame(self) -> Frame {
        self.frame
    }
}

/// Restores the host's frame from `received`, whose headers were parsed as data of `protocol`.
/// Writes it to `frame`, which must be large enough. A virtio_net header of zeros takes the place
/// of the RI2N header.
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

    /// Compares with figure 7 byte by byte.
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
        let mut restored = Frame::from_ethernet(&[0; 64]);
        unwrap_into(wire.as_slice(), 0x0800, &mut restored);
        assert_eq!(restored.as_slice(), host_frame().as_slice());
    }

    #[test]
    fn header__heartbeat__is_distinguished_from_data() {
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
        for (offset, byte) in [(12, 0x08), (15, 3)] {
            let mut foreign = wire.as_slice().to_vec();
            foreign[offset] = byte;
            assert_eq!(Repr::parse(&foreign), None);
        }
    }
}
