//! How finely blocks are cut, and how much of them is on its way at once.

use crate::plan::PORT_BYTES;
use kumi_topo::{Network, Paths};

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
            // Measured: with a third, links stand idle; with much more, words are late (docs/perf-log.md).
            window_bytes: 48 << 10,
            element_bytes: 1,
        }
    }
}

/// Longest piece by default: 0.07 ms on 1 Gb/s, several times what a message costs a host.
pub(crate) const PIECE_BYTES: u64 = 8 << 10;

/// Longest piece where every link is fast enough for it: beyond, a piece's own cost no longer counts.
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
        let bytes = (round_trips * there_and_back_s * bytes_per_s) as u64;
        if bytes > PORT_BYTES { bytes } else { 0 }
    };
    (0..paths.hosts()).map(of).collect()
}

impl Grain {
    /// Pieces of as many microseconds as the default ones have on 1 Gb/s, on the slowest link between ranks: the same on
    /// every rank, for what one sends in pieces the other receives so.
    pub fn on(network: &Network, element_bytes: u64) -> Self {
        let usual = Self::default();
        let paths = Paths::new(network);
        // A walk round all ranks passes every link that is between any two.
        let tour = paths.tour(network, 0);
        let next = tour.iter().skip(1).chain(&tour);
        let rates = tour.iter().zip(next).map(|(a, b)| match a == b {
            true => f64::INFINITY,
            false => paths.bytes_per_s(*a, *b).min(paths.bytes_per_s(*b, *a)),
        });
        let slowest = rates.fold(f64::INFINITY, f64::min);
        let times = (slowest * 8.0 / 1e9) as u64;
        // A power of two, for whole elements of any size.
        let times = 1 << times.clamp(1, PIECE_BYTES_MAX / usual.piece_bytes).ilog2();
        // On long paths few long pieces, for each is announced and granted by itself.
        let (a, b) = paths.furthest();
        let round_trip_s = paths.latency_s(a, b) + paths.latency_s(b, a);
        let flight = (round_trip_s * slowest.min(f64::MAX)) as u64 / PIECES_IN_FLIGHT;
        let flight = flight.min(PIECE_BYTES_MAX).next_power_of_two();
        Self {
            piece_bytes: (usual.piece_bytes * times).max(flight),
            window_bytes: usual.window_bytes * times,
            element_bytes,
        }
    }
}
