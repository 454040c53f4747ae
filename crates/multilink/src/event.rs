//! Events of an endpoint, which its caller shows.

use crate::liveness::Change;
use crate::secure::Seal;

/// Event for `kumi link events` and the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A peer became reachable or unreachable.
    Peer {
        /// Public identity of the peer.
        node: u64,
        /// Host name of the peer.
        name: String,
        /// True if the peer is reachable.
        is_up: bool,
    },
    /// A path changed its state.
    Path {
        /// Public identity of the peer.
        node: u64,
        /// Host name of the peer.
        name: String,
        /// Number of the local link.
        link: u8,
        /// Old state, new state and reason.
        change: Change,
        /// Share of packets lost lately (0–1).
        loss: f64,
    },
    /// A path in use began or stopped losing packets.
    Lossy {
        /// Public identity of the peer.
        node: u64,
        /// Host name of the peer.
        name: String,
        /// Number of the local link.
        link: u8,
        /// Share of packets lost lately (0–1).
        share: f64,
        /// True if it began.
        is_lossy: bool,
    },
    /// A peer uses another seal.
    SealMismatch {
        /// Host name of the peer.
        name: String,
        /// Seal that the peer uses.
        theirs: Seal,
    },
}
