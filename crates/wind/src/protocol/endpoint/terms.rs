//! Settings, events and errors of an endpoint.

use crate::protocol::handshake::Secret;
use crate::protocol::inbox::Delivery;
use crate::protocol::model::Refused;
use crate::protocol::recovery::{Counts, Recovery};
use crate::protocol::session::Unusable;
use crate::protocol::window::Window;
use kumi_multilink::secure::Seal;

/// A peer of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// Name of a message that was sent to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The message has a place in the order.
    pub is_ordered: bool,
    /// Its number: ordered and unordered messages are counted separately.
    pub number: u64,
}

/// Executor of the operations of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rung {
    /// The kernel, if the seal and the host allow it, and otherwise the program.
    #[default]
    Auto,
    /// The kernel, or an error.
    Kernel,
    /// The program's thread.
    User,
}

/// Wait of a program for an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waiting {
    /// Polls for a moment and then sleeps. While it polls, it lets other threads run.
    #[default]
    Adaptive,
    /// Polls without end.
    Spin,
    /// Sleeps at once.
    Block,
}

/// Way of a put to many peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Multicast {
    /// The faster one, as measured; IP multicast only where all peers hear it.
    #[default]
    Auto,
    /// Each peer passes the data on to the next one.
    Relay,
    /// IP multicast if all peers hear it, otherwise relay.
    Network,
}

/// Settings of an endpoint.
#[derive(Debug, Clone)]
pub struct Config {
    /// Secret of the job.
    pub secret: Secret,
    /// Random number of this run.
    pub epoch: u64,
    /// Protection of packets. Both sides have the same.
    pub seal: Seal,
    /// Longest datagram that every path carries, in bytes. Operations are never longer.
    pub datagram_bytes: u16,
    /// Longest datagram that is received, and sent where the path carries it (`path_mtu.rs`), in
    /// bytes.
    pub datagram_bytes_max: u16,
    /// Bytes that all peers together may send without a further grant (`credit.rs`).
    pub budget_bytes: u64,
    /// Bytes that each peer may send without a grant.
    pub first_bytes: u64,
    /// Longest message that is received, in bytes.
    pub message_bytes_max: u32,
    /// Most peers.
    pub peers_max: usize,
    /// Time without an answer after which a peer is lost, in ns.
    pub lost_after_ns: u64,
    /// Executor of the operations of peers. The kernel needs the daemon of `kumi wind up`, and
    /// sessions that are not encrypted.
    pub rung: Rung,
    /// Wait of the program for an arrival.
    pub waiting: Waiting,
    /// Way of a put to many peers.
    pub multicast: Multicast,
}

impl Config {
    /// Returns settings for paths that carry 1452 bytes, a frame of 1500 bytes over IPv6, and for
    /// datagrams of up to 8972 bytes, a frame of 9000 bytes over IPv4.
    pub fn new(secret: Secret, epoch: u64) -> Self {
        Self {
            secret,
            epoch,
            seal: Seal::Encrypt,
            datagram_bytes: 1452,
            datagram_bytes_max: 8972,
            budget_bytes: 2 << 20,
            first_bytes: 64 << 10,
            message_bytes_max: 64 << 20,
            peers_max: 8192,
            lost_after_ns: 3_000_000_000,
            rung: Rung::Auto,
            waiting: Waiting::Adaptive,
            multicast: Multicast::Auto,
        }
    }
}

/// State of one path of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathStatus {
    /// Smoothed round trip, in ns.
    pub rtt_ns: u64,
    /// Least round trip of the last seconds, in ns.
    pub rtt_min_ns: u64,
    /// Bytes that may be in flight.
    pub window_bytes: u64,
    /// Bytes that are in flight.
    pub in_flight_bytes: u64,
    /// Totals since the session began.
    pub counts: Counts,
}

impl PathStatus {
    pub(crate) fn new(recovery: &Recovery, window: &Window) -> Self {
        Self {
            rtt_ns: recovery.rtt.smoothed_ns(),
            rtt_min_ns: recovery.rtt.min_ns(),
            window_bytes: window.bytes(),
            in_flight_bytes: recovery.in_flight_bytes(),
            counts: recovery.counts(),
        }
    }
}

/// State of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Path of messages, which the peer's program acknowledges.
    pub messages: PathStatus,
    /// Path of requests, if the peer executes them.
    pub requests: Option<PathStatus>,
    /// Bytes of messages and operations that wait or are in flight.
    pub waiting_bytes: u64,
    /// Bytes that may be sent before the next grant of the peer.
    pub credit_bytes: u64,
    /// Bytes of the peer that are not delivered.
    pub held_bytes: u64,
}

/// Reason why a peer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It does not answer.
    #[error("the peer does not answer")]
    Silent,
    /// It ended the session.
    #[error("the peer ended the session")]
    Closed,
    /// Another process has its address now.
    #[error("the peer was restarted")]
    Restarted,
    /// It violates the protocol.
    #[error("the peer violates the protocol: {0}")]
    Faulty(Unusable),
}

/// Event of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A session with a peer has begun.
    Connected(PeerId),
    /// A message arrived.
    Message(PeerId, Delivery),
    /// A synchronous message has been placed in the peer's memory.
    Placed(PeerId, MessageId),
    /// The peer refused the data of a message.
    Rejected(PeerId, MessageId, Refused),
    /// An operation has its result.
    Answered(PeerId, u64, Result<Vec<u8>, Refused>),
    /// A peer is lost. Messages and operations to it that have not arrived are lost as well.
    Lost(PeerId, Lost),
}

/// Reason why a message or an operation was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No peer has this number.
    #[error("no such peer; it may be lost")]
    Peer,
    /// More bytes than a message may have.
    #[error("{bytes} bytes are more than a message may have: {max}")]
    Length {
        /// Length of the message.
        bytes: u64,
        /// Longest message.
        max: u64,
    },
    /// A mode without a place for its data, or a place without such a mode.
    #[error("a mode that writes to a region needs a place, and no other mode has one")]
    Place,
    /// A mode that only nodes send.
    #[error("mode Relay is sent by nodes only: `put_to_all` uses it")]
    Mode,
    /// Parts of a diff that do not fit a datagram.
    #[error("a part of a diff has {bytes} bytes: at most {max} fit a datagram")]
    Part {
        /// Length of the part.
        bytes: usize,
        /// Longest part.
        max: usize,
    },
    /// A twin that is not as long as its area.
    #[error("the twin has {twin} bytes, and the area has {area}: expected the same length")]
    Twin {
        /// Length of the twin.
        twin: usize,
        /// Length of the area.
        area: usize,
    },
    /// An area that is longer than the offsets of a diff.
    #[error("the area has {bytes} bytes: a diff describes at most {max}")]
    Area {
        /// Length of the area.
        bytes: u64,
        /// Longest area.
        max: u64,
    },
    /// More peers than the endpoint may have.
    #[error("the endpoint has its {0} peers already")]
    Peers(usize),
}
