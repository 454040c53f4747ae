//! State of each unit number in a window, kept as bits and indices in rings.

/// Units ahead of the base that the window spans: the next power of two above 18 000 units of
/// 1420 B, which are 20 ms ([`super::HOLD_MAX_NS`]) at 10 Gb/s. The rings are twice as long and
/// keep as many numbers behind the base, to distinguish duplicates from late units.
pub(super) const WINDOW: u64 = 1 << 15;

/// Slot value that means "no assembly".
pub(super) const NO_SLOT: u32 = u32::MAX;

const RING: u64 = WINDOW * 2;

/// State of one peer's units.
#[derive(Default)]
pub(super) struct Window {
    /// Lowest number that may be unresolved. All numbers below it are resolved.
    base: u64,
    /// One past the highest number seen.
    next: u64,
    /// Bit per number: delivered or given up.
    resolved: Vec<u64>,
    /// Bit per number: received, so a second copy is a duplicate.
    received: Vec<u64>,
    /// Assembly whose last unit has this number.
    ending: Vec<u32>,
    /// Assembly that waits for this number.
    dependent: Vec<u32>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({}..{})", self.base, self.next)
    }
}

fn bit(seq: u64) -> (usize, u64) {
    let index = seq % RING;
    ((index / 64) as usize, 1 << (index % 64))
}

impl Window {
    /// Allocates the rings, half a megabyte, if absent. A peer that never sends a frame takes none.
    pub(super) fn prepare(&mut self) {
        if self.ending.is_empty() {
            self.resolved = vec![0; (RING / 64) as usize];
            self.received = vec![0; (RING / 64) as usize];
            self.ending = vec![NO_SLOT; RING as usize];
            self.dependent = vec![NO_SLOT; RING as usize];
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn is_resolved(&self, seq: u64) -> bool {
        let (word, mask) = bit(seq);
        seq < self.base || (seq < self.next && self.resolved[word] & mask != 0)
    }

    /// Returns whether `seq` was received. Numbers too old for the window count as received.
    pub(super) fn is_received(&self, seq: u64) -> bool {
        let (word, mask) = bit(seq);
        seq + WINDOW < self.next || (seq < self.next && self.received[word] & mask != 0)
    }

    /// Extends the window up to and including `seq`. Returns the numbers that were skipped, if any.
    pub(super) fn advance(&mut self, seq: u64) -> Option<std::ops::Range<u64>> {
        if seq < self.next {
            return None;
        }
        let skipped = self.next..seq;
        for number in self.next..=seq {
            self.forget(number);
        }
        self.next = seq + 1;
        (!skipped.is_empty()).then_some(skipped)
    }

    fn forget(&mut self, seq: u64) {
        let (word, mask) = bit(seq);
        self.resolved[word] &= !mask;
        self.received[word] &= !mask;
        // The entry in `ending` stays. An assembly's last unit may be past `next`, so the entry may
        // already belong to this number.
        if self.dependent[(seq % RING) as usize] != NO_SLOT {
            self.dependent[(seq % RING) as usize] = NO_SLOT;
        }
    }

    /// Marks `seq` as delivered or given up, and moves the base past resolved numbers.
    pub(super) fn resolve(&mut self, seq: u64, is_received: bool) {
        if seq >= self.next {
            self.advance(seq);
        }
        let (word, mask) = bit(seq);
        self.resolved[word] |= mask;
        if is_received {
            self.received[word] |= mask;
        }
        while self.base < self.next {
            let (word, mask) = bit(self.base);
            if self.resolved[word] & mask == 0 {
                break;
            }
            self.base += 1;
        }
    }

    pub(super) fn resolve_all(&mut self) {
        self.base = self.next;
    }

    /// Moves the window to `base`. All numbers below it count as resolved; numbers above it are
    /// unknown.
    pub(super) fn restart_at(&mut self, base: u64) {
        debug_assert!(base >= self.next);
        self.resolved.fill(0);
        self.received.fill(0);
        self.ending.fill(NO_SLOT);
        self.dependent.fill(NO_SLOT);
        self.base = base;
        self.next = base;
    }

    pub(super) fn assembly_ending(&self, last: u64) -> u32 {
        // Outside this range, a number shares its ring entry with one that may be in use.
        if last + WINDOW < self.next || last >= self.base + RING {
            NO_SLOT
        } else {
            self.ending[(last % RING) as usize]
        }
    }

    pub(super) fn set_assembly(&mut self, last: u64, slot: u32) {
        self.ending[(last % RING) as usize] = slot;
    }

    pub(super) fn set_dependent(&mut self, seq: u64, slot: u32) {
        if seq >= self.next {
            self.advance(seq);
        }
        self.dependent[(seq % RING) as usize] = slot;
    }

    pub(super) fn take_dependent(&mut self, seq: u64) -> Option<u32> {
        let slot = std::mem::replace(&mut self.dependent[(seq % RING) as usize], NO_SLOT);
        (slot != NO_SLOT).then_some(slot)
    }
}
