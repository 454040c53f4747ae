//! Bytes of a transfer that may still be in flight when a transfer that awaits it starts.

use crate::distance::{furthest_s, is_multi_site_on};
use crate::grain::RAMP_BYTES;
use crate::narrow::{STANDING_BYTES, carried_bytes_per_s, is_narrow, own_bytes_per_s};
use crate::plan::{After, Transfer};
use crate::shares::{ENOUGH, Share};
use kumi_topo::Paths;
use std::cell::Cell;

/// Payload of the previous transfer that may stand in a port when the next one arrives, in bytes:
/// one chunk, a quarter of [`PORT_BYTES`]. Without a narrow port, [`STANDING_BYTES`] are added
/// (ADR 033).
const EARLY_BYTES: u64 = 8 << 10;

/// Share of a busy link's rate that is at least payload: [`kumi_topo::ethernet::PLAIN_TCP`] less
/// 2 % for acknowledgements.
const BUSY_SHARE: f64 = 0.92;

/// Properties of the path of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendPath {
    /// Rate of one transfer on the path, in bytes per second.
    bytes_per_s: f64,
    /// The path has a port that is slower than the sender's access link.
    is_narrow: bool,
}

impl SendPath {
    pub fn new(paths: &Paths, (from, to): (usize, usize)) -> Self {
        let own_bytes_per_s = own_bytes_per_s(paths, from, to);
        let path_bytes_per_s = paths.bytes_per_s(from, to);
        let round_trip_s = paths.latency_s(from, to) * 2.0;
        Self {
            bytes_per_s: carried_bytes_per_s(own_bytes_per_s, path_bytes_per_s, round_trip_s),
            is_narrow: is_narrow(own_bytes_per_s, path_bytes_per_s),
        }
    }
}

/// Computes the bytes of a transfer that may still be in flight when a transfer that awaits it
/// starts.
pub(crate) struct Early<'a> {
    paths: &'a Paths,
    port_bytes: u64,
    /// Round-trip time between the hosts that are furthest apart, in seconds; 0 if the network is
    /// not multi-site ([`crate::is_multi_site`]).
    round_trip_s: f64,
    /// Round-trip time between the hosts that are furthest apart, in seconds, in any network.
    furthest_s: f64,
    is_ramped: bool,
    /// Paths of the transfers, in the order in which they were added.
    pub send_paths: Vec<SendPath>,
    last_query: Cell<Option<((usize, usize), bool)>>,
}

impl<'a> Early<'a> {
    pub fn new(paths: &'a Paths, port_bytes: u64) -> Self {
        let furthest_s = furthest_s(paths);
        Self {
            paths,
            port_bytes,
            round_trip_s: if port_bytes > 0 && is_multi_site_on(paths) {
                furthest_s
            } else {
                0.0
            },
            furthest_s,
            is_ramped: false,
            send_paths: Vec::new(),
            last_query: Cell::new(None),
        }
    }

    /// Sets whether the operation is ramped ([`Operation::is_ramped`]).
    pub fn ramped(self, is_ramped: bool) -> Self {
        Self { is_ramped, ..self }
    }

    /// Returns the wait of the next transfer in a capacity share; `place_on_path` is the link's
    /// place on its path.
    ///
    /// If the previous transfer has the same sender, the next one may follow as soon as that is
    /// sent: it has the same room in the port. If transfers of other senders are in between, even a
    /// transfer of the same sender must be complete. Otherwise the transfers in a share, each
    /// behind one of its own sender only, would run in parallel (docs/perf-log.md, 2026-11-23).
    ///
    /// If the share is the whole link and both transfers have the same receiver, the wait includes
    /// all earlier transfers to that receiver (ADR 033).
    pub fn wait(
        &self,
        share: &Share,
        transfers: &[Transfer],
        (from, to): (usize, usize),
        place_on_path: usize,
        link_bytes_per_s: f64,
    ) -> Option<After> {
        match share.last() {
            Some(last) if transfers[last].from == from => Some(After::sent(last)),
            _ => {
                let fraction = (share.rate_bytes_per_s / link_bytes_per_s).min(1.0);
                let wait = share.wait(|previous, bytes| {
                    self.bytes(
                        place_on_path,
                        (from, to),
                        (previous, &transfers[previous]),
                        bytes,
                        fraction,
                    )
                })?;
                let is_last =
                    place_on_path > 0 && transfers[wait.transfer].to == to && fraction >= ENOUGH;
                Some(if is_last { wait.with_earlier() } else { wait })
            }
        }
    }

