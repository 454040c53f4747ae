//! Assembly of one frame from its units.

use super::Fate;
use crate::frame::{FRAME_BYTES_MAX, Frame, FramePool, VNET_BYTES};

/// A unit as extracted from its datagram.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// Low 32 bits of the unit sequence number.
    pub seq: u32,
    /// Index of the slice in its frame.
    pub index: u8,
    /// Index of the frame's last slice.
    pub last: u8,
    /// See [`crate::wire::DataHeader::aux`].
    pub aux: u16,
    /// True if the frame begins with a virtio_net header.
    pub has_vnet: bool,
    /// Bytes of the slice.
    pub payload: &'a [u8],
}

impl Unit<'_> {
    /// Returns the last unit of the previous frame in the flow, if this is slice 0, at `seq`, and
    /// names one.
    pub(super) fn predecessor(&self, seq: u64) -> Option<u64> {
        if self.index == 0 && self.aux != 0 {
            seq.checked_sub(u64::from(self.aux))
        } else {
            None
        }
    }
}

/// Returns the frame of a unit that is the only one of its frame.
pub(super) fn single_unit_frame(unit: &Unit<'_>, pool: &mut FramePool) -> Frame {
    let head = if unit.has_vnet { 0 } else { VNET_BYTES };
    let mut frame = pool.take(head + unit.payload.len());
    frame.buffer()[..head].fill(0);
    frame.buffer()[head..head + unit.payload.len()].copy_from_slice(unit.payload);
    frame
}

/// A frame that is incomplete, or complete and waiting for its predecessor.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    generation: u32,
    first: u64,
    last_index: u8,
    received: [u64; 4],
    received_count: u16,
    predecessor: Option<u64>,
    /// Offset of slice 0 in the frame, in bytes: the length of the virtio_net header if the units
    /// omit it.
    head: usize,
    unit_bytes: usize,
    /// Bytes of the last slice. The others have `unit_bytes`.
    last_bytes: usize,
    arrived_ns: u64,
    /// Time of the last progress: of its newest unit, or of its predecessor's delivery. A frame
    /// that still grows is not given up.
    touched_ns: u64,
    /// Time at which its missing units were first proven lost.
    proven_ns: Option<u64>,
    frame: Option<Frame>,
}

impl Assembly {
    /// Starts a new frame. Returns its generation.
    pub(super) fn begin(
        &mut self,
        first: u64,
        unit: &Unit<'_>,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> u32 {
        let head = if unit.has_vnet { 0 } else { VNET_BYTES };
        let unit_bytes = if unit.index == 0 {
            unit.payload.len()
        } else {
            usize::from(unit.aux)
        };
        let bytes = head + (usize::from(unit.last) + 1) * unit_bytes;
        let mut frame = pool.take(bytes.min(FRAME_BYTES_MAX));
        frame.buffer()[..head].fill(0);
        *self = Self {
            generation: self.generation.wrapping_add(1),
            first,
            last_index: unit.last,
            head,
            arrived_ns: now_ns,
            touched_ns: now_ns,
            frame: Some(frame),
            ..Self::default()
        };
        self.generation
    }

    /// Adds a slice. All slices but the last must have the same length.
    pub(super) fn add(&mut self, now_ns: u64, unit: &Unit<'_>) -> Fate {
        let Some(frame) = self.frame.as_mut() else {
            return Fate::Malformed;
        };
        let (word, mask) = (usize::from(unit.index / 64), 1u64 << (unit.index % 64));
        if self.received[word] & mask != 0 {
            return Fate::Duplicate;
        }
        let unit_bytes = if unit.index == 0 {
            unit.payload.len()
        } else {
            usize::from(unit.aux)
        };
        let is_last = unit.index == self.last_index;
        let is_consistent = unit.last == self.last_index
            && (self.unit_bytes == 0 || self.unit_bytes == unit_bytes)
            && (is_last || unit.payload.len() == unit_bytes)
            && unit.payload.len() <= unit_bytes
            && (self.head == 0) == unit.has_vnet;
        let start = self.head + usize::from(unit.index) * unit_bytes;
        if !is_consistent || start + unit.payload.len() > frame.buffer().len() {
            return Fate::Malformed;
        }
        self.unit_bytes = unit_bytes;
        if is_last {
            self.last_bytes = unit.payload.len();
        }
        if unit.index == 0 {
            self.predecessor = unit.predecessor(self.first);
        }
        frame.buffer()[start..start + unit.payload.len()].copy_from_slice(unit.payload);
        self.received[word] |= mask;
        self.received_count += 1;
        self.touch(now_ns);
        if self.is_complete() {
            let len = self.head + usize::from(self.last_index) * self.unit_bytes + self.last_bytes;
            self.frame.as_mut().expect("just filled").set_len(len);
        }
        Fate::Accepted
    }

    /// Ends the assembly and returns its frame.
    pub(super) fn end(&mut self) -> Option<Frame> {
        self.frame.take()
    }

    pub(super) fn is_live(&self) -> bool {
        self.frame.is_some()
    }

    pub(super) fn is_generation(&self, generation: u32) -> bool {
        self.is_live() && self.generation == generation
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received_count == u16::from(self.last_index) + 1
    }

    pub(super) fn has_unit(&self, index: u8) -> bool {
        self.received[usize::from(index / 64)] & 1 << (index % 64) != 0
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn last(&self) -> u64 {
        self.first + u64::from(self.last_index)
    }

    pub(super) fn predecessor(&self) -> Option<u64> {
        self.predecessor
    }

    pub(super) fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Records the proof that the missing units are lost. `now_ns` applies if it is the first proof
    /// since the last progress. Returns the time of the first proof, or of the first unit if that
    /// is later.
    pub(super) fn note_proven(&mut self, now_ns: u64) -> u64 {
        (*self.proven_ns.get_or_insert(now_ns)).max(self.arrived_ns)
    }

    /// Records progress: a unit of the frame arrived, or its predecessor was delivered.
    pub(super) fn touch(&mut self, now_ns: u64) {
        self.touched_ns = now_ns;
        self.proven_ns = None;
    }

    pub(super) fn touched_ns(&self) -> u64 {
        self.touched_ns
    }

    /// Returns the bytes of memory that the assembly takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.frame.as_ref().map_or(0, Frame::buffer_bytes)
    }

    /// Returns the highest missing unit.
    pub(super) fn last_missing(&self) -> Option<u64> {
        (0..=self.last_index)
            .rev()
            .find(|index| !self.has_unit(*index))
            .map(|i| self.first + u64::from(i))
    }

    /// Returns the received stretches of the frame as byte ranges.
    pub(super) fn received_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        for index in (0..=self.last_index).filter(|index| self.has_unit(*index)) {
            let bytes = if index == self.last_index {
                self.last_bytes
            } else {
                self.unit_bytes
            };
            let offset = self.head + usize::from(index) * self.unit_bytes;
            let start = if index == 0 { 0 } else { offset };
            match ranges.last_mut().filter(|range| range.end == start) {
                Some(range) => range.end = offset + bytes,
                None => ranges.push(start..offset + bytes),
            }
        }
        ranges
    }
}
