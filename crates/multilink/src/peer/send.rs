//! Frames to the peer: cut into equal units, split over the paths, and kept until they are
//! reported.

use super::{Links, Peer, Shared};
use crate::capacity::Capacity;
use crate::flow;
use crate::frame::{Frame, VNET_BYTES};
use crate::ledger::Sent;
use crate::link::OVERHEAD_BYTES;
use crate::liveness::State;
use crate::retain::{Cut, UnitRef};
use crate::stripe::{Candidate, Run, links_worth, split};
use crate::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, ControlKind, DATA_HEADER_BYTES, DataHeader, LINKS_MAX,
    UNIT_INDEX_MAX, flag,
};

/// Share of the delivered bytes that repairs may take, beyond a burst. A link close to quarantine
/// (10 % lost) can be repaired completely, but congestion is not amplified.
const REPAIR_SHARE: f64 = 0.125;
/// Burst of repairs, in bytes: the data in flight on a gigabit link that dies, over the longest
/// time until the failure is noticed.
const REPAIR_BURST_BYTES: f64 = 4_000_000.0;
/// Differences between the delays of paths that are ignored, in ns. Receive coalescing and
/// scheduling cause as much.
const DELAY_NOISE_NS: u64 = 300_000;
/// Frames of at most this many units use the quickest path even while all links are full.
const SMALL_UNITS: usize = 2;
/// Largest extra delay of a path that the split counts while all links are full, in ns. The backlog
/// of a later link is kept shorter by as much: frames that arrive early are put on hold, and the
/// hold is limited.
const LEAN_NS: f64 = 1_500_000.0;
/// Share of their rate from which on links count as saturated.
const SATURATED_SHARE: f64 = 0.7;
/// Reduction of a path's rate in the split per share of packets lost: 4 % at a loss of 1 %, and at
/// most 80 %.
const LOSS_AVERSION: f64 = 4.0;

