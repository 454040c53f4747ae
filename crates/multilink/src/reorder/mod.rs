//! Assembles units into frames and restores the order of frames, below TCP (RI2N/DRV paper, §4.5
//! and §5.5).
//!
//! The units of a frame have consecutive numbers. Each frame names the last unit of the previous
//! frame of its flow, its *predecessor*. A gap therefore holds back only its own flow. A frame
//! waits only if a unit on which it depends is missing.
//!
//! ```text
//!            all units received, predecessor resolved
//! unit ──▶ Assembling ────────────────────────────▶ delivered
//!             │  SHORT after the proof that missing units are lost (every link is past them)
//!             │  HOLD  after the last progress, in any case (from measured skew, at most 20 ms)
//!             ▼
//!          given up ──▶ the received parts of a TCP burst are delivered ([`crate::salvage`])
//! ```
//!
//! The proof of loss is the paper's early detection (§4.6; `minseq` in Linux's `ppp_generic.c` is
//! the same rule). Links are first-in first-out. Let *m* be the smallest of the links' last unit
//! numbers. A unit below *m* can no longer arrive, except as a repair. SHORT leaves time for the
//! repair.

mod assembly;
mod hold;
mod window;

use std::collections::VecDeque;

use crate::frame::{Frame, FramePool};
use crate::salvage::salvage;
use crate::seq::extend;
use crate::wire::{LINKS_MAX, UNIT_INDEX_MAX};
pub use assembly::Unit;
use assembly::{Assembly, single_unit_frame};
use window::{NO_SLOT, WINDOW, Window};

/// Longest hold of a unit, in nanoseconds: the paper's `FAST_TOUT`. It is a tenth of TCP's usual
/// minimum RTO.
pub const HOLD_MAX_NS: u64 = 20_000_000;
/// Shortest hold, in nanoseconds. A busy receiver may need this time to read its other socket. It
/// also suffices to detect and repair the loss of a burst's last unit on a link: a ping after 2 ms,
/// its report and the repair.
const HOLD_MIN_NS: u64 = 5_000_000;
/// Time without units from a link, while other links deliver some, after which the link counts as
/// silent, in nanoseconds. It may be dead. Frames then get the longest hold, because repairs of its
/// units may be in flight.
const SILENT_NS: u64 = 2_000_000;
/// Time allowed for a repair beyond its round trip, in nanoseconds.
const REPAIR_MARGIN_NS: u64 = 1_500_000;
/// Bytes of frames held for one peer (the paper's `MAXBUF`): 20 ms at 10 Gb/s.
const HELD_BYTES_MAX: usize = 25_000_000;
/// Interval of the checks of frames that are past their first deadline, in nanoseconds.
const CHECK_NS: u64 = 500_000;
/// Time without units after which a link counts as unused and no longer as silent, in nanoseconds.
const LINK_ACTIVE_NS: u64 = 100_000_000;
/// Time without any datagram after which a link no longer counts for the proof of loss, in
/// nanoseconds: twice the heartbeat interval of an idle path. Units may be in flight on any live
/// link, even if it has delivered none lately.
const LINK_ALIVE_NS: u64 = 1_000_000_000;
/// Initial skew, in nanoseconds. It gives the first burst over unknown links the longest hold. It
/// decays like a measured skew.
const SKEW_FIRST_NS: u64 = 8_000_000;
/// Lowest skew after a unit arrived later than its hold, in nanoseconds.
const SKEW_LATE_MIN_NS: u64 = 1_000_000;

/// Result of processing a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Accepted. Its frame may have been delivered.
    Accepted,
    /// Accepted after its number was given up. Its frame is still delivered once it is complete.
    Late,
    /// Received before.
    Duplicate,
    /// Contradicts other units of its frame, or starts before unit 0.
    Malformed,
}

/// Counters of a reorder buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReorderCounts {
    /// Frames that had to wait for a unit or a predecessor.
    pub held: u64,
    /// Frames given up incomplete, or delivered past a missing predecessor.
    pub given_up: u64,
    /// Frames, or stretches of bursts, delivered after a later frame had been delivered past a
    /// missing unit. They may have been overtaken by a later frame of their flow.
    pub late: u64,
    /// Number of times that the window or the byte limit (`MAXBUF`) forced the release of all
    /// frames.
    pub overruns: u64,
}

