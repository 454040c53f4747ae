//! Putting units back into frames and frames back into order, below TCP (paper §4.5, §5.5).
//!
//! Units of one frame are consecutive; each frame names the unit that ended the frame before it in
//! its flow, so a gap holds back only the flow it belongs to: nothing waits when nothing it depends
//! on is missing.
//!
//! ```text
//!            all units here, predecessor resolved
//! unit ──▶ Assembling ────────────────────────────▶ delivered
//!             │  SHORT after the proof that missing units are lost (every link is past them)
//!             │  HOLD  after arrival: in any case (`FAST_TOUT`, from measured skew, ≤ 20 ms)
//!             ▼
//!          given up ──▶ what arrived of a TCP burst is delivered ([`crate::salvage`])
//! ```
//!
//! A proof of loss is the paper's early detection (§4.6; the same rule as `minseq` in Linux's
//! `ppp_generic.c`): links are first-in first-out, so a unit below the smallest of the last unit
//! numbers of all links can no longer arrive, except as a repair, for which SHORT leaves time.

mod assembly;
mod window;

use std::collections::VecDeque;

use crate::frame::{Frame, FramePool};
use crate::salvage::salvage;
use crate::seq::extend;
use crate::wire::{LINKS_MAX, UNIT_INDEX_MAX};
pub use assembly::Unit;
use assembly::{Assembly, copy_whole};
use window::{NO_SLOT, WINDOW, Window};

/// The longest a unit is ever held: the paper's `FAST_TOUT`. A tenth of TCP's usual RTO floor.
pub const HOLD_MAX_NS: u64 = 20_000_000;
/// The least hold: what a busy receiver may need to read its other socket, and what it takes to find
/// and repair the loss of a burst's last unit on a link (a ping after 2.5 ms, its report, the repair).
const HOLD_MIN_NS: u64 = 5_000_000;
/// A link that says nothing for this long while others do may be dead: its units deserve the
/// longest hold, for their repairs are on the way.
const SILENT_NS: u64 = 2_000_000;
/// Time a repair is given beyond its round trip.
const REPAIR_MARGIN_NS: u64 = 1_500_000;
/// Bytes of frames held for one peer (`MAXBUF`): 20 ms at 10 Gb/s.
const HELD_BYTES_MAX: usize = 25_000_000;
/// What passed its first deadline is looked at this often.
const LOOK_NS: u64 = 500_000;
/// How long a link that brings no units may be the silent one.
const LINK_ACTIVE_NS: u64 = 100_000_000;
/// How long a link counts for the proof of loss after anything came on it: twice the heartbeat of an
/// idle path. Units may be on their way on any link that lives, whether it brought some lately or not.
const LINK_ALIVE_NS: u64 = 1_000_000_000;
/// The skew assumed before any was seen: a first burst over links of which nothing is known is held
/// nearly as long as any may be. Forgotten as fast as any other.
const SKEW_FIRST_NS: u64 = 8_000_000;
/// The least skew assumed once a unit came later than it was waited for.
const SKEW_LEARNT_NS: u64 = 1_000_000;

/// What became of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Taken; its frame may have been delivered by it.
    Taken,
    /// Its frame had been given up: a small frame was still delivered, late.
    Late,
    /// It had been received before.
    Duplicate,
    /// It contradicts other units of its frame.
    Malformed,
}

/// Counts of what a reorder buffer did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReorderCounts {
    /// Frames that had to wait for a unit or a predecessor.
    pub held: u64,
    /// Frames given up incomplete, or delivered past a missing predecessor.
    pub given_up: u64,
    /// Frames, or stretches of bursts, delivered after a later frame had been delivered past a unit
    /// that was missing: they may have come after one that follows them in their flow.
    pub late: u64,
    /// Times the window or the byte limit forced everything out (`MAXBUF`).
    pub overruns: u64,
}

/// The last unit each link brought, for the proof of loss.
#[derive(Debug, Clone, Copy, Default)]
struct LinkProgress {
    last_unit: u64,
    at_ns: u64,
    active: bool,
    /// When anything at all last came on the link.
    heard_ns: Option<u64>,
}

