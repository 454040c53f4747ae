//! How finely blocks are cut, and how much of them is on its way at once.

use crate::narrow::own_bytes_per_s;
use crate::schedule::is_far;
use kumi_topo::ethernet::PLAIN_TCP;
use kumi_topo::{INSIDE_BYTES_PER_S, Network, Paths};

/// How fine a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// Longest piece: a relay sends a piece on when it has come whole.
    pub piece_bytes: u64,
    /// What a host may have sent that is not yet received: what is on its way on the longest path, and as much again for
    /// the queues at both ends.
    pub window_bytes: u64,
    /// Bytes of the elements: no piece ends within one.
    pub element_bytes: u64,
}

impl Default for Grain {
    fn default() -> Self {
        Self {
            piece_bytes: PIECE_BYTES,
            window_bytes: WINDOW_BYTES,
            element_bytes: 1,
        }
    }
}

/// Longest piece by default: 0.07 ms on 1 Gb/s, several times what a message costs a host; a quarter of what a port holds.
pub(crate) const PIECE_BYTES: u64 = 8 << 10;

/// Bytes in flight beyond what a path holds: one piece on its way into the link, one out of it, and half of one for the host to
/// answer. As acknowledgements take a share of each link, this is what comes to stand in a port behind a host that fills its link
/// (docs/perf-log.md, 2026-11-24).
const WINDOW_BYTES: u64 = 20 << 10;

/// Window between sites, and of a host that sends to one other host, in bytes beyond what a path holds. With a third of it
/// links were idle; with much more, control messages were late (docs/perf-log.md).
pub(crate) const ONE_WINDOW_BYTES: u64 = 48 << 10;

/// Bytes after which a stream drains its path. Acknowledgements, 90 B for each two segments, take 3 % of a link, so after
/// this many bytes 32 KiB may stand in a port.
pub(crate) const DRAINED_AFTER_BYTES: u64 = 1 << 20;

/// Longest piece between sites: beyond, a piece's own cost no longer counts.
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// Pieces at most that a path there and back holds.
const PIECES_IN_FLIGHT: u64 = 32;

/// Pieces from this on may be announced and granted before they set out, as by Open MPI's rendezvous: that takes one more
/// round trip. Shorter ones are over when one has passed.
const ANNOUNCED_BYTES: u64 = 64 << 10;

/// What paths to the other ranks hold, there and back, where it is more than stands in a port.
pub(crate) fn flight_bytes(paths: &Paths, rank: usize, piece_bytes: u64) -> Vec<u64> {
    let round_trips = if piece_bytes < ANNOUNCED_BYTES {
        1.0
    } else {
        2.0
    };
    let of = |peer: usize| {
        let there_and_back_s = paths.latency_s(rank, peer) + paths.latency_s(peer, rank);
        let bytes_per_s = if peer == rank {
            0.0
        } else {
            paths.bytes_per_s(rank, peer)
        };
        (round_trips * there_and_back_s * bytes_per_s * PLAIN_TCP) as u64
    };
    (0..paths.hosts()).map(of).collect()
}

/// What a host's own link carries until the furthest host has answered.
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
    /// Pieces of [`PIECE_BYTES`]; between sites, of a share of what the slowest path between ranks holds. The same on every
    /// rank, for what one sends in pieces the other receives so.
    pub fn on(network: &Network, element_bytes: u64) -> Self {
        let usual = Self {
            element_bytes,
            ..Self::default()
        };
        if !is_far(network) {
            return usual;
        }
        let paths = Paths::new(network);
        // A walk round all ranks passes every link that is between any two.
        let tour = paths.tour(network, 0);
        let next = tour.iter().skip(1).chain(&tour);
        let rates = tour.iter().zip(next).map(|(a, b)| match a == b {
            true => f64::INFINITY,
            false => paths.bytes_per_s(*a, *b).min(paths.bytes_per_s(*b, *a)),
        });
        let slowest = rates.fold(f64::INFINITY, f64::min);
        // On long paths few long pieces, for each is announced and granted by itself.
        let (a, b) = paths.furthest();
        let round_trip_s = paths.latency_s(a, b) + paths.latency_s(b, a);
        let flight = (round_trip_s * slowest.min(f64::MAX)) as u64 / PIECES_IN_FLIGHT;
        let flight = flight.min(PIECE_BYTES_MAX).next_power_of_two();
        Self {
            piece_bytes: usual.piece_bytes.max(flight),
            window_bytes: ONE_WINDOW_BYTES,
            ..usual
        }
    }
}
