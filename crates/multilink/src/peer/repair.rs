//! Repair: units that are sent again, because they were lost or their path failed.

use super::{Peer, Shared};
use crate::link::OVERHEAD_BYTES;
use crate::liveness::State;
use crate::retain::UnitRef;
use crate::stripe::{Candidate, split};
use crate::wire::{DATA_HEADER_BYTES, LINKS_MAX};

/// Share of the delivered bytes that repairs may take, beyond a burst. A link close to quarantine
/// (10 % lost) can be repaired completely, but congestion is not amplified.
const REPAIR_SHARE: f64 = 0.125;
/// Burst of repairs, in bytes: the data in flight on a gigabit link that dies, over the longest
/// time until the failure is noticed.
const REPAIR_BURST_BYTES: f64 = 4_000_000.0;

impl Peer {
    /// Adds a share of the delivered bytes to the budget of repairs.
    pub(super) fn earn_repairs(&mut self, delivered_bytes: u32) {
        let earned = self.repair_budget_bytes + f64::from(delivered_bytes) * REPAIR_SHARE;
        self.repair_budget_bytes = earned.min(REPAIR_BURST_BYTES);
    }

    /// Queues a lost unit to be sent again.
    pub(super) fn queue_repair(&mut self, unit: UnitRef) {
        self.repair_queue.push_back(unit);
    }

    /// Moves the paths without known losses to the front and returns their number, or the number of
    /// all if there are no such paths. There is seldom time to repair a repair.
    fn prefer_sound(&self, candidates: &mut [Candidate]) -> usize {
        let is_lossy = |candidate: &Candidate| self.paths[usize::from(candidate.link)].is_lossy;
        candidates.sort_by_key(is_lossy);
        match candidates
            .iter()
            .filter(|candidate| !is_lossy(candidate))
            .count()
        {
            0 => candidates.len(),
            sound => sound,
        }
    }

    /// Moves the paths that carry datagrams of `bytes` to the front and returns their number. A
    /// unit keeps the size to which it was cut.
    fn keep_fitting(&self, candidates: &mut [Candidate], bytes: usize) -> usize {
        let is_short =
            |candidate: &Candidate| self.paths[usize::from(candidate.link)].mtu.size() < bytes;
        candidates.sort_by_key(is_short);
        candidates
            .iter()
            .filter(|candidate| !is_short(candidate))
            .count()
    }

    /// Sends the queued repairs within the budget, each on the path on which it arrives first.
    pub(crate) fn send_repairs(&mut self, shared: &mut Shared<'_>) {
        while let Some(unit) = self.repair_queue.pop_front() {
            let Some((_, cut)) = self.retained.get(unit) else {
                continue;
            };
            let bytes = (cut.range(unit.index).len() + DATA_HEADER_BYTES + OVERHEAD_BYTES) as f64;
            let datagram_bytes = cut.range(unit.index).len() + self.framing_bytes();
            let mut candidates = [Candidate::NONE; LINKS_MAX];
            let count = self.candidates(shared.now_ns, shared.links, &mut candidates);
            let count = self.keep_fitting(&mut candidates[..count], datagram_bytes);
            let count = self.prefer_sound(&mut candidates[..count]);
            let run = split(&mut candidates[..count], 1, bytes as usize, 1).next();
            match run.filter(|_| self.repair_budget_bytes >= bytes) {
                Some(run) => {
                    self.repair_budget_bytes -= bytes;
                    self.send_unit(run.link, unit, true, shared);
                }
                None => self.retained.settle(unit, shared.pool),
            }
        }
    }

    /// Moves the units in flight on a path that has failed to the other paths. The death of a link
    /// is not congestion, so they need no budget. There are at most as many as are retained.
    pub(super) fn evacuate(&mut self, link: u8, shared: &mut Shared<'_>) {
        let mut candidates = [Candidate::NONE; LINKS_MAX];
        let count = self.candidates(shared.now_ns, shared.links, &mut candidates);
        let has_alternative = candidates[..count]
            .iter()
            .any(|candidate| candidate.link != link);
        if !has_alternative && self.paths[usize::from(link)].liveness.state() == State::Suspect {
            return; // there is no better path for them
        }
        let units: Vec<UnitRef> = self.paths[usize::from(link)].ledger.take_units().collect();
        let bytes: usize = units
            .iter()
            .filter_map(|unit| Some(self.retained.get(*unit)?.1.unit_bytes))
            .sum();
        if has_alternative {
            self.repair_budget_bytes +=
                (bytes + units.len() * (OVERHEAD_BYTES + DATA_HEADER_BYTES)) as f64;
            self.repair_queue.extend(units);
            self.send_repairs(shared);
        } else {
            units
                .into_iter()
                .for_each(|unit| self.retained.settle(unit, shared.pool));
        }
    }
}
