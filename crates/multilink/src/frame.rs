//! Frames as the host's device exchanges them, and their buffers.
//!
//! A frame is a 10-byte virtio_net header and an Ethernet frame. The header states the offloads
//! that the kernel left to the daemon. The frame has up to 64 KB if the kernel hands over a
//! segmentation-offload burst.

/// Length of the virtio_net header in front of every frame, in bytes.
pub const VNET_BYTES: usize = 10;

/// Largest frame with its virtio_net header, in bytes: a GSO burst (65 535 B of IP) with Ethernet
/// and VLAN headers.
pub const FRAME_BYTES_MAX: usize = VNET_BYTES + 18 + 65_535;

/// Largest frames, in bytes, for small and middling buffers. Neither an acknowledgement nor a jumbo
/// frame (9 KB) then occupies 64 KB. A buffer of the middling or large size is at most eight times
/// as long as its frame.
const SMALL_BYTES: usize = 2048;
const MIDDLING_BYTES: usize = 16_384;

/// Free buffers of each size that are kept for reuse: 43 MB in total.
const FREE_MAX: usize = 512;

/// Returns the size of the buffer for a frame of `len` bytes.
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
    /// Returns the virtio_net header and the Ethernet frame.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the whole buffer, to be filled. Call [`Frame::set_len`] afterwards.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the bytes of memory that the frame takes: those of its buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Sets the length of the frame in its buffer.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "frame longer than its buffer");
        self.len = len;
    }

    /// Returns the Ethernet frame, without the virtio_net header.
    pub fn ethernet(&self) -> &[u8] {
        &self.as_slice()[VNET_BYTES..]
    }

    /// Returns a frame with a copy of `ethernet`, without offloads.
    pub fn from_ethernet(ethernet: &[u8]) -> Self {
        let mut bytes = vec![0; VNET_BYTES];
        bytes.extend_from_slice(ethernet);
        Self {
            len: bytes.len(),
            bytes,
        }
    }
}

/// Free buffers for reuse, so that a warm data path allocates nothing.
#[derive(Debug, Default)]
pub struct FramePool {
    small: Vec<Vec<u8>>,
    middling: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl FramePool {
    /// Returns a frame of `len` bytes with unspecified contents.
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

    /// Moves a frame from a buffer of a larger class into one of its own class, so that a waiting
    /// frame takes little memory.
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
