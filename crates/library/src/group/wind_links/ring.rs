//! Landing memory: where the chunks of each peer are put, in a ring that both sides compute alike.
//!
//! ```text
//!   sender  Outlet ── puts ──► | chunk 4 | chunk 5 | free | chunk 2 | chunk 3 |  receiver  Inlet
//!                   ◄── Freed: position up to which chunks have been taken
//! ```
//!
//! Positions count bytes since the beginning. A chunk is never cut: one that does not fit before
//! the end of the ring begins at its start.

use kumi_wind::Place;

/// Returns the positions of the next chunk of `bytes` bytes after `position`.
fn span(position: u64, bytes: u64, ring_bytes: u64) -> (u64, u64) {
    let left = ring_bytes - position % ring_bytes;
    let start = position + if bytes > left { left } else { 0 };
    (start, start + bytes)
}

/// The sender's side of a ring.
#[derive(Debug)]
pub struct Outlet {
    place: Place,
    bytes: u64,
    written: u64,
    freed: u64,
    /// Lengths of the chunks that the receiver has not been told of.
    untold: Vec<u32>,
    untold_bytes: u64,
}

impl Outlet {
    /// Begins with an empty ring at `place` of the peer.
    pub fn new(place: Place, bytes: u64) -> Self {
        Self {
            place,
            bytes,
            written: 0,
            freed: 0,
            untold: Vec::new(),
            untold_bytes: 0,
        }
    }

    /// Returns whether chunks of this length are put. A longer one might find too little room even
    /// when the receiver has taken everything: with the gap before the start of the ring, and what
    /// the receiver has not told, it would need more than the ring.
    pub fn takes(&self, bytes: u64) -> bool {
        (1..=self.bytes / 4).contains(&bytes)
    }

    /// Reserves the place of the next chunk; `None` while the receiver has not taken enough.
    pub fn reserve(&mut self, bytes: u64) -> Option<Place> {
        let (start, end) = span(self.written, bytes, self.bytes);
        if end - self.freed > self.bytes {
            return None;
        }
        self.written = end;
        self.untold.push(bytes as u32);
        self.untold_bytes += bytes;
        Some(self.place.plus(start % self.bytes))
    }

    /// Returns whether the receiver must be told soon, because it has to make room.
    pub fn is_half_full(&self) -> bool {
        self.untold_bytes >= self.bytes / 2
    }

    /// Returns the lengths of the chunks that the receiver has not been told of.
    pub fn untold(&self) -> &[u32] {
        &self.untold
    }

    /// Takes the lengths of the chunks that the receiver has not been told of.
    pub fn take_untold(&mut self) -> Vec<u32> {
        self.untold_bytes = 0;
        std::mem::take(&mut self.untold)
    }

    /// Records the position up to which the receiver has taken chunks. Returns false for one that
    /// was never written.
    #[must_use]
    pub fn free(&mut self, position: u64) -> bool {
        self.freed = self.freed.max(position);
        self.freed <= self.written
    }
}

/// The receiver's side of a ring.
#[derive(Debug)]
pub struct Inlet {
    bytes: u64,
    landed: u64,
    freed: u64,
    told: u64,
}

impl Inlet {
    /// Begins with an empty ring.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            landed: 0,
            freed: 0,
            told: 0,
        }
    }

    /// Records that the next chunk has landed. Returns its offset in the ring, and its end for
    /// [`Self::free`]; `None` if it does not fit, so that the sender is faulty.
    pub fn land(&mut self, bytes: u64) -> Option<(usize, u64)> {
        let (start, end) = span(self.landed, bytes, self.bytes);
        if bytes == 0 || bytes > self.bytes || end - self.freed > self.bytes {
            return None;
        }
        self.landed = end;
        Some(((start % self.bytes) as usize, end))
    }

    /// Records that the chunk that ends at `end`, and all before it, have been taken. Returns the
    /// position to tell the sender, if enough is free that it has not been told.
    pub fn free(&mut self, end: u64) -> Option<u64> {
        self.freed = end;
        if self.freed - self.told < self.bytes / 4 {
            return None;
        }
        self.told = self.freed;
        Some(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const PLACE: Place = Place {
        region: 1,
        key: [2; 16],
        offset: 1000,
    };

    proptest! {
        #[test]
        fn ring__any_chunks__never_overlap_and_never_stop(
            ring_bytes in 8_u64..200,
            chunks in proptest::collection::vec((any::<u64>(), 0_usize..4), 1..200),
        ) {
            let (mut outlet, mut inlet) = (Outlet::new(PLACE, ring_bytes), Inlet::new(ring_bytes));
            // Chunks in the ring: bytes from and to, and the end's position.
            let mut inside: VecDeque<(u64, u64, u64)> = VecDeque::new();
            let mut landed = 0;
            for (length, taken) in chunks {
                let bytes = 1 + length % (ring_bytes / 4);
                prop_assert!(outlet.takes(bytes));
                let mut place = outlet.reserve(bytes);
                if place.is_none() {
                    // The receiver is told of everything, and takes it.
                    for bytes in outlet.take_untold() {
                        let (offset, end) = inlet.land(bytes.into()).expect("fits");
                        let (from, to, stop) = inside[landed];
                        prop_assert_eq!((offset as u64, u64::from(bytes)), (from, to - from));
                        inside[landed] = (from, to, end.max(stop));
                        landed += 1;
                    }
                    for (_, _, end) in inside.drain(..) {
                        if let Some(position) = inlet.free(end) {
                            prop_assert!(outlet.free(position));
                        }
                    }
                    landed = 0;
                    place = outlet.reserve(bytes);
                }
                let place = place.expect("the receiver has taken everything");
                let from = place.offset - PLACE.offset;
                let to = from + bytes;
                prop_assert!(to <= ring_bytes);
                for (other, end, _) in &inside {
                    prop_assert!(to <= *other || *end <= from, "overlap");
                }
                inside.push_back((from, to, 0));
                // Now and then the receiver takes some of what it was told of.
                if taken > 1 {
                    for bytes in outlet.take_untold() {
                        let (_, end) = inlet.land(bytes.into()).expect("fits");
                        inside[landed].2 = end;
                        landed += 1;
                    }
                }
                for _ in 0..taken.min(landed) {
                    let (_, _, end) = inside.pop_front().expect("has landed");
                    landed -= 1;
                    if let Some(position) = inlet.free(end) {
                        prop_assert!(outlet.free(position));
                    }
                }
            }
        }
    }

    #[test]
    fn ring__faulty_side__is_noticed() {
        let mut inlet = Inlet::new(100);
        assert_eq!(inlet.land(0), None);
        assert_eq!(inlet.land(101), None);
        assert_eq!(inlet.land(60), Some((0, 60)));
        assert_eq!(inlet.land(60), None, "more than the ring has");
        let mut outlet = Outlet::new(PLACE, 100);
        assert!(outlet.reserve(50).is_some());
        assert!(outlet.free(50));
        assert!(!outlet.free(51));
    }
}