    /// Returns q/C · S and q/C · min(F, M) of the module's comment, for a transfer `previous` of
    /// `bytes`. `fraction` is q/C. On the sender's access link both are 0, so that earlier
    /// transfers leave its queue first.
    ///
    /// In a multi-site network, a sender that awaits a distant transfer starts with a ramp: it
    /// sends [`RAMP_BYTES`], and more when these have arrived (`engine.rs`). To keep the link busy,
    /// it starts one round trip earlier. In its first round trip the link then carries the ramp and
    /// the rest of `previous` (ADR 022). A `previous` shorter than a ramp allows no earlier start,
    /// because several senders that await it would ramp at once.
    fn bytes(
        &self,
        place_on_path: usize,
        (from, to): (usize, usize),
        (index, previous): (usize, &Transfer),
        bytes: u64,
        fraction: f64,
    ) -> (u64, u64) {
        if place_on_path == 0 {
            return (0, 0);
        }
        if self.round_trip_s == 0.0 {
            return self.short_path_bytes((from, to), (index, previous), fraction);
        }
        let round_trip_s =
            self.paths.latency_s(previous.to, from) + self.paths.latency_s(from, previous.to);
        let bytes_per_s = self.paths.bytes_per_s(previous.from, previous.to);
        let flight_bytes = (round_trip_s * bytes_per_s) as u64;
        let ramp_bytes = match flight_bytes.min(bytes) {
            ramped if self.is_ramped && ramped > RAMP_BYTES => ramped - RAMP_BYTES,
            _ => 0,
        };
        let standing_bytes = (self.port_bytes as f64 * fraction) as u64;
        (standing_bytes + flight_bytes + ramp_bytes, 0)
    }

    /// Returns q/C · S and q/C · min(F, M) for hosts that are close together. In a gather, all data
    /// at the root's port is for the root. Each sender has one transfer, so the link stays busy
    /// until the next byte arrives. In other operations another transfer may delay a sender, so F
    /// does not count.
    fn short_path_bytes(
        &self,
        next: (usize, usize),
        (index, previous): (usize, &Transfer),
        fraction: f64,
    ) -> (u64, u64) {
        let path = match self.send_paths.get(index) {
            Some(path) => *path,
            None => SendPath::new(self.paths, (previous.from, previous.to)),
        };
        let round_trip_s = self.paths.latency_s(previous.to, next.0) * 2.0;
        let flight_bytes = (round_trip_s * path.bytes_per_s * BUSY_SHARE) as u64;
        let is_on_narrow_path = path.is_narrow || self.is_narrow(next);
        // Without a narrow port on either path, the bytes reserved for one are free.
        let standing_bytes = match is_on_narrow_path {
            true => EARLY_BYTES,
            false => EARLY_BYTES + STANDING_BYTES,
        };
        let most_bytes = match (self.is_ramped, is_on_narrow_path) {
            (true, false) => u64::MAX,
            (true, true) => EARLY_BYTES,
            (false, _) => 0,
        };
        let share_of = |bytes: u64| (bytes as f64 * fraction) as u64;
        (
            share_of(standing_bytes),
            share_of(flight_bytes.min(most_bytes)),
        )
    }

    /// Returns whether a path has a narrow port. The latest result is cached.
    fn is_narrow(&self, ends: (usize, usize)) -> bool {
        match self.last_query.get() {
            Some((query, is_narrow)) if query == ends => is_narrow,
            _ => {
                let is_narrow = SendPath::new(self.paths, ends).is_narrow;
                self.last_query.set(Some((ends, is_narrow)));
                is_narrow
            }
        }
    }

    /// Returns the most bytes that may be in flight over a link of this rate: a port, and the
    /// content of the longest path once, or twice with a ramp.
    pub fn max_bytes(&self, bytes_per_s: f64) -> u64 {
        let round_trips = if self.is_ramped { 2.0 } else { 1.0 };
        self.port_bytes + (round_trips * self.furthest_s * bytes_per_s) as u64
    }
}