/// Last unit of a link, for the proof of loss.
#[derive(Debug, Clone, Copy, Default)]
struct LinkProgress {
    last_unit: u64,
    unit_at_ns: u64,
    is_active: bool,
    /// Time of the last authentic datagram on the link.
    heard_ns: Option<u64>,
}

/// Reorder buffer of one peer.
#[derive(Debug)]
pub struct Reorder {
    window: Window,
    slots: Vec<Assembly>,
    free: Vec<u32>,
    /// Live assemblies in order of arrival: `young` before their first deadline, `old` after it. An
    /// entry is a slot and its generation.
    young: VecDeque<(u32, u32)>,
    old: VecDeque<(u32, u32)>,
    /// Time of the last check of the old assemblies.
    checked_at_ns: u64,
    /// Skipped unit ranges: start, end and the time at which they were skipped.
    gaps: VecDeque<(u64, u64, u64)>,
    /// One past the highest missing unit that a frame was delivered past.
    skipped_end: u64,
    links: [LinkProgress; LINKS_MAX],
    held_bytes: usize,
    skew_ns: u64,
    counts: ReorderCounts,
    /// Histogram of hold times. Bucket b counts holds from (2^b − 1) × 64 µs to below (2^(b+1) − 1)
    /// × 64 µs.
    hold_histogram: [u64; HOLD_BUCKETS],
}

/// Buckets of the hold-time histogram. The last one starts at 32.7 ms.
pub const HOLD_BUCKETS: usize = 10;

impl Default for Reorder {
    fn default() -> Self {
        Self {
            window: Window::default(),
            slots: Vec::new(),
            free: Vec::new(),
            young: VecDeque::new(),
            old: VecDeque::new(),
            checked_at_ns: 0,
            gaps: VecDeque::new(),
            skipped_end: 0,
            links: Default::default(),
            held_bytes: 0,
            skew_ns: SKEW_FIRST_NS,
            counts: ReorderCounts::default(),
            hold_histogram: [0; HOLD_BUCKETS],
        }
    }
}

impl Reorder {
    /// Returns the counters since the start.
    pub fn counts(&self) -> ReorderCounts {
        self.counts
    }

    /// Returns the histogram of hold times.
    pub fn hold_histogram(&self) -> &[u64; HOLD_BUCKETS] {
        &self.hold_histogram
    }

    /// Returns the skew between links, in nanoseconds, as measured from gaps that filled.
    pub fn skew_ns(&self) -> u64 {
        self.skew_ns
    }

    /// Returns the bytes of memory that held frames take.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Records that an authentic datagram, with or without a unit, arrived on the sender's `link`.
    pub fn note_heard(&mut self, link: u8, now_ns: u64) {
        self.links[usize::from(link) % LINKS_MAX].heard_ns = Some(now_ns);
    }

    /// Processes a unit that arrived on the sender's `link`. Appends the frames that it completes
    /// to `out`.
    pub fn push(
        &mut self,
        now_ns: u64,
        link: u8,
        is_repair: bool,
        unit: &Unit<'_>,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) -> Fate {
        self.window.prepare();
        let seq = extend(unit.seq, self.window.next());
        if !is_repair {
            let progress = &mut self.links[usize::from(link) % LINKS_MAX];
            progress.last_unit = progress.last_unit.max(seq);
            progress.unit_at_ns = now_ns;
            progress.is_active = true;
            progress.heard_ns = Some(now_ns);
        }
        let Some(first) = seq.checked_sub(u64::from(unit.index)) else {
            return Fate::Malformed;
        };
        let last = first + u64::from(unit.last);
        if last >= self.window.base() + WINDOW || self.held_bytes > HELD_BYTES_MAX {
            self.overrun(last, pool, out);
        }
        if self.window.is_resolved(seq) {
            if !is_repair && !self.window.is_received(seq) {
                // The unit was not lost: the skew of the links is larger than estimated.
                self.skew_ns = (2 * self.skew_ns).clamp(SKEW_LATE_MIN_NS, HOLD_MAX_NS / 2);
            }
            return self.push_late(now_ns, seq, unit, pool, out);
        }
        if let Some(gap) = self.window.advance(seq) {
            self.gaps.push_back((gap.start, gap.end, now_ns));
        }
        if unit.last == 0 && self.is_predecessor_resolved(unit, seq) {
            self.window.resolve(seq, true);
            self.counts.late += u64::from(seq < self.skipped_end);
            out.push_back(single_unit_frame(unit, pool));
            self.deliver_dependents(now_ns, seq, true, out);
            return Fate::Accepted;
        }
        self.assemble(now_ns, unit, first, last, pool, out)
    }

