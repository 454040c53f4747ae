//! Values of an endpoint's state, for display.

use crate::lane::Lane;
use crate::liveness::State;
use crate::path::{Path, PathCounters};
use crate::peer::Peer;
use crate::reorder::{HOLD_BUCKETS, ReorderCounts};
use core::net::SocketAddr;

/// State of one path, for display.
#[derive(Debug, Clone, Copy)]
pub struct PathView {
    /// Number of the local link.
    pub link: u8,
    /// Address that the path sends to.
    pub to: Option<SocketAddr>,
    /// Liveness of the path.
    pub state: State,
    /// Failures that are not forgotten.
    pub failures: u32,
    /// Longest datagram that the path carries, in bytes, and whether one of that length was
    /// delivered.
    pub datagram_bytes: (usize, bool),
    /// Smoothed and least round trip, in ns.
    pub rtt_ns: (u64, u64),
    /// Latest sample of the round trip, without the wait in this host, in ns.
    pub rtt_latest_ns: u64,
    /// Share of packets lost lately (0–1).
    pub loss: f64,
    /// Traffic and losses of the path.
    pub counters: PathCounters,
}

/// Memory held for one peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryView {
    /// Bytes of the buffers of frames that may have to be sent again.
    pub retained_bytes: usize,
    /// Table entries for those frames.
    pub retained_entries: usize,
    /// Bytes of the buffers of frames that are incomplete or wait for others.
    pub held_bytes: usize,
    /// Datagrams without a report.
    pub open_datagrams: usize,
    /// Units that wait to be sent again.
    pub repairs: usize,
}

impl MemoryView {
    /// Returns the sum in bytes, with 64 bytes for a table entry.
    pub fn bytes(&self) -> usize {
        let entries = self.retained_entries + self.open_datagrams + self.repairs;
        self.retained_bytes + self.held_bytes + entries * 64
    }
}

/// State of one peer, for display.
pub struct PeerView<'a> {
    peer: &'a Peer,
}

impl<'a> PeerView<'a> {
    pub(crate) fn new(peer: &'a Peer) -> Self {
        Self { peer }
    }

    /// Returns the peer's public identity.
    pub fn node(&self) -> u64 {
        self.peer.params.node
    }

    /// Returns the lane of the peer's device.
    pub fn lane(&self) -> Lane {
        self.peer.params.lane
    }

    /// Returns the peer's host name.
    pub fn name(&self) -> &'a str {
        &self.peer.params.name
    }

    /// Returns the MAC address of the peer's device.
    pub fn mac(&self) -> [u8; 6] {
        self.peer.params.mac
    }

    /// Returns whether a path to the peer is up.
    pub fn is_up(&self) -> bool {
        self.peer.is_up
    }

    /// Returns whether there are keys to send with.
    pub fn has_session(&self) -> bool {
        self.peer.current.is_some()
    }

    /// Returns the time at which the keys in use were made, in the endpoint's time.
    pub fn keyed_at_ns(&self) -> Option<u64> {
        self.peer.current.as_ref().map(|session| session.made_at_ns)
    }

    /// Returns the payload of a full unit, and the bytes of its datagram that are not payload.
    pub fn framing(&self) -> (usize, usize) {
        (self.peer.unit_bytes_max, self.peer.framing_bytes())
    }

    /// Returns the counts of the reorder buffer, its histogram of holds, and the measured skew in
    /// ns.
    pub fn reorder(&self) -> (ReorderCounts, &'a [u64; HOLD_BUCKETS], u64) {
        let reorder = &self.peer.reorder;
        (
            reorder.counts(),
            reorder.hold_histogram(),
            reorder.skew_ns(),
        )
    }

    /// Returns the memory held for the peer.
    pub fn memory(&self) -> MemoryView {
        let peer = self.peer;
        MemoryView {
            retained_bytes: peer.retained.bytes(),
            retained_entries: peer.retained.entries(),
            held_bytes: peer.reorder.held_bytes(),
            open_datagrams: peer.paths.iter().map(|path| path.ledger.len()).sum(),
            repairs: peer.repair_queue.len(),
        }
    }

    /// Returns the longest time for which a frame on hold has waited since a unit last arrived for
    /// it, in ns.
    pub fn held_without_progress_ns(&self, now_ns: u64) -> u64 {
        self.peer.reorder.held_without_progress_ns(now_ns)
    }

    /// Returns the paths that have a destination or ever received a packet.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + 'a {
        let is_known = |path: &&Path| path.destination.is_some() || path.counters.rx_packets > 0;
        let paths = self.peer.paths.iter().enumerate();
        paths
            .filter(move |(_, path)| is_known(path))
            .map(|(link, path)| PathView {
                link: link as u8,
                to: path.destination,
                state: path.liveness.state(),
                failures: path.liveness.failures(),
                datagram_bytes: (path.mtu.size(), path.mtu.is_confirmed()),
                rtt_ns: (path.rtt.smoothed_ns(), path.rtt.min_ns()),
                rtt_latest_ns: path.rtt.network_latest_ns(),
                loss: path.loss.share(),
                counters: path.counters,
            })
    }
}