/// The reorder buffer of one peer.
#[derive(Debug)]
pub struct Reorder {
    window: Window,
    slots: Vec<Assembly>,
    free: Vec<u32>,
    /// Live assemblies in order of arrival, before and after their first deadline.
    young: VecDeque<(u32, u32)>,
    old: VecDeque<(u32, u32)>,
    /// When the old ones were last looked at.
    looked_at_ns: u64,
    /// Unit ranges that were skipped, and when.
    gaps: VecDeque<(u64, u64, u64)>,
    /// One past the highest missing unit that a frame was delivered past.
    passed: u64,
    links: [LinkProgress; LINKS_MAX],
    held_bytes: usize,
    skew_ns: u64,
    counts: ReorderCounts,
    /// Histogram of hold times: bucket b counts holds below 2^b × 64 µs.
    hold_histogram: [u64; HOLD_BUCKETS],
}

/// Buckets of the hold-time histogram: 64 µs, 128 µs, … 32 ms and more.
pub const HOLD_BUCKETS: usize = 10;

impl Default for Reorder {
    fn default() -> Self {
        Self {
            window: Window::default(),
            slots: Vec::new(),
            free: Vec::new(),
            young: VecDeque::new(),
            old: VecDeque::new(),
            looked_at_ns: 0,
            gaps: VecDeque::new(),
            passed: 0,
            links: Default::default(),
            held_bytes: 0,
            skew_ns: SKEW_FIRST_NS,
            counts: ReorderCounts::default(),
            hold_histogram: [0; HOLD_BUCKETS],
        }
    }
}

impl Reorder {
    /// Counts since the start.
    pub fn counts(&self) -> ReorderCounts {
        self.counts
    }

    /// How long frames were held.
    pub fn hold_histogram(&self) -> &[u64; HOLD_BUCKETS] {
        &self.hold_histogram
    }

    /// Skew between links as measured from gaps that filled, in ns.
    pub fn skew_ns(&self) -> u64 {
        self.skew_ns
    }

    /// Bytes now held.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Something authentic, a unit or not, has come on the sender's `link`.
    pub fn note_heard(&mut self, link: u8, now_ns: u64) {
        self.links[usize::from(link) % LINKS_MAX].heard_ns = Some(now_ns);
    }

    /// Takes a unit that arrived on the sender's `link`. Frames it completes go to `out`.
    pub fn push(
        &mut self,
        now_ns: u64,
        link: u8,
        repair: bool,
        unit: &Unit<'_>,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) -> Fate {
        self.window.prepare();
        let seq = extend(unit.seq, self.window.next());
        if !repair {
            let progress = &mut self.links[usize::from(link) % LINKS_MAX];
            progress.last_unit = progress.last_unit.max(seq);
            progress.at_ns = now_ns;
            progress.active = true;
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
            if !repair && !self.window.is_taken(seq) {
                // It was not lost: the links are further apart than was thought.
                self.skew_ns = (2 * self.skew_ns).clamp(SKEW_LEARNT_NS, HOLD_MAX_NS / 2);
            }
            return self.late(now_ns, seq, unit, pool, out);
        }
        if let Some(gap) = self.window.advance(seq) {
            self.gaps.push_back((gap.start, gap.end, now_ns));
        }
        if unit.last == 0 && self.is_free_to_go(unit, seq) {
            self.window.resolve(seq, true);
            self.counts.late += u64::from(seq < self.passed);
            out.push_back(copy_whole(unit, pool));
            self.deliver_dependents(now_ns, seq, true, out);
            return Fate::Taken;
        }
        self.assemble(now_ns, unit, first, last, pool, out)
    }

    /// Whether the frame that `unit` begins at `seq` waits for no other.
    fn is_free_to_go(&self, unit: &Unit<'_>, seq: u64) -> bool {
        unit.predecessor(seq)
            .is_none_or(|before| self.window.is_resolved(before))
    }

    /// A unit that nobody waits for any more. Its frame is worth delivering all the same: a frame
    /// that comes late costs its flow less than one that is lost.
    fn late(
        &mut self,
        now_ns: u64,
        seq: u64,
        unit: &Unit<'_>,
        pool: &mut FramePool,
        out: &mut VecDeque<Frame>,
    ) -> Fate {
        if self.window.is_taken(seq) {
            return Fate::Duplicate;
        }
        let first = seq - u64::from(unit.index);
        if unit.last == 0 {
            self.window.resolve(seq, true);
            self.counts.late += 1;
            out.push_back(copy_whole(unit, pool));
            return Fate::Late;
        }
        match self.assemble(now_ns, unit, first, first + u64::from(unit.last), pool, out) {
            Fate::Taken => Fate::Late,
            refused => refused,
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
            Fate::Taken => {}
            refused => return refused,
        }
        let waits_for = unit
            .predecessor(first)
            .filter(|before| !self.window.is_resolved(*before));
        if let Some(before) = waits_for {
            self.window.set_dependent(before, slot);
        }
        if self.is_deliverable(slot) {
            self.deliver(now_ns, slot, true, out);
            self.deliver_dependents(now_ns, last, true, out);
        }
        Fate::Taken
    }

