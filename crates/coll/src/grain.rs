//! Chunk size and window: how finely blocks are divided, and how many bytes are in flight.

use crate::distance::is_multi_site;
use crate::narrow::own_bytes_per_s;
use kumi_topo::ethernet::PLAIN_TCP;
use kumi_topo::{INSIDE_BYTES_PER_S, Network, Paths};

/// Granularity of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// Longest chunk, in bytes. A relay sends a chunk on when it has received the whole.
    pub chunk_bytes: u64,
    /// Most bytes that a host may have in flight to a peer, in addition to the content of the path.
    pub window_bytes: u64,
    /// Size of an element, in bytes. No chunk ends within one.
    pub element_bytes: u64,
}

impl Default for Grain {
    fn default() -> Self {
        Self {
            chunk_bytes: CHUNK_BYTES,
            window_bytes: WINDOW_BYTES,
            element_bytes: 1,
        }
    }
}

/// Default length of a chunk, in bytes. It takes 0.07 ms at 1 Gb/s, several times the processor
/// time of a message. A port holds four of them.
pub(crate) const CHUNK_BYTES: u64 = 8 << 10;

/// Bytes that a sender on a long path sends first after it was granted its turn: ten segments, as
/// TCP sends after a pause (RFC 6928, RFC 5681 §4.1), in whole chunks (ADR 022).
pub(crate) const RAMP_BYTES: u64 = 16 << 10;

/// Default window, in bytes beyond the content of the path: one chunk entering the link, one
/// leaving it, and half a chunk for the receiver to answer. A host that fills its link may have as
/// many bytes in a port, because acknowledgements take a share of each link (docs/perf-log.md,
/// 2026-11-24).
const WINDOW_BYTES: u64 = 20 << 10;

/// Window between sites, and of a host that sends to only one host, in bytes beyond the content of
/// the path. With a third of it, links were idle. With much more, control messages were late
/// (docs/perf-log.md, 2026-11-23).
pub(crate) const ONE_WINDOW_BYTES: u64 = 48 << 10;

/// Bytes after which a stream drains its path. Acknowledgements, 90 B for each two segments, take 3
/// % of a link. After this many bytes, 32 KiB may therefore stand in a port.
pub(crate) const DRAINED_AFTER_BYTES: u64 = 1 << 20;

/// Longest chunk between sites, in bytes. Beyond this length, a chunk's own cost no longer matters.
const CHUNK_BYTES_MAX: u64 = 256 << 10;

/// Number of chunks into which the content of the slowest path between sites is divided, there and
/// back.
const CHUNKS_IN_FLIGHT: u64 = 32;

/// Length from which a chunk may be announced and granted before it is sent, in bytes, as in Open
/// MPI's rendezvous protocol. That takes one more round trip. Shorter chunks take one in all.
const ANNOUNCED_BYTES: u64 = 64 << 10;

/// Returns the content of the path to each rank, in bytes: round-trip time × bottleneck rate ×
/// payload share. For chunks of [`ANNOUNCED_BYTES`] or more, two round trips count.
pub(crate) fn flight_bytes(paths: &Paths, rank: usize, chunk_bytes: u64) -> Vec<u64> {
    let round_trips = if chunk_bytes < ANNOUNCED_BYTES {
        1.0
    } else {
        2.0
    };
    let flight = |peer: usize| {
        let round_trip_s = paths.latency_s(rank, peer) + paths.latency_s(peer, rank);
        let bytes_per_s = if peer == rank {
            0.0
        } else {
            paths.bytes_per_s(rank, peer)
        };
        (round_trips * round_trip_s * bytes_per_s * PLAIN_TCP) as u64
    };
    (0..paths.hosts()).map(flight).collect()
}

/// Returns the bytes that a host's access link carries until the furthest host has answered.
pub(crate) fn own_flight_bytes(paths: &Paths, rank: usize) -> u64 {
    let peers = (0..paths.hosts()).filter(|peer| *peer != rank);
    let (mut furthest_s, mut fastest) = (0.0_f64, 0.0_f64);
    for peer in peers {
        furthest_s = furthest_s.max(paths.latency_s(rank, peer) * 2.0);
        let bytes_per_s = own_bytes_per_s(paths, rank, peer);
        if bytes_per_s < INSIDE_BYTES_PER_S {
            fastest = fastest.max(bytes_per_s);
        }
    }
    (furthest_s * fastest * PLAIN_TCP) as u64
}

impl Grain {
    /// Returns the granularity for a network: chunks of `CHUNK_BYTES`, or between sites a share
    /// of the content of the slowest path. It is the same on every rank, because sender and
    /// receiver must divide messages alike.
    ///
    /// ```text
    ///   chunk = max( 8 KiB, min(RTT · r / 32, 256 KiB) rounded up to a power of two )
    ///
    ///   RTT  round-trip time between the hosts that are furthest apart, in seconds
    ///   r    lowest bottleneck rate between any two hosts, in bytes per second
    /// ```
    pub fn on(network: &Network, element_bytes: u64) -> Self {
        let usual = Self {
            element_bytes,
            ..Self::default()
        };
        if !is_multi_site(network) {
            return usual;
        }
        let paths = Paths::new(network);
        // A tour of all ranks crosses every link between any two.
        let tour = paths.tour(network, 0);
        let next = tour.iter().skip(1).chain(&tour);
        let rates = tour.iter().zip(next).map(|(a, b)| match a == b {
            true => f64::INFINITY,
            false => paths.bytes_per_s(*a, *b).min(paths.bytes_per_s(*b, *a)),
        });
        let slowest = rates.fold(f64::INFINITY, f64::min);
        // On long paths, few long chunks, because each is announced and granted separately.
        let (a, b) = paths.furthest();
        let round_trip_s = paths.latency_s(a, b) + paths.latency_s(b, a);
        let flight = (round_trip_s * slowest.min(f64::MAX)) as u64 / CHUNKS_IN_FLIGHT;
        let flight = flight.min(CHUNK_BYTES_MAX).next_power_of_two();
        Self {
            chunk_bytes: usual.chunk_bytes.max(flight),
            window_bytes: ONE_WINDOW_BYTES,
            ..usual
        }
    }
}
