//! Distances between hosts: whether a network is multi-site.

use crate::plan::PORT_BYTES;
use kumi_topo::{Network, Paths};

/// Round-trip time up to which hosts are close together, in seconds: ranks of one host, or hosts on
/// one floor. It is chosen by judgement.
pub(crate) const MULTI_SITE_S: f64 = 1e-3;

/// Returns whether a network is multi-site: between the hosts that are furthest apart, the round
/// trip takes more than 1 ms, and more than [`PORT_BYTES`] are in flight.
pub fn is_multi_site(network: &Network) -> bool {
    is_multi_site_on(&Paths::new(network))
}

/// Returns the same as [`is_multi_site`].
pub(crate) fn is_multi_site_on(paths: &Paths) -> bool {
    let (a, b) = paths.furthest();
    let round_trip_s = furthest_s(paths);
    round_trip_s > MULTI_SITE_S && round_trip_s * paths.bytes_per_s(a, b) > PORT_BYTES as f64
}

/// Returns the round-trip time between the hosts that are furthest apart, in seconds.
pub(crate) fn furthest_s(paths: &Paths) -> f64 {
    let (a, b) = paths.furthest();
    round_trip_s(paths, a, b)
}

/// Returns the round-trip time between two hosts, in seconds.
pub(crate) fn round_trip_s(paths: &Paths, a: usize, b: usize) -> f64 {
    paths.latency_s(a, b) + paths.latency_s(b, a)
}
