//! An Ethernet frame: header and payload, without preamble and frame check sequence.

use crate::topology::WIRE_OVERHEAD_BYTES;
use std::fmt;
use std::sync::Arc;

/// Bytes below which Ethernet pads a frame, its check sequence aside (IEEE 802.3).
const FRAME_BYTES_MIN: usize = 60;

/// A frame. A clone shares the bytes: flooding a frame to twenty ports copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Arc<[u8]>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, from) = (self.destination(), self.source());
        write!(f, "Frame({} B, {from:02x?} to {to:02x?})", self.bytes.len())
    }
}

impl From<&[u8]> for Frame {
    fn from(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.into(),
        }
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.into(),
        }
    }
}

impl Frame {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes it occupies in a queue.
    pub fn queue_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes it occupies on the wire: padded, with preamble, check sequence and gap.
    pub fn wire_bytes(&self) -> u64 {
        self.bytes.len().max(FRAME_BYTES_MIN) as u64 + WIRE_OVERHEAD_BYTES
    }

    /// Destination address; all zero if the frame is too short to have one.
    pub fn destination(&self) -> [u8; 6] {
        self.address(0)
    }

    /// Source address; all zero if the frame is too short to have one.
    pub fn source(&self) -> [u8; 6] {
        self.address(6)
    }

    fn address(&self, at: usize) -> [u8; 6] {
        self.bytes
            .get(at..at + 6)
            .and_then(|a| a.try_into().ok())
            .unwrap_or_default()
    }

    /// A copy with bit `bit` (from 0, wrapping round) of what follows the addresses flipped.
    pub fn with_flipped_bit(&self, bit: usize) -> Self {
        let mut bytes = self.bytes.to_vec();
        // The addresses are spared: a switch would otherwise learn a station that does not exist.
        if bytes.len() > 12 {
            let bit = bit % ((bytes.len() - 12) * 8);
            bytes[12 + bit / 8] ^= 1 << (bit % 8);
        }
        Self::from(bytes)
    }
}