    /// Returns whether the predecessor of the frame that `unit` begins at `seq` is resolved or
    /// absent.
    fn is_predecessor_resolved(&self, unit: &Unit<'_>, seq: u64) -> bool {
        unit.predecessor(seq)
            .is_none_or(|predecessor| self.window.is_resolved(predecessor))
    }

    /// Processes a unit whose number is already resolved. Its frame is still delivered, because a
    /// late frame costs its flow less than a lost one.
    fn push_late(
        &mut self,
        now_ns: u64,
        seq: u64,
        unit: &Unit<'_>,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) -> Fate {
        if self.window.is_received(seq) {
            return Fate::Duplicate;
        }
        let first = seq - u64::from(unit.index);
        if unit.last == 0 {
            self.window.resolve(seq, true);
            self.counts.late += 1;
            out.push_back(single_unit_frame(unit, pool));
            return Fate::Late;
        }
        match self.assemble(now_ns, unit, first, first + u64::from(unit.last), pool, out) {
            Fate::Accepted => Fate::Late,
            fate => fate,
        }
    }

    fn assemble(
        &mut self,
        now_ns: u64,
        unit: &Unit<'_>,
        first: u64,
        last: u64,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) -> Fate {
        let mut slot = self.window.assembly_ending(last);
        if slot == NO_SLOT {
            slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Assembly::default());
                self.slots.len() as u32 - 1
            });
            let generation = self.slots[slot as usize].begin(first, unit, now_ns, pool);
            self.held_bytes += self.slots[slot as usize].held_bytes();
            self.window.set_assembly(last, slot);
            self.young.push_back((slot, generation));
        }
        let assembly = &mut self.slots[slot as usize];
        if assembly.first() != first {
            return Fate::Malformed;
        }
        match assembly.add(now_ns, unit) {
            Fate::Accepted => {}
            fate => return fate,
        }
        let missing_predecessor = unit
            .predecessor(first)
            .filter(|seq| !self.window.is_resolved(*seq));
        if let Some(predecessor) = missing_predecessor {
            self.window.set_dependent(predecessor, slot);
        }
        if self.is_deliverable(slot) {
            self.deliver(now_ns, slot, true, out);
            self.deliver_dependents(now_ns, last, true, out);
        }
        Fate::Accepted
    }

    fn is_deliverable(&self, slot: u32) -> bool {
        let assembly = &self.slots[slot as usize];
        assembly.is_complete()
            && assembly
                .predecessor()
                .is_none_or(|predecessor| self.window.is_resolved(predecessor))
    }

    /// Delivers a complete frame. `is_filled` is true if the units that it waited for have arrived.
    /// Only then does the wait show skew. Waiting for units that never arrive does not.
    fn deliver(&mut self, now_ns: u64, slot: u32, is_filled: bool, out: &mut VecDeque<Frame>) {
        let assembly = &self.slots[slot as usize];
        let (first, last) = (assembly.first(), assembly.last());
        let held_ns = now_ns.saturating_sub(assembly.arrived_ns());
        if held_ns > 0 {
            self.counts.held += 1;
            let bucket = (held_ns / 64_000 + 1).ilog2() as usize;
            self.hold_histogram[bucket.min(HOLD_BUCKETS - 1)] += 1;
            if is_filled && held_ns <= HOLD_MAX_NS {
                // The skew is a maximum that decays by 1/256 with each held frame.
                self.skew_ns = held_ns.max(self.skew_ns - self.skew_ns / 256);
            }
        }
        self.counts.late += u64::from(last < self.skipped_end);
        for seq in first..=last {
            self.window.resolve(seq, true);
        }
        let frame = self.retire(slot);
        out.push_back(frame.expect("a complete assembly has a frame"));
    }

    /// Ends an assembly and returns its frame.
    fn retire(&mut self, slot: u32) -> Option<Frame> {
        let assembly = &mut self.slots[slot as usize];
        self.held_bytes -= assembly.held_bytes();
        self.window.set_assembly(assembly.last(), NO_SLOT);
        self.free.push(slot);
        assembly.end()
    }

    /// Delivers the chain of complete frames that waited for unit `seq`.
    fn deliver_dependents(
        &mut self,
        now_ns: u64,
        mut seq: u64,
        is_filled: bool,
        out: &mut VecDeque<Frame>,
    ) {
        while let Some(slot) = self.window.take_dependent(seq) {
            let assembly = &self.slots[slot as usize];
            if !assembly.is_live()
                || assembly.predecessor() != Some(seq)
                || !self.is_deliverable(slot)
            {
                if is_filled {
                    self.slots[slot as usize].touch(now_ns); // its predecessor was delivered
                }
                return;
            }
            seq = assembly.last();
            self.deliver(now_ns, slot, is_filled, out);
        }
    }

    /// Gives up `slot` and, before it, the frames on which it depends.
    fn give_up(&mut self, now_ns: u64, slot: u32, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        let mut chain = vec![slot];
        while let Some(seq) = self.slots[chain[chain.len() - 1] as usize].predecessor() {
            if self.window.is_resolved(seq) {
                break;
            }
            match self.window.assembly_ending(seq) {
                NO_SLOT => {
                    self.window.resolve(seq, false);
                    self.skipped_end = self.skipped_end.max(seq + 1);
                    break;
                }
                predecessor => chain.push(predecessor),
            }
        }
        while let Some(slot) = chain.pop() {
            if !self.slots[slot as usize].is_live() {
                continue; // delivered as a dependent of its predecessor
            }
            self.counts.given_up += 1;
            let last = self.slots[slot as usize].last();
            if self.slots[slot as usize].is_complete() {
                self.deliver(now_ns, slot, false, out);
            } else {
                self.abandon(slot, pool, out);
            }
            self.deliver_dependents(now_ns, last, false, out);
        }
    }

    /// Ends an incomplete assembly. Appends the parts that can be salvaged to `out`.
    fn abandon(&mut self, slot: u32, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        let assembly = &self.slots[slot as usize];
        let (first, last) = (assembly.first(), assembly.last());
        let is_late = last < self.skipped_end;
        self.skipped_end = self.skipped_end.max(last + 1);
        for (index, seq) in (first..=last).enumerate() {
            let is_received = self.slots[slot as usize].has_unit(index as u8);
            self.window.resolve(seq, is_received);
        }
        let ranges = self.slots[slot as usize].received_ranges();
        if let Some(frame) = self.retire(slot) {
            let frame_count = out.len();
            salvage(frame.as_slice(), &ranges, pool, |part| out.push_back(part));
            self.counts.late += if is_late {
                (out.len() - frame_count) as u64
            } else {
                0
            };
            pool.give(frame);
        }
    }

    /// Releases all held frames because a unit is beyond the window or too many bytes are held.
    /// Moves the window if unit `last` is still beyond it.
    fn overrun(&mut self, last: u64, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        self.counts.overruns += 1;
        self.flush(pool, out);
        if last >= self.window.base() + WINDOW {
            self.window.restart_at(last - WINDOW / 2);
        }
    }

    /// Gives up all held frames.
    fn flush(&mut self, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        for queue in [
            std::mem::take(&mut self.old),
            std::mem::take(&mut self.young),
        ] {
            for (slot, generation) in queue {
                if self.slots[slot as usize].is_generation(generation) {
                    let arrived_ns = self.slots[slot as usize].arrived_ns();
                    self.give_up(arrived_ns, slot, pool, out);
                }
            }
        }
        self.gaps.clear();
        self.window.resolve_all();
        self.skipped_end = self.window.base();
    }

    /// Releases the frames whose hold has ended. `rtt_ns` is the round-trip time of a repair.
    pub fn handle_timeout(
        &mut self,
        now_ns: u64,
        rtt_ns: u64,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) {
        let short_ns = (rtt_ns * 3 / 2 + REPAIR_MARGIN_NS).min(HOLD_MAX_NS);
        let hold_ns = self.hold_ns(now_ns).max(short_ns);
        let proven = self.proven_below(now_ns);
        let newest_ns = self.newest_ns();
        while let Some(&(slot, generation)) = self.young.front() {
            let assembly = &self.slots[slot as usize];
            if assembly.is_generation(generation) {
                if assembly.arrived_ns() + short_ns > now_ns {
                    break;
                }
                self.old.push_back((slot, generation));
            }
            self.young.pop_front();
        }
        self.checked_at_ns = now_ns;
        // Frames checked earlier in this pass may have waited for a frame that was given up later.
        // The pass is repeated until it gives up no frame.
        let mut any_released = true;
        while std::mem::take(&mut any_released) {
            for _ in 0..self.old.len() {
                let Some((slot, generation)) = self.old.pop_front() else {
                    break;
                };
                if !self.slots[slot as usize].is_generation(generation) {
                    continue;
                }
                let is_overdue = self.last_progress_ns(slot) + hold_ns <= now_ns;
                let is_repair_overdue = self.is_proven_lost(slot, proven) && {
                    let proven_ns = self.slots[slot as usize].note_proven(newest_ns);
                    proven_ns + short_ns <= now_ns
                };
                if is_overdue || is_repair_overdue {
                    self.give_up(now_ns, slot, pool, out);
                    any_released = true;
                } else {
                    self.old.push_back((slot, generation));
                }
            }
        }
        while let Some(&(start, end, at_ns)) = self.gaps.front() {
            if at_ns + HOLD_MAX_NS > now_ns {
                break;
            }
            self.gaps.pop_front();
            self.close_gap(now_ns, start..end, out);
        }
    }

    /// Gives up the skipped units of `range` that belong to no assembly. They were skipped too long
    /// ago to arrive.
    fn close_gap(&mut self, now_ns: u64, range: std::ops::Range<u64>, out: &mut VecDeque<Frame>) {
        let range = range.start.max(self.window.base())..range.end;
        // A unit's frame ends at most `UNIT_INDEX_MAX` units later. The assemblies are collected in
        // one pass because a gap may be as long as the window.
        let assembling: Vec<(u64, u64)> = (range.start..range.end + UNIT_INDEX_MAX as u64)
            .filter_map(|last| match self.window.assembly_ending(last) {
                NO_SLOT => None,
                slot => Some((self.slots[slot as usize].first(), last)),
            })
            .collect();
        let mut next = 0;
        for seq in range {
            while assembling.get(next).is_some_and(|(_, last)| *last < seq) {
                next += 1;
            }
            let is_assembling = assembling.get(next).is_some_and(|(first, _)| *first <= seq);
            if !is_assembling && !self.window.is_resolved(seq) {
                self.window.resolve(seq, false);
                self.skipped_end = self.skipped_end.max(seq + 1);
                self.deliver_dependents(now_ns, seq, false, out);
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called next.
    pub fn poll_timeout(&self, rtt_ns: u64) -> Option<u64> {
        let short_ns = (rtt_ns * 3 / 2 + REPAIR_MARGIN_NS).min(HOLD_MAX_NS);
        let young = self.young.iter().find_map(|(slot, generation)| {
            let assembly = &self.slots[*slot as usize];
            let is_live = assembly.is_generation(*generation);
            is_live.then(|| assembly.arrived_ns() + short_ns)
        });
        let old = (!self.old.is_empty()).then_some(self.checked_at_ns + CHECK_NS);
        let gap = self.gaps.front().map(|(_, _, at_ns)| at_ns + HOLD_MAX_NS);
        [young, old, gap].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
