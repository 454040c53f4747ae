//! Format of the datagrams between agents.

/// Length of the header, in bytes. Padding follows it.
pub const HEADER_BYTES: usize = 48;

/// Payload of short and long probes, in bytes, without IP and UDP headers. A short one is only a
/// header; a long one takes a measurable time on a link.
pub const SMALL_BYTES: usize = HEADER_BYTES;
pub const LARGE_BYTES: usize = 1400;

/// Bytes that a datagram's framing adds on the wire: Ethernet preamble, header, checksum and gap,
/// 38; IP and UDP headers, 28.
pub const FRAMING_BYTES: usize = 66;

const MAGIC: [u8; 8] = *b"KUMIPRB1";

/// Type of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Probe, to be answered with as many bytes.
    Ping = 0,
    /// Answer to a ping.
    Pong = 1,
    /// Packet of a train. Its arrival is recorded.
    Train = 2,
}

/// Header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Type of the datagram.
    pub kind: Kind,
    /// Index of the sending agent.
    pub from: u32,
    /// Number of the sender's ping, or of the train.
    pub number: u32,
    /// In an answer, the time between the ping's arrival and the answer, in nanoseconds.
    pub turnaround_ns: u64,
    /// In an answer, the ping's arrival by the peer's clock, in nanoseconds since 1970.
    pub clock_ns: u64,
}

impl Packet {
    /// Returns the datagram, padded to `bytes` bytes.
    pub fn bytes(&self, key: u64, bytes: usize) -> Vec<u8> {
        let mut wire = vec![0; bytes.max(HEADER_BYTES)];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..16].copy_from_slice(&key.to_le_bytes());
        wire[16] = self.kind as u8;
        wire[20..24].copy_from_slice(&self.from.to_le_bytes());
        wire[24..28].copy_from_slice(&self.number.to_le_bytes());
        wire[32..40].copy_from_slice(&self.turnaround_ns.to_le_bytes());
        wire[40..48].copy_from_slice(&self.clock_ns.to_le_bytes());
        wire
    }

    /// Parses a datagram. Returns `None` if it does not belong to this run.
    pub fn parse(wire: &[u8], key: u64) -> Option<Self> {
        let header = wire.get(..HEADER_BYTES)?;
        if header[..8] != MAGIC || header[8..16] != key.to_le_bytes() {
            return None;
        }
        let u32_at = |offset: usize| {
            Some(u32::from_le_bytes(
                header[offset..offset + 4].try_into().ok()?,
            ))
        };
        Some(Self {
            kind: match header[16] {
                0 => Kind::Ping,
                1 => Kind::Pong,
                2 => Kind::Train,
                _ => return None,
            },
            from: u32_at(20)?,
            number: u32_at(24)?,
            turnaround_ns: u64::from_le_bytes(header[32..40].try_into().ok()?),
            clock_ns: u64::from_le_bytes(header[40..48].try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet__other_run_or_malformed__is_ignored() {
        let packet = Packet {
            kind: Kind::Pong,
            from: 3,
            number: 9,
            turnaround_ns: 1 << 40,
            clock_ns: 5,
        };
        let wire = packet.bytes(7, LARGE_BYTES);
        assert_eq!(wire.len(), LARGE_BYTES);
        assert_eq!(Packet::parse(&wire, 7), Some(packet));
        assert_eq!(Packet::parse(&wire, 8), None);
        assert_eq!(Packet::parse(&wire[..47], 7), None);
        let mut malformed = wire;
        malformed[16] = 3;
        assert_eq!(Packet::parse(&malformed, 7), None);
    }
}
