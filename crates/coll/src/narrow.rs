//! Windows for ports at which a host's paths become slower than its access link ("narrow ports").
//!
//! A host that sends at the rate of its access link fills the queue of a slower port behind it. The
//! bytes that it has in flight through such a port are therefore bounded by
//!
//! ```text
//!   w = min(S + F, S / (1 − r/R))        F = r · RTT · 0.94
//!
//!   R    rate of the host's access link, in bytes per second
//!   r    rate of the port, in bytes per second
//!   RTT  round-trip time of the path, in seconds
//!   S    payload that may stand in the port: STANDING_BYTES
//!   F    payload that the path holds at rate r; 0.94 is the payload share of the wire
//! ```
//!
//! With the first bound, S bytes stand in the port while it is busy. With the second, at most S can
//! ever stand there: while w bytes arrive at rate R, w · r/R leave. The second bound holds even if
//! acknowledgements are late and arrive in bursts, as data in the other direction makes them. If
//! the second bound is lower, the path's rate is only w / RTT (ADR 033).

use kumi_topo::ethernet::PLAIN_TCP;
use kumi_topo::{INSIDE_BYTES_PER_S, Paths};

/// Payload of one host that may stand in a narrow port, in bytes: half of [`crate::PORT_BYTES`].
/// The other half is for the previous transfer (`schedule.rs`) and for headers (ADR 033).
pub(crate) const STANDING_BYTES: u64 = 16 << 10;

/// Ratio of two rates from which they count as one rate, measured twice.
const SAME_RATE: f64 = 0.99;

/// The narrow ports of one host's paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NarrowPorts {
    ports: usize,
    /// For each host, the narrow ports on the path to it, nearest first, with the bytes that may be
    /// in flight through them.
    by_peer: Vec<Vec<(u32, u64)>>,
}

impl NarrowPorts {
    /// Finds the narrow ports on a host's paths to all others.
    pub fn new(paths: &Paths, host: usize) -> Self {
        let mut links: Vec<u32> = Vec::new();
        let mut by_peer = vec![Vec::new(); paths.hosts()];
        for (peer, ports) in by_peer.iter_mut().enumerate() {
            let round_trip_s = paths.latency_s(host, peer) + paths.latency_s(peer, host);
            let path = paths.links(host, peer);
            let rates = path.iter().map(|link| paths.link_bytes_per_s(*link));
            let own_bytes_per_s = own_bytes_per_s(paths, host, peer);
            let mut slowest = own_bytes_per_s;
            for (link, bytes_per_s) in path.iter().zip(rates) {
                if !is_narrow(slowest, bytes_per_s) {
                    continue;
                }
                slowest = bytes_per_s;
                let index = links.iter().position(|number| *number == link.0);
                let port = index.unwrap_or_else(|| {
                    links.push(link.0);
                    links.len() - 1
                });
                let window = window_bytes(own_bytes_per_s, bytes_per_s, round_trip_s);
                ports.push((port as u32, window as u64));
            }
        }
        Self {
            ports: links.len(),
            by_peer,
        }
    }

    /// Returns the number of narrow ports.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Iterates over the narrow ports on the path to a host, with the bytes that may be in flight
    /// through them.
    pub fn on_path_to(&self, peer: u32) -> impl Iterator<Item = (usize, u64)> + '_ {
        let ports = self.by_peer.get(peer as usize).into_iter().flatten();
        ports.map(|(port, window_bytes)| (*port as usize, *window_bytes))
    }

    /// Returns whether the path to a host has a narrow port.
    pub fn is_on_path_to(&self, peer: u32) -> bool {
        self.on_path_to(peer).next().is_some()
    }
}

/// Returns the rate at which a host sends to another, in bytes per second: that of its access link.
/// A rank that shares the link of its machine sends at the path's rate, because the queue in front
/// of that link is the machine's own.
pub(crate) fn own_bytes_per_s(paths: &Paths, from: usize, to: usize) -> f64 {
    match paths.sending_bytes_per_s(from) {
        Some(bytes_per_s) if bytes_per_s < INSIDE_BYTES_PER_S => bytes_per_s,
        _ => paths.bytes_per_s(from, to),
    }
}

/// Returns whether a path becomes slower at a port.
pub(crate) fn is_narrow(bytes_per_s_before: f64, bytes_per_s: f64) -> bool {
    bytes_per_s < bytes_per_s_before * SAME_RATE
}

fn window_bytes(own_bytes_per_s: f64, port_bytes_per_s: f64, round_trip_s: f64) -> f64 {
    let standing_bytes = STANDING_BYTES as f64;
    let flight = port_bytes_per_s * round_trip_s * PLAIN_TCP;
    (standing_bytes + flight).min(standing_bytes / (1.0 - port_bytes_per_s / own_bytes_per_s))
}

/// Returns the rate of one transfer on a path, in bytes per second: the bottleneck rate, or one
/// window per round trip.
pub(crate) fn carried_bytes_per_s(
    own_bytes_per_s: f64,
    path_bytes_per_s: f64,
    round_trip_s: f64,
) -> f64 {
    if !is_narrow(own_bytes_per_s, path_bytes_per_s) || round_trip_s <= 0.0 {
        return path_bytes_per_s;
    }
    let window = window_bytes(own_bytes_per_s, path_bytes_per_s, round_trip_s);
    path_bytes_per_s.min(window / round_trip_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;

    #[test]
    fn window__into_a_slower_port__limits_the_standing_queue() {
        for (own, port, round_trip_s) in [
            (10e9, 2.5e9, 40e-6),
            (100e9, 25e9, 40e-6),
            (1e9, 0.9e9, 1e-4),
        ] {
            let window = window_bytes(own / 8.0, port / 8.0, round_trip_s);
            let queue_bytes = window * (1.0 - port / own);
            assert!(queue_bytes <= STANDING_BYTES as f64 + 1.0, "{queue_bytes}");
            let carried = carried_bytes_per_s(own / 8.0, port / 8.0, round_trip_s);
            assert!(carried <= port / 8.0);
        }
    }

    #[test]
    fn ports__slower_than_a_hosts_link__are_narrow_for_that_host_only() {
        let mut network = even_tree(&[0, 0], 100, &[0, 1, 1], 100);
        network.links[1].rates = [kumi_topo::Rate::from_bps(1_000_000_000).unwrap(); 2];
        let paths = Paths::new(&network);
        let fast = NarrowPorts::new(&paths, 0);
        assert_eq!(fast.ports(), 1);
        assert!(fast.is_on_path_to(1) && fast.is_on_path_to(2));
        assert_eq!(NarrowPorts::new(&paths, 1).ports(), 0);
    }
}
