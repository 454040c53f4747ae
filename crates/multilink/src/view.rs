//! What of an endpoint's state is shown: values, not access.

use crate::lane::Lane;
use crate::liveness::State;
use crate::path::{Path, PathCounters};
use crate::peer::Peer;
use crate::reorder::{HOLD_BUCKETS, ReorderCounts};
use core::net::SocketAddr;

/// One path, as shown.
#[derive(Debug, Clone, Copy)]
pub struct PathView {
    /// The local link.
    pub link: u8,
    /// Where it leads.
    pub to: Option<SocketAddr>,
    /// Where it stands.
    pub state: State,
    /// Failures not yet forgiven.
    pub failures: u32,
    /// The longest datagram it carries, in bytes, and whether one was delivered.
    pub datagram_bytes: (usize, bool),
    /// Smoothed and least round trip, in ns.
    pub rtt_ns: (u64, u64),
    /// The round trip that was measured last, without the wait in this host, in ns.
    pub rtt_latest_ns: u64,
    /// Share of packets lost lately.
    pub loss: f64,
    /// Counters.
    pub counters: PathCounters,
}

/// What is kept for one peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryView {
    /// Bytes of the buffers of frames that may have to be sent again.
    pub retained_bytes: usize,
    /// Places those frames take in the tables.
    pub retained_places: usize,
    /// Bytes of the buffers of frames that are incomplete or wait for others.
    pub held_bytes: usize,
    /// Datagrams not reported on.
    pub open_datagrams: usize,
    /// Units waiting to be sent again.
    pub repairs: usize,
}

impl MemoryView {
    /// All of it in bytes, an entry of a table counted as 64.
    pub fn bytes(&self) -> usize {
        let places = self.retained_places + self.open_datagrams + self.repairs;
        self.retained_bytes + self.held_bytes + places * 64
    }
}

/// One peer, as shown.
pub struct PeerView<'a> {
    peer: &'a Peer,
}

impl<'a> PeerView<'a> {
    pub(crate) fn new(peer: &'a Peer) -> Self {
        Self { peer }
    }

    /// Its identity.
    pub fn node(&self) -> u64 {
        self.peer.params.node
    }

    /// Which of its device's lanes it is.
    pub fn lane(&self) -> Lane {
        self.peer.params.lane
    }

    /// Its host name.
    pub fn name(&self) -> &'a str {
        &self.peer.params.name
    }

    /// Its device's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.peer.params.mac
    }

    /// Whether any path to it works.
    pub fn is_up(&self) -> bool {
        self.peer.is_up
    }

    /// Whether there are keys to send with.
    pub fn has_session(&self) -> bool {
        self.peer.current.is_some()
    }

    /// When the keys in use were made, in the endpoint's time.
    pub fn keyed_at_ns(&self) -> Option<u64> {
        self.peer.current.as_ref().map(|session| session.made_at_ns)
    }

    /// Payload of a unit, and bytes of its datagram that are not payload.
    pub fn framing(&self) -> (usize, usize) {
        (self.peer.unit_bytes_max, self.peer.framing_bytes())
    }

    /// What the reorder buffer did.
    pub fn reorder(&self) -> (ReorderCounts, &'a [u64; HOLD_BUCKETS], u64) {
        let reorder = &self.peer.reorder;
        (
            reorder.counts(),
            reorder.hold_histogram(),
            reorder.skew_ns(),
        )
    }

    /// What is kept for it.
    pub fn memory(&self) -> MemoryView {
        let peer = self.peer;
        MemoryView {
            retained_bytes: peer.retained.bytes(),
            retained_places: peer.retained.places(),
            held_bytes: peer.reorder.held_bytes(),
            open_datagrams: peer.paths.iter().map(|path| path.ledger.len()).sum(),
            repairs: peer.repair_queue.len(),
        }
    }

    /// How long the frame that waits longest has waited since a unit last came for it, in ns.
    pub fn held_without_progress_ns(&self, now_ns: u64) -> u64 {
        self.peer.reorder.held_without_progress_ns(now_ns)
    }

    /// Its paths that lead anywhere or ever did.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + 'a {
        let is_known = |path: &&Path| path.to.is_some() || path.counters.rx_packets > 0;
        let paths = self.peer.paths.iter().enumerate();
        paths
            .filter(move |(_, path)| is_known(path))
            .map(|(link, path)| PathView {
                link: link as u8,
                to: path.to,
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
