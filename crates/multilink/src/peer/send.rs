//! Frames to the peer: cut into equal units, split over the paths ([`super::candidates`]), sealed,
//! and kept until they are reported. Control messages to the peer.

use super::{Peer, Shared};
use crate::flow;
use crate::frame::{Frame, VNET_BYTES};
use crate::ledger::SentDatagram;
use crate::link::OVERHEAD_BYTES;
use crate::retain::{Cut, UnitRef};
use crate::stripe::{Candidate, Run, links_worth, split};
use crate::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, ControlKind, DATA_HEADER_BYTES, DataHeader, LINKS_MAX,
    UNIT_INDEX_MAX, flag,
};

/// Frames of at most this many units use the quickest path even while all links are full.
const SMALL_UNITS: usize = 2;
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
        let distance = self.next_unit + 1 - end;
        cut.predecessor_distance = if end == 0 {
            0
        } else {
            u16::try_from(distance).unwrap_or(0)
        };
        cut.first_seq = self.next_unit;
        self.next_unit += units as u64;
        self.flow_ends[bucket] = self.next_unit;
        self.active_at_ns = now_ns;

        let unit = self.retained.keep(frame, cut, shared.pool);
        let mut index = 0;
        for run in &runs[..used] {
            for _ in 0..run.units {
                self.send_unit(run.link, unit.with_index(index), false, shared);
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
            predecessor_distance: 0,
            has_vnet,
        })
    }

    /// Seals one unit and queues it on `link`.
    pub(super) fn send_unit(
        &mut self,
        link: u8,
        unit: UnitRef,
        is_repair: bool,
        shared: &mut Shared<'_>,
    ) {
        let (Some(session), Some((frame, cut))) = (&self.current, self.retained.get(unit)) else {
            return;
        };
        let path = &mut self.paths[usize::from(link)];
        let (Some(to), Some(local)) = (path.destination, &mut shared.links[usize::from(link)])
        else {
            self.retained.settle(unit, shared.pool);
            return;
        };
        let link_seq = path.ledger.next_seq();
        let flags =
            if is_repair { flag::REPAIR } else { 0 } | if cut.has_vnet { flag::VNET } else { 0 };
        let header = DataHeader {
            link,
            flags,
            session: session.remote,
            link_seq: link_seq as u32,
            unit_seq: (cut.first_seq + u64::from(unit.index)) as u32,
            index: unit.index,
            last: cut.last,
            aux: if unit.index == 0 {
                cut.predecessor_distance
            } else {
                cut.unit_bytes as u16
            },
        };
        let mut head = [0; DATA_HEADER_BYTES];
        header.emit(&mut head);
        let payload = &frame.as_slice()[cut.range(unit.index)];
        let bytes = DATA_HEADER_BYTES + payload.len() + session.seal.tag_bytes();
        let departure_ns = shared.now_ns + local.backlog_ns(shared.now_ns) as u64;
        local.queue.push(to, bytes, |out| {
            session.seal(link, link_seq, &head, payload, out)
        });
        local.note_queued(shared.now_ns, bytes + OVERHEAD_BYTES);
        path.counters.tx_packets += 1;
        path.counters.tx_bytes += (bytes + OVERHEAD_BYTES) as u64;
        path.counters.repaired += u64::from(is_repair);
        path.eliciting_at_ns = shared.now_ns;
        let forgotten = path.ledger.record(SentDatagram {
            queued_at_ns: shared.now_ns,
            departure_ns,
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
        let (Some(to), Some(local)) = (path.destination, &mut shared.links[usize::from(link)])
        else {
            return;
        };
        if local.queue.is_full() {
            // The kernel accepts no datagrams. The next ping is due as if this one had been sent.
            if kind.is_eliciting() {
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
        let key = session.key(kind == ControlKind::Offer);
        let bytes = CONTROL_HEADER_BYTES + body.len() + key.tag_bytes();
        let departure_ns = shared.now_ns + local.backlog_ns(shared.now_ns) as u64;
        local
            .queue
            .push(to, bytes, |out| key.seal(link, link_seq, &head, body, out));
        local.note_queued(shared.now_ns, bytes + OVERHEAD_BYTES);
        path.counters.tx_packets += 1;
        path.counters.tx_bytes += (bytes + OVERHEAD_BYTES) as u64;
        let eliciting = kind.is_eliciting();
        if eliciting {
            path.eliciting_at_ns = shared.now_ns;
            path.pinged_at_ns = shared.now_ns;
        }
        let forgotten = path.ledger.record(SentDatagram {
            queued_at_ns: shared.now_ns,
            departure_ns,
            bytes: (bytes + OVERHEAD_BYTES) as u32,
            eliciting,
            unit: None,
        });
        if let Some(forgotten) = forgotten {
            self.retained.settle(forgotten, shared.pool);
        }
    }
}
