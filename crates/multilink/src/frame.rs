//! Frames as the host's device gives and takes them, and the buffers they live in.
//!
//! A frame is a 10-byte virtio_net header (which says what offloads the kernel left to us) and an
//! Ethernet frame, up to 64 KB when the kernel hands over a whole segmentation-offload burst.

/// Bytes of the virtio_net header in front of every frame.
pub const VNET_BYTES: usize = 10;

/// Largest frame, header included: a GSO burst (65 535 B of IP) and its Ethernet and VLAN headers.
pub const FRAME_BYTES_MAX: usize = VNET_BYTES + 18 + 65_535;

/// Frames up to this size live in small buffers, so that an acknowledgement does not hold 64 KB.
const SMALL_BYTES: usize = 2048;

/// Free buffers of each size that are kept for reuse.
const FREE_MAX: usize = 512;

/// A frame in a buffer of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Vec<u8>,
    len: usize,
}

impl Frame {
    /// The virtio_net header and the Ethernet frame.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The whole buffer, to be filled; follow with [`Frame::set_len`].
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says how much of the buffer is the frame.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "frame longer than its buffer");
        self.len = len;
    }

    /// The Ethernet frame alone.
    pub fn ethernet(&self) -> &[u8] {
        &self.as_slice()[VNET_BYTES..]
    }

    /// A frame that holds a copy of `ethernet`, without offloads.
    pub fn from_ethernet(ethernet: &[u8]) -> Self {
        let mut bytes = vec![0; VNET_BYTES];
        bytes.extend_from_slice(ethernet);
        Self {
            len: bytes.len(),
            bytes,
        }
    }
}

/// Buffers waiting to be used again, so that a warm data path allocates nothing.
#[derive(Debug, Default)]
pub struct FramePool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl FramePool {
    /// A frame of `len` bytes with unspecified contents.
    pub fn take(&mut self, len: usize) -> Frame {
        assert!(len <= FRAME_BYTES_MAX, "frame of {len} bytes");
        let bytes = if len <= SMALL_BYTES {
            self.small.pop().unwrap_or_else(|| vec![0; SMALL_BYTES])
        } else {
            self.large.pop().unwrap_or_else(|| vec![0; FRAME_BYTES_MAX])
        };
        Frame { bytes, len }
    }

    /// Moves a small frame out of a large buffer, so that what waits takes little memory.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        if frame.len > SMALL_BYTES || frame.bytes.len() <= SMALL_BYTES {
            return frame;
        }
        let mut small = self.take(frame.len);
        small.buffer()[..frame.len].copy_from_slice(frame.as_slice());
        self.give(frame);
        small
    }

    /// Takes a frame's buffer back.
    pub fn give(&mut self, frame: Frame) {
        let free = match frame.bytes.len() {
            SMALL_BYTES => &mut self.small,
            FRAME_BYTES_MAX => &mut self.large,
            _ => return,
        };
        if free.len() < FREE_MAX {
            free.push(frame.bytes);
        }
    }
}
