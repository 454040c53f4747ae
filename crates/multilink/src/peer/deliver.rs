//! Received units: counted, put in order, and passed to the host.

use super::{Peer, Shared};
use crate::path::Path;
use crate::reorder::{Fate, Unit};
use crate::wire::{DATA_HEADER_BYTES, DataHeader, flag};

/// Time between reports under load, in ns. A repair waits at most this and a round trip. A gigabit
/// link has 500 KB in flight meanwhile.
pub(super) const REPORT_NS: u64 = 4_000_000;
/// Time between reports when there is something to repair, in ns.
pub(super) const REPORT_MIN_NS: u64 = 500_000;

impl Peer {
    /// Handles an opened unit that arrived on the local `link`.
    pub(crate) fn handle_unit(
        &mut self,
        link: u8,
        header: &DataHeader,
        payload: &[u8],
        shared: &mut Shared<'_>,
    ) {
        let unit = Unit {
            seq: header.unit_seq,
            index: header.index,
            last: header.last,
            aux: header.aux,
            has_vnet: header.flags & flag::VNET != 0,
            payload,
        };
        let is_repair = header.flags & flag::REPAIR != 0;
        let fate = self.reorder.push(
            shared.now_ns,
            header.link,
            is_repair,
            &unit,
            shared.pool,
            shared.frames,
        );
        let counters = &mut self.paths[usize::from(link)].counters;
        match fate {
            Fate::Accepted | Fate::Malformed => {}
            Fate::Late => counters.late += 1,
            Fate::Duplicate => counters.duplicate += 1,
        }
        self.active_at_ns = shared.now_ns;
    }

    /// Counts an authentic datagram of `bytes` that arrived on the local `link`, and schedules the
    /// report on it.
    pub(crate) fn note_arrival(
        &mut self,
        link: u8,
        bytes: usize,
        eliciting: bool,
        has_gap: bool,
        now_ns: u64,
    ) {
        let counters = &mut self.paths[usize::from(link)].counters;
        counters.rx_packets += 1;
        counters.rx_bytes += (bytes + crate::link::OVERHEAD_BYTES) as u64;
        self.heard_at_ns = now_ns;
        if has_gap {
            self.schedule_report(self.reported_at_ns + REPORT_MIN_NS, now_ns);
        } else if eliciting && self.report_due_ns.is_none() {
            self.schedule_report(self.reported_at_ns + REPORT_NS, now_ns);
        }
    }

    /// Schedules a report for `due_ns` at the latest, and not before now.
    pub(super) fn schedule_report(&mut self, due_ns: u64, now_ns: u64) {
        let due_ns = due_ns.max(now_ns);
        self.report_due_ns = Some(self.report_due_ns.map_or(due_ns, |due| due.min(due_ns)));
    }

    /// Handles a ping: the report is due at once, but not before `REPORT_MIN_NS` after the last
    /// one.
    pub(crate) fn handle_ping(&mut self, now_ns: u64) {
        self.schedule_report(self.reported_at_ns + REPORT_MIN_NS, now_ns);
    }

    /// Releases the frames that have been on hold long enough.
    pub(crate) fn release_held(&mut self, shared: &mut Shared<'_>) {
        let rtt_ns = self.rtt_ns();
        self.reorder
            .handle_timeout(shared.now_ns, rtt_ns, shared.pool, shared.frames);
    }

    /// Returns the bytes of the tag on each datagram to the peer.
    pub(super) fn tag_bytes(&self) -> usize {
        let current = self.current.as_ref();
        current.map_or(0, |session| session.seal.tag_bytes())
    }

    /// Returns the bytes of a unit's datagram that are not payload.
    pub(crate) fn framing_bytes(&self) -> usize {
        DATA_HEADER_BYTES + self.tag_bytes()
    }

    /// Applies the limits of both sides' links on the size of a unit. `own` is the limit of this
    /// side's links, in bytes; 0 if there are no links.
    pub(crate) fn set_unit_limit(&mut self, own: usize) {
        self.unit_limit = usize::from(self.params.unit_bytes_max).min(own);
        let framing = DATA_HEADER_BYTES + self.params.seal.tag_bytes();
        for path in self.paths.iter_mut().filter(|_| own > 0) {
            path.mtu.set_limit(self.unit_limit + framing);
        }
        self.fit_units();
    }

    /// Sets the size of future units so that they fit every path in use, or every path if none is
    /// in use.
    pub(crate) fn fit_units(&mut self) {
        let framing = self.framing_bytes();
        let least = |paths: &mut dyn Iterator<Item = &Path>| {
            let units = paths.map(|path| path.mtu.size().saturating_sub(framing));
            units.min()
        };
        let known = || self.paths.iter().filter(|path| path.destination.is_some());
        let in_use = least(&mut known().filter(|path| path.is_settled()));
        let fitting = in_use.or_else(|| least(&mut known()));
        self.unit_bytes_max = self.unit_limit.min(fitting.unwrap_or(self.unit_limit));
    }
}
