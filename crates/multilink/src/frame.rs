//! Frames as the host's device gives and takes them, and the buffers they live in.
//!
//! A frame is a 10-byte virtio_net header (which says what offloads the kernel left to us) and an
//! Ethernet frame, up to 64 KB when the kernel hands over a whole segmentation-offload burst.

/// Bytes of the virtio_net header in front of every frame.
pub const VNET_BYTES: usize = 10;

/// Largest frame, header included: a GSO burst (65 535 B of IP) and its Ethernet and VLAN headers.
pub const FRAME_BYTES_MAX: usize = VNET_BYTES + 18 + 65_535;

/// Frames up to these sizes live in small and middling buffers, so that neither an acknowledgement
/// nor a jumbo frame (9 KB) holds 64 KB. A buffer is at most eight times its frame.
const SMALL_BYTES: usize = 2048;
const MIDDLING_BYTES: usize = 16_384;

/// Free buffers of each size that are kept for reuse: 43 MB of all three.
const FREE_MAX: usize = 512;

/// Bytes of the buffer that holds a frame of `len` bytes.
fn size_class(len: usize) -> usize {
    let classes = [SMALL_BYTES, MIDDLING_BYTES];
    let fitting = classes.into_iter().find(|class| len <= *class);
    fitting.unwrap_or(FRAME_BYTES_MAX)
}

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

    /// Bytes of memory that the frame takes: those of its buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.bytes.len()
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
    middling: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl FramePool {
    /// A frame of `len` bytes with unspecified contents.
    pub fn take(&mut self, len: usize) -> Frame {
        assert!(len <= FRAME_BYTES_MAX, "frame of {len} bytes");
        let class = size_class(len);
        let free = self.free(class).and_then(Vec::pop);
        let bytes = free.unwrap_or_else(|| vec![0; class]);
        Frame { bytes, len }
    }

    fn free(&mut self, class: usize) -> Option<&mut Vec<Vec<u8>>> {
        match class {
            SMALL_BYTES => Some(&mut self.small),
            MIDDLING_BYTES => Some(&mut self.middling),
            FRAME_BYTES_MAX => Some(&mut self.large),
            _ => None,
        }
    }

    /// Moves a frame out of a buffer of a larger class than its own, so that what waits takes little
    /// memory.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        if frame.bytes.len() <= size_class(frame.len) {
            return frame;
        }
        let mut small = self.take(frame.len);
        small.buffer()[..frame.len].copy_from_slice(frame.as_slice());
        self.give(frame);
        small
    }

    /// Takes a frame's buffer back.
    pub fn give(&mut self, frame: Frame) {
        let free = self.free(frame.bytes.len());
        if let Some(free) = free.filter(|free| free.len() < FREE_MAX) {
            free.push(frame.bytes);
        }
    }
}
