//! Frames that are kept until their units are known to have arrived, so that a lost unit can be
//! sent again.

use crate::frame::{Frame, FramePool};
use std::collections::VecDeque;

/// Largest size of the buffers kept for one peer, in bytes. The unacknowledged bytes are rate ×
/// (report interval + round trip): 10 ms at 10 Gb/s is 12 MB. Twice that leaves room for a link
/// that has just died.
pub const RETAINED_BYTES_MAX: usize = 24_000_000;

/// Division of a frame into units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Offset of the frame's contents in its buffer (behind an empty virtio header).
    pub start: usize,
    /// Bytes of contents.
    pub bytes: usize,
    /// Bytes of every unit but the last.
    pub unit_bytes: usize,
    /// Index of the last unit.
    pub last: u8,
    /// Sequence number of unit 0.
    pub first_seq: u64,
    /// Value of `aux` in unit 0.
    pub predecessor_distance: u16,
    /// True if the contents begin with a virtio header.
    pub has_vnet: bool,
}

impl Cut {
    /// Returns the position of unit `index` in the buffer.
    pub fn range(&self, index: u8) -> std::ops::Range<usize> {
        let offset = usize::from(index) * self.unit_bytes;
        self.start + offset..self.start + (offset + self.unit_bytes).min(self.bytes)
    }
}

/// One unit of a retained frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitRef {
    slot: u32,
    generation: u32,
    /// Index of the unit in its frame.
    pub index: u8,
}

impl UnitRef {
    /// Returns another unit of the same frame.
    pub fn with_index(self, index: u8) -> Self {
        Self { index, ..self }
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    frame: Option<(Frame, Cut)>,
    unsettled: u16,
}

/// Retained frames of one peer.
#[derive(Debug, Default)]
pub struct Retained {
    slots: Vec<Slot>,
    free: Vec<u32>,
    oldest: VecDeque<(u32, u32)>,
    bytes: usize,
}

impl Retained {
    /// Keeps a frame and forgets the oldest ones to make room. Returns the reference to its unit 0.
    pub fn keep(&mut self, frame: Frame, cut: Cut, pool: &mut FramePool) -> UnitRef {
        while self.bytes + frame.buffer_bytes() > RETAINED_BYTES_MAX {
            let Some((slot, generation)) = self.oldest.pop_front() else {
                break;
            };
            self.forget(slot, generation, pool);
        }
        self.bytes += frame.buffer_bytes();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                frame: None,
                unsettled: 0,
            });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.unsettled = u16::from(cut.last) + 1;
        entry.frame = Some((frame, cut));
        let generation = entry.generation;
        self.oldest.push_back((slot, generation));
        UnitRef {
            slot,
            generation,
            index: 0,
        }
    }

    /// Returns the frame that a unit belongs to, if it is still kept.
    pub fn get(&self, unit: UnitRef) -> Option<(&Frame, Cut)> {
        let slot = &self.slots[unit.slot as usize];
        let (frame, cut) = slot
            .frame
            .as_ref()
            .filter(|_| slot.generation == unit.generation)?;
        Some((frame, *cut))
    }

    /// Settles a unit that has arrived, or that will not be sent again.
    pub fn settle(&mut self, unit: UnitRef, pool: &mut FramePool) {
        let slot = &mut self.slots[unit.slot as usize];
        if slot.generation != unit.generation || slot.frame.is_none() {
            return;
        }
        slot.unsettled -= 1;
        if slot.unsettled == 0 {
            self.forget(unit.slot, unit.generation, pool);
        }
        while let Some(&(slot, generation)) = self.oldest.front() {
            let entry = &self.slots[slot as usize];
            if entry.generation == generation && entry.frame.is_some() {
                break;
            }
            self.oldest.pop_front();
        }
    }

    fn forget(&mut self, slot: u32, generation: u32, pool: &mut FramePool) {
        let entry = &mut self.slots[slot as usize];
        if entry.generation != generation {
            return;
        }
        if let Some((frame, _)) = entry.frame.take() {
            self.bytes -= frame.buffer_bytes();
            self.free.push(slot);
            pool.give(frame);
        }
    }

    /// Returns the number of table entries in use.
    pub fn entries(&self) -> usize {
        self.slots.len().max(self.oldest.len())
    }

    /// Returns the bytes of the buffers now kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(last: u8) -> Cut {
        Cut {
            start: 10,
            bytes: 90,
            unit_bytes: 50,
            last,
            first_seq: 0,
            predecessor_distance: 0,
            has_vnet: false,
        }
    }

    #[test]
    fn retained__last_unit_settled__frame_goes_back_to_the_pool() {
        let (mut retained, mut pool) = (Retained::default(), FramePool::default());
        let unit = retained.keep(pool.take(100), cut(1), &mut pool);
        assert_eq!(retained.get(unit).unwrap().1.range(1), 60..100);
        retained.settle(unit, &mut pool);
        assert_eq!(retained.bytes(), 2048, "the buffer's, not the frame's");
        retained.settle(UnitRef { index: 1, ..unit }, &mut pool);
        assert_eq!((retained.bytes(), retained.get(unit)), (0, None));
        retained.settle(unit, &mut pool);
    }

    #[test]
    fn retained__short_frames_in_large_buffers__stay_within_the_byte_limit() {
        for frame_bytes in [100, 2100, 3000, 9000, 17_000] {
            let (mut retained, mut pool) = (Retained::default(), FramePool::default());
            let units: Vec<UnitRef> = (0..20_000)
                .map(|_| retained.keep(pool.take(frame_bytes), cut(0), &mut pool))
                .collect();
            let frames = units.iter().filter_map(|unit| retained.get(*unit));
            let allocated: usize = frames.map(|(frame, _)| frame.buffer_bytes()).sum();
            assert!(
                allocated <= RETAINED_BYTES_MAX,
                "{allocated} B of {frame_bytes}"
            );
            assert_eq!(allocated, retained.bytes());
        }
    }

    #[test]
    fn retained__beyond_the_limit__drops_the_oldest_frame() {
        let (mut retained, mut pool) = (Retained::default(), FramePool::default());
        let first = retained.keep(pool.take(60_000), cut(0), &mut pool);
        for _ in 0..500 {
            retained.keep(pool.take(60_000), cut(0), &mut pool);
        }
        assert!(retained.bytes() <= RETAINED_BYTES_MAX);
        assert_eq!(retained.get(first), None);
    }
}
