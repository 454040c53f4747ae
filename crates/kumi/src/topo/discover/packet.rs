//! What probing hosts send each other.

/// Bytes before the filling.
pub const HEADER_BYTES: usize = 48;

/// The shortest frame there is, and one that takes its time on a wire, without what IP and UDP add.
pub const SMALL_BYTES: usize = HEADER_BYTES;
pub const LARGE_BYTES: usize = 1400;

/// What Ethernet, IP and UDP add to a datagram on the wire: preamble, header, checksum and gap, 38; and 28.
pub const FRAMING_BYTES: usize = 66;

const MAGIC: [u8; 8] = *b"KUMIPRB1";

/// What a datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To be answered, by as many bytes.
    Ping = 0,
    /// The answer; `turn_ns` is how long the peer took for it.
    Pong = 1,
    /// One of many, whose arrival is noted.
    Train = 2,
}

/// The beginning of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// Who sends it.
    pub from: u32,
    /// Which of the sender's pings, or which train.
    pub number: u32,
    /// See [`Kind::Pong`].
    pub turn_ns: u64,
    /// Of an answer: when the ping came by the peer's clock, in nanoseconds since 1970.
    pub clock_ns: u64,
}

impl Packet {
    /// As it goes over the wire, filled up to so many bytes.
    pub fn bytes(&self, key: u64, bytes: usize) -> Vec<u8> {
        let mut wire = vec![0; bytes.max(HEADER_BYTES)];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..16].copy_from_slice(&key.to_le_bytes());
        wire[16] = self.kind as u8;
        wire[20..24].copy_from_slice(&self.from.to_le_bytes());
        wire[24..28].copy_from_slice(&self.number.to_le_bytes());
        wire[32..40].copy_from_slice(&self.turn_ns.to_le_bytes());
        wire[40..48].copy_from_slice(&self.clock_ns.to_le_bytes());
        wire
    }

    /// What a datagram says; `None` if it is none of this run.
    pub fn parse(wire: &[u8], key: u64) -> Option<Self> {
        let header = wire.get(..HEADER_BYTES)?;
        if header[..8] != MAGIC || header[8..16] != key.to_le_bytes() {
            return None;
        }
        let u32_at = |at: usize| Some(u32::from_le_bytes(header[at..at + 4].try_into().ok()?));
        Some(Self {
            kind: match header[16] {
                0 => Kind::Ping,
                1 => Kind::Pong,
                2 => Kind::Train,
                _ => return None,
            },
            from: u32_at(20)?,
            number: u32_at(24)?,
            turn_ns: u64::from_le_bytes(header[32..40].try_into().ok()?),
            clock_ns: u64::from_le_bytes(header[40..48].try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet__of_another_run_or_none__is_not_read() {
        let packet = Packet {
            kind: Kind::Pong,
            from: 3,
            number: 9,
            turn_ns: 1 << 40,
            clock_ns: 5,
        };
        let wire = packet.bytes(7, LARGE_BYTES);
        assert_eq!(wire.len(), LARGE_BYTES);
        assert_eq!(Packet::parse(&wire, 7), Some(packet));
        assert_eq!(Packet::parse(&wire, 8), None);
        assert_eq!(Packet::parse(&wire[..47], 7), None);
        let mut strange = wire;
        strange[16] = 3;
        assert_eq!(Packet::parse(&strange, 7), None);
    }
}
