//! An Ethernet frame: header and payload, without preamble and frame check sequence.

use crate::topology::WIRE_OVERHEAD_BYTES;
use std::fmt;
use std::sync::Arc;

/// Shortest Ethernet frame without its check sequence, in bytes (IEEE 802.3). Shorter frames are
/// padded.
const FRAME_BYTES_MIN: usize = 60;

/// An Ethernet frame. Clones share the bytes, so flooding a frame to twenty ports copies nothing.
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
    /// Returns the frame's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of bytes that the frame occupies in a queue.
    pub fn queue_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the number of bytes that the frame occupies on the wire. Padding, preamble, check
    /// sequence and inter-frame gap are included.
    pub fn wire_bytes(&self) -> u64 {
        self.bytes.len().max(FRAME_BYTES_MIN) as u64 + WIRE_OVERHEAD_BYTES
    }

    /// Returns the destination address, or all zeros if the frame is too short to have one.
    pub fn destination(&self) -> [u8; 6] {
        self.address(0)
    }

    /// Returns the source address, or all zeros if the frame is too short to have one.
    pub fn source(&self) -> [u8; 6] {
        self.address(6)
    }

    fn address(&self, offset: usize) -> [u8; 6] {
        self.bytes
            .get(offset..offset + 6)
            .and_then(|a| a.try_into().ok())
            .unwrap_or_default()
    }

    /// Returns a copy with one bit after the addresses flipped. `bit` counts from 0 and wraps
    /// round.
    pub fn with_flipped_bit(&self, bit: usize) -> Self {
        let mut bytes = self.bytes.to_vec();
        // The addresses stay intact, because a switch would otherwise learn a station that does not
        // exist.
        if bytes.len() > 12 {
            let bit = bit % ((bytes.len() - 12) * 8);
            bytes[12 + bit / 8] ^= 1 << (bit % 8);
        }
        Self::from(bytes)
    }
}