impl Peer {
    /// Sends a frame. Returns the frame if no path can take it.
    pub(crate) fn send_frame(
        &mut self,
        frame: Frame,
        shared: &mut Shared<'_>,
    ) -> Result<(), Frame> {
        if self.current.is_none() {
            return Err(frame);
        }
        let Some(mut cut) = self.cut(&frame) else {
            return Err(frame);
        };
        let now_ns = shared.now_ns;
        let units = usize::from(cut.last) + 1;
        let mut candidates = [Candidate::NONE; LINKS_MAX];
        let count = self.candidates(now_ns, shared.links, &mut candidates);
        if count == 0 {
            return Err(frame);
        }
        let is_saturated =
            units > SMALL_UNITS && self.is_saturated(shared.links, &candidates[..count]);
        if is_saturated {
            self.level(now_ns, shared.links, &mut candidates[..count]);
        }
        let pause_ns = now_ns.saturating_sub(self.active_at_ns);
        let links_max = links_worth(cut.bytes, pause_ns, is_saturated);
        let mut runs = [Run { link: 0, units: 0 }; LINKS_MAX];
        let mut used = 0;
        for run in split(
            &mut candidates[..count],
            units,
            cut.unit_bytes + OVERHEAD_BYTES,
            links_max,
        ) {
            runs[used] = run;
            used += 1;
        }
        let bucket = flow::bucket(frame.as_slice());
        let end = self.flow_ends[bucket];
        let back = self.next_unit + 1 - end;
        cut.depends = if end == 0 {
            0
        } else {
            u16::try_from(back).unwrap_or(0)
        };
        cut.first_seq = self.next_unit;
        self.next_unit += units as u64;
        self.flow_ends[bucket] = self.next_unit;
        self.active_at_ns = now_ns;

        let unit = self.retained.keep(frame, cut, shared.pool);
        let mut index = 0;
        for run in &runs[..used] {
            for _ in 0..run.units {
                self.send_unit(run.link, unit.at(index), false, shared);
                index = index.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Divides a frame into the least number of equal units. Both halves of a frame that needs two
    /// then take the same time. An empty virtio header is left out.
    fn cut(&self, frame: &Frame) -> Option<Cut> {
        let bytes = frame.as_slice();
        let has_vnet = bytes.get(..VNET_BYTES)?.iter().any(|byte| *byte != 0);
        let start = if has_vnet { 0 } else { VNET_BYTES };
        let contents = bytes.len() - start;
        if self.unit_bytes_max == 0 {
            return None; // no links
        }
        let units = contents.div_ceil(self.unit_bytes_max).max(1);
        let last = u8::try_from(units - 1)
            .ok()
            .filter(|last| usize::from(*last) <= UNIT_INDEX_MAX)?;
        let unit_bytes = contents.div_ceil(units);
        (contents > 0).then_some(Cut {
            start,
            bytes: contents,
            unit_bytes,
            last,
            first_seq: 0,
            depends: 0,
            has_vnet,
        })
    }

    /// Finds the paths that may carry data now. Suspect, new and quarantined paths serve only when
    /// there is no better one, and a full link only when the others of its state are full.
    fn candidates(
        &self,
        now_ns: u64,
        links: &Links,
        candidates: &mut [Candidate; LINKS_MAX],
    ) -> usize {
        for accept in [
            &[State::Up][..],
            &[State::Suspect],
            &[State::New],
            &[State::Quarantined],
        ] {
            for takes_full in [false, true] {
                let count = self.candidates_in(accept, takes_full, now_ns, links, candidates);
                if count > 0 {
                    return count;
                }
            }
        }
        0
    }

    fn candidates_in(
        &self,
        accept: &[State],
        takes_full: bool,
        now_ns: u64,
        links: &Links,
        candidates: &mut [Candidate; LINKS_MAX],
    ) -> usize {
        let open = self
            .paths
            .iter()
            .zip(links)
            .enumerate()
            .filter_map(|(number, (path, link))| {
                let link = link
                    .as_ref()
                    .filter(|link| link.has_carrier && path.to.is_some())?;
                accept
                    .contains(&path.liveness.state())
                    .then_some((number, path, link))
            });
        let mut count = 0;
        let mut nearest_ns = u64::MAX;
        for (number, path, link) in open {
            if !takes_full && link.full_for_ns(now_ns) > 0.0 {
                continue;
            }
            let delay_ns = path.rtt.min_ns();
            nearest_ns = nearest_ns.min(delay_ns);
            let link_bps = link.capacity.rate_bps();
            let rate_bps = path
                .bottleneck
                .limit_bps()
                .unwrap_or(link_bps)
                .min(link_bps);
            let keeps = (1.0 - LOSS_AVERSION * path.loss.share()).max(0.2);
            candidates[count] = Candidate {
                link: number as u8,
                ready_ns: link.backlog_ns(now_ns) + delay_ns as f64,
                rate: rate_bps / 8e9 * keeps,
            };
            count += 1;
        }
        // Only differences of delay matter, and small ones are measurement noise. The whole round
        // trip is compared, because reports return by the quickest path, whichever path they are
        // about.
        let known = nearest_ns.saturating_add(DELAY_NOISE_NS) as f64;
        for candidate in &mut candidates[..count] {
            let link = usize::from(candidate.link);
            let delay_ns = self.paths[link].rtt.min_ns() as f64;
            candidate.ready_ns += (delay_ns - known).max(0.0) - delay_ns;
        }
        count
    }

    /// Returns whether the links have nearly as much to carry as they can.
    fn is_saturated(&self, links: &Links, candidates: &[Candidate]) -> bool {
        let known = || {
            let of = |candidate: &Candidate| links[usize::from(candidate.link)].as_ref();
            candidates.iter().filter_map(of).map(|link| &link.capacity)
        };
        let carried_bps: f64 = known().map(Capacity::carried_bps).sum();
        let rate_bps: f64 = known().map(Capacity::rate_bps).sum();
        carried_bps >= SATURATED_SHARE * rate_bps
    }

    /// Lets the backlog decide about the split, and the delay only up to `LEAN_NS`. A slower link
    /// that is idle while the others have a backlog is lost capacity, however late its data
    /// arrives.
    fn level(&self, now_ns: u64, links: &Links, candidates: &mut [Candidate]) {
        for candidate in candidates {
            let link = usize::from(candidate.link);
            if self.is_worth_waiting_for(link) {
                let backlog_ns = links[link].as_ref().map_or(0.0, |l| l.backlog_ns(now_ns));
                let later_ns = candidate.ready_ns - backlog_ns;
                candidate.ready_ns = backlog_ns + later_ns.min(LEAN_NS);
            }
        }
    }

    /// Seals one unit and queues it on `link`.
    fn send_unit(&mut self, link: u8, unit: UnitRef, repair: bool, shared: &mut Shared<'_>) {
        let (Some(session), Some((frame, cut))) = (&self.current, self.retained.get(unit)) else {
            return;
        };
        let path = &mut self.paths[usize::from(link)];
        let (Some(to), Some(local)) = (path.to, &mut shared.links[usize::from(link)]) else {
            self.retained.settle(unit, shared.pool);
            return;
        };
        let link_seq = path.ledger.next_seq();
        let flags =
            if repair { flag::REPAIR } else { 0 } | if cut.has_vnet { flag::VNET } else { 0 };
        let header = DataHeader {
            link,
            flags,
            session: session.remote,
            link_seq: link_seq as u32,
            unit_seq: (cut.first_seq + u64::from(unit.index)) as u32,
            index: unit.index,
            last: cut.last,
            aux: if unit.index == 0 {
                cut.depends
            } else {
                cut.unit_bytes as u16
            },
        };
        let mut head = [0; DATA_HEADER_BYTES];
        header.emit(&mut head);
        let payload = &frame.as_slice()[cut.range(unit.index)];
        let bytes = DATA_HEADER_BYTES + payload.len() + session.seal.tag_bytes();
        let leaves_ns = shared.now_ns + local.backlog_ns(shared.now_ns) as u64;
        local.queue.push(to, bytes, |out| {
            session.seal(link, link_seq, &head, payload, out)
        });
        local.note_queued(shared.now_ns, bytes + OVERHEAD_BYTES);
        path.counters.tx_packets += 1;
        path.counters.tx_bytes += (bytes + OVERHEAD_BYTES) as u64;
        path.counters.repaired += u64::from(repair);
        path.eliciting_at_ns = shared.now_ns;
        let forgotten = path.ledger.record(Sent {
            at_ns: shared.now_ns,
            leaves_ns,
            bytes: (bytes + OVERHEAD_BYTES) as u32,
            eliciting: true,
            unit: Some(unit),
        });
        if let Some(forgotten) = forgotten {
            self.retained.settle(forgotten, shared.pool);
        }
    }

    /// Sends a control message on `link`.
    pub(crate) fn send_control(
        &mut self,
        link: u8,
        kind: ControlKind,
        body: &[u8],
        shared: &mut Shared<'_>,
    ) {
        let Some(session) = &self.current else { return };
        let path = &mut self.paths[usize::from(link)];
        let (Some(to), Some(local)) = (path.to, &mut shared.links[usize::from(link)]) else {
            return;
        };
        if local.queue.is_full() {
            // The kernel accepts no datagrams. The next ping is due as if this one had been sent.
            if kind == ControlKind::Ping {
                path.eliciting_at_ns = shared.now_ns;
                path.pinged_at_ns = shared.now_ns;
            }
            return;
        }
        let link_seq = path.ledger.next_seq();
        let header = ControlHeader {
            link,
            kind,
            session: session.remote,
            link_seq: link_seq as u32,
        };
        let mut head = [0; CONTROL_HEADER_BYTES];
        header.emit(&mut head);
        let bytes = CONTROL_HEADER_BYTES + body.len() + session.seal.tag_bytes();
        let leaves_ns = shared.now_ns + local.backlog_ns(shared.now_ns) as u64;
        local.queue.push(to, bytes, |out| {
            session.seal(link, link_seq, &head, body, out)
        });
        local.note_queued(shared.now_ns, bytes + OVERHEAD_BYTES);
        path.counters.tx_packets += 1;
        path.counters.tx_bytes += (bytes + OVERHEAD_BYTES) as u64;
        let eliciting = kind == ControlKind::Ping;
        if eliciting {
            path.eliciting_at_ns = shared.now_ns;
            path.pinged_at_ns = shared.now_ns;
        }
        let forgotten = path.ledger.record(Sent {
            at_ns: shared.now_ns,
            leaves_ns,
            bytes: (bytes + OVERHEAD_BYTES) as u32,
            eliciting,
            unit: None,
        });
        if let Some(forgotten) = forgotten {
            self.retained.settle(forgotten, shared.pool);
        }
    }

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
        let is_lossy = |candidate: &Candidate| self.paths[usize::from(candidate.link)].lossy_told;
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
        let others = candidates[..count]
            .iter()
            .any(|candidate| candidate.link != link);
        if !others && self.paths[usize::from(link)].liveness.state() == State::Suspect {
            return; // there is no better path for them
        }
        let units: Vec<UnitRef> = self.paths[usize::from(link)].ledger.take_units().collect();
        let bytes: usize = units
            .iter()
            .filter_map(|unit| Some(self.retained.get(*unit)?.1.unit_bytes))
            .sum();
        if others {
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
