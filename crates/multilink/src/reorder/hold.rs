//! The hold of a frame: it ends when a missing unit is proven lost, or when its time is over.

use super::window::NO_SLOT;
use super::{HOLD_MAX_NS, HOLD_MIN_NS, LINK_ACTIVE_NS, LINK_ALIVE_NS, Reorder, SILENT_NS};

impl Reorder {
    /// Returns the number below which units can no longer arrive, except as repairs.
    pub(super) fn proven_below(&self, now_ns: u64) -> u64 {
        let active = self.links.iter().filter(|link| {
            link.heard_ns
                .is_some_and(|at_ns| now_ns < at_ns + LINK_ALIVE_NS)
        });
        active.map(|link| link.last_unit).min().unwrap_or(0)
    }

    pub(super) fn is_proven_lost(&self, slot: u32, proven: u64) -> bool {
        let assembly = &self.slots[slot as usize];
        let is_own_decided = assembly
            .last_missing()
            .is_none_or(|missing| missing < proven);
        let is_predecessor_decided = assembly
            .predecessor()
            .is_none_or(|seq| self.window.is_resolved(seq) || seq < proven);
        is_own_decided && is_predecessor_decided
    }

    /// Returns the time of the newest unit.
    pub(super) fn newest_ns(&self) -> u64 {
        self.links
            .iter()
            .map(|link| link.unit_at_ns)
            .max()
            .unwrap_or(0)
    }

    /// Returns the time for which to wait for a unit that may still be in flight.
    pub(super) fn hold_ns(&self, now_ns: u64) -> u64 {
        let newest_ns = self.newest_ns();
        let has_silent_link = self.links.iter().any(|link| {
            link.is_active
                && newest_ns.saturating_sub(link.unit_at_ns) > SILENT_NS
                && now_ns.saturating_sub(link.unit_at_ns) < LINK_ACTIVE_NS
        });
        if has_silent_link {
            HOLD_MAX_NS
        } else {
            (2 * self.skew_ns + HOLD_MIN_NS).min(HOLD_MAX_NS)
        }
    }

    /// Returns the time of the last unit of the frame or of the frame that it waits for. On a slow
    /// link a burst may take longer to arrive than the longest hold. It is not late as long as it
    /// grows.
    pub(super) fn last_progress_ns(&self, slot: u32) -> u64 {
        let assembly = &self.slots[slot as usize];
        let predecessor = assembly
            .predecessor()
            .filter(|seq| !self.window.is_resolved(*seq));
        let predecessor = predecessor.map_or(NO_SLOT, |seq| self.window.assembly_ending(seq));
        let touched_ns = |slot: u32| self.slots[slot as usize].touched_ns();
        if predecessor == NO_SLOT {
            touched_ns(slot)
        } else {
            touched_ns(slot).max(touched_ns(predecessor))
        }
    }

    /// Returns the longest time since the last progress of any held frame.
    pub fn held_without_progress_ns(&self, now_ns: u64) -> u64 {
        let held = self.young.iter().chain(&self.old);
        held.filter(|(slot, generation)| self.slots[*slot as usize].is_generation(*generation))
            .map(|(slot, _)| now_ns.saturating_sub(self.last_progress_ns(*slot)))
            .max()
            .unwrap_or(0)
    }
}