    fn is_deliverable(&self, slot: u32) -> bool {
        let assembly = &self.slots[slot as usize];
        assembly.is_complete()
            && assembly
                .predecessor()
                .is_none_or(|before| self.window.is_resolved(before))
    }

    /// Delivers a complete frame. `filled`: what it waited for has come, which is how skew is learnt;
    /// the wait for what never came says nothing of it.
    fn deliver(&mut self, now_ns: u64, slot: u32, filled: bool, out: &mut VecDeque<Frame>) {
        let assembly = &self.slots[slot as usize];
        let (first, last) = (assembly.first(), assembly.last());
        let held_ns = now_ns.saturating_sub(assembly.arrived_ns());
        if held_ns > 0 {
            self.counts.held += 1;
            let bucket = (held_ns / 64_000 + 1).ilog2() as usize;
            self.hold_histogram[bucket.min(HOLD_BUCKETS - 1)] += 1;
            if filled && held_ns <= HOLD_MAX_NS {
                // The skew forgets slowly: a maximum that decays by 1/256 a held frame.
                self.skew_ns = held_ns.max(self.skew_ns - self.skew_ns / 256);
            }
        }
        self.counts.late += u64::from(last < self.passed);
        for seq in first..=last {
            self.window.resolve(seq, true);
        }
        let frame = self.retire(slot);
        out.push_back(frame.expect("a complete assembly has a frame"));
    }

    /// Ends an assembly and gives its frame.
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
        filled: bool,
        out: &mut VecDeque<Frame>,
    ) {
        while let Some(slot) = self.window.take_dependent(seq) {
            let assembly = &self.slots[slot as usize];
            if !assembly.is_live()
                || assembly.predecessor() != Some(seq)
                || !self.is_deliverable(slot)
            {
                if filled {
                    self.slots[slot as usize].touch(now_ns); // what it waited for has come
                }
                return;
            }
            seq = assembly.last();
            self.deliver(now_ns, slot, filled, out);
        }
    }

    /// Gives up `slot` and, before it, what it depends on.
    fn give_up(&mut self, now_ns: u64, slot: u32, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        let mut chain = vec![slot];
        while let Some(before) = self.slots[chain[chain.len() - 1] as usize].predecessor() {
            if self.window.is_resolved(before) {
                break;
            }
            match self.window.assembly_ending(before) {
                NO_SLOT => {
                    self.window.resolve(before, false);
                    self.passed = self.passed.max(before + 1);
                    break;
                }
                predecessor => chain.push(predecessor),
            }
        }
        while let Some(slot) = chain.pop() {
            if !self.slots[slot as usize].is_live() {
                continue; // delivered as a dependent of the one before it
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

    /// Ends an incomplete assembly; what can be saved of it goes to `out`.
    fn abandon(&mut self, slot: u32, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        let assembly = &self.slots[slot as usize];
        let (first, last) = (assembly.first(), assembly.last());
        let is_late = last < self.passed;
        self.passed = self.passed.max(last + 1);
        for (index, seq) in (first..=last).enumerate() {
            let taken = self.slots[slot as usize].has(index as u8);
            self.window.resolve(seq, taken);
        }
        let present = self.slots[slot as usize].present();
        if let Some(frame) = self.retire(slot) {
            let before = out.len();
            salvage(frame.as_slice(), &present, pool, |piece| {
                out.push_back(piece)
            });
            self.counts.late += if is_late {
                (out.len() - before) as u64
            } else {
                0
            };
            pool.give(frame);
        }
    }

    /// Makes room for a unit beyond the window: everything held goes out.
    fn overrun(&mut self, last: u64, pool: &mut FramePool, out: &mut VecDeque<Frame>) {
        self.counts.overruns += 1;
        self.flush(pool, out);
        if last >= self.window.base() + WINDOW {
            self.window.restart_at(last - WINDOW / 2);
        }
    }

    /// Gives up all that is held.
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
        self.passed = self.window.base();
    }

    /// Units below this number can no longer arrive, except as repairs.
    fn proven_below(&self, now_ns: u64) -> u64 {
        let active = self.links.iter().filter(|link| {
            link.heard_ns
                .is_some_and(|at_ns| now_ns < at_ns + LINK_ALIVE_NS)
        });
        active.map(|link| link.last_unit).min().unwrap_or(0)
    }

    fn is_proven_lost(&self, slot: u32, proven: u64) -> bool {
        let assembly = &self.slots[slot as usize];
        let own = assembly
            .last_missing()
            .is_none_or(|missing| missing < proven);
        let before = assembly
            .predecessor()
            .is_none_or(|before| self.window.is_resolved(before) || before < proven);
        own && before
    }

    /// When the newest unit came.
    fn newest_ns(&self) -> u64 {
        self.links.iter().map(|link| link.at_ns).max().unwrap_or(0)
    }

    /// How long to wait for a unit that may still be on its way.
    fn hold_ns(&self, now_ns: u64) -> u64 {
        let newest_ns = self.newest_ns();
        let a_link_is_silent = self.links.iter().any(|link| {
            link.active
                && newest_ns.saturating_sub(link.at_ns) > SILENT_NS
                && now_ns.saturating_sub(link.at_ns) < LINK_ACTIVE_NS
        });
        if a_link_is_silent {
            HOLD_MAX_NS
        } else {
            (2 * self.skew_ns + HOLD_MIN_NS).min(HOLD_MAX_NS)
        }
    }

    /// When a unit last came for the frame or for the one it waits for: on a slow link a burst
    /// takes longer to arrive than anything is held, and it is not late as long as it grows.
    fn last_progress_ns(&self, slot: u32) -> u64 {
        let assembly = &self.slots[slot as usize];
        let before = assembly
            .predecessor()
            .filter(|before| !self.window.is_resolved(*before));
        let before = before.map_or(NO_SLOT, |before| self.window.assembly_ending(before));
        let of = |slot: u32| self.slots[slot as usize].touched_ns();
        if before == NO_SLOT {
            of(slot)
        } else {
            of(slot).max(of(before))
        }
    }

    /// The longest time since progress of any frame that is held.
    pub fn held_without_progress_ns(&self, now_ns: u64) -> u64 {
        let held = self.young.iter().chain(&self.old);
        held.filter(|(slot, generation)| self.slots[*slot as usize].is_generation(*generation))
            .map(|(slot, _)| now_ns.saturating_sub(self.last_progress_ns(*slot)))
            .max()
            .unwrap_or(0)
    }

    /// Releases what has waited long enough. `rtt_ns`: the time a repair takes.
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
        self.looked_at_ns = now_ns;
        // What was given up may have been what another, looked at before, still waited for.
        let mut gave_up = true;
        while std::mem::take(&mut gave_up) {
            for _ in 0..self.old.len() {
                let Some((slot, generation)) = self.old.pop_front() else {
                    break;
                };
                if !self.slots[slot as usize].is_generation(generation) {
                    continue;
                }
                let overdue = self.last_progress_ns(slot) + hold_ns <= now_ns;
                let past_repair = self.is_proven_lost(slot, proven) && {
                    let since_ns = self.slots[slot as usize].note_proven(newest_ns);
                    since_ns + short_ns <= now_ns
                };
                if overdue || past_repair {
                    self.give_up(now_ns, slot, pool, out);
                    gave_up = true;
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

    /// Units that were skipped long ago and are in no assembly will not come.
    fn close_gap(&mut self, now_ns: u64, range: std::ops::Range<u64>, out: &mut VecDeque<Frame>) {
        let range = range.start.max(self.window.base())..range.end;
        // A unit's frame ends at most UNIT_INDEX_MAX units later. One pass finds all assemblies: a
        // gap may be as long as the window.
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
                self.passed = self.passed.max(seq + 1);
                self.deliver_dependents(now_ns, seq, false, out);
            }
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn poll_timeout(&self, rtt_ns: u64) -> Option<u64> {
        let short_ns = (rtt_ns * 3 / 2 + REPAIR_MARGIN_NS).min(HOLD_MAX_NS);
        let young = self.young.iter().find_map(|(slot, generation)| {
            let assembly = &self.slots[*slot as usize];
            let is_live = assembly.is_generation(*generation);
            is_live.then(|| assembly.arrived_ns() + short_ns)
        });
        let old = (!self.old.is_empty()).then_some(self.looked_at_ns + LOOK_NS);
        let gap = self.gaps.front().map(|(_, _, at_ns)| at_ns + HOLD_MAX_NS);
        [young, old, gap].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
