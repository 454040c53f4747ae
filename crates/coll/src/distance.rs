//! Distances between hosts: whether a network is multi-site, and whom to send to first.

use crate::plan::PORT_BYTES;
use kumi_topo::{Network, Paths};

/// Round-trip time up to which hosts are close together, in seconds: ranks of one host, or hosts on
/// one floor. It is chosen by judgement.
const MULTI_SITE_S: f64 = 1e-3;

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

fn round_trip_s(paths: &Paths, a: usize, b: usize) -> f64 {
    paths.latency_s(a, b) + paths.latency_s(b, a)
}

/// Returns the other hosts in the order in which `host` begins its blocks of an all-to-all that
/// sends all at once: the next host, the one after it, and so on, so that the first blocks of all
/// hosts go to different ones. In a multi-site network, hosts on far sites are before nearer ones,
/// because their blocks arrive last. Round trips count as equal within a factor of two.
pub fn sending_order(network: &Network, host: usize) -> Vec<usize> {
    let paths = Paths::new(network);
    let hosts = paths.hosts();
    let mut others: Vec<usize> = (1..hosts).map(|ahead| (host + ahead) % hosts).collect();
    if is_multi_site_on(&paths) {
        let furthest = furthest_s(&paths);
        others.sort_by_key(|other| {
            let apart_s = round_trip_s(&paths, host, *other).max(MULTI_SITE_S);
            (furthest / apart_s).log2() as u32
        });
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use kumi_topo::{Delay, End, Link};

    /// Three switches in a row with links of `first_ms` and `second_ms`, and two hosts on each.
    fn row(first_ms: u64, second_ms: u64) -> Network {
        let mut network = even_tree(&[0, 0, 1], 500, &[0, 1, 2, 0, 1, 2], 1000);
        let is_trunk = |link: &&mut Link| matches!(link.ends, [End::Switch(_), End::Switch(_)]);
        let trunks = network.links.iter_mut().filter(is_trunk);
        for (trunk, ms) in trunks.zip([first_ms, second_ms]) {
            trunk.latency = Delay::from_ns(ms * 1_000_000);
        }
        network
    }

    #[test]
    fn sending_order__one_site__begins_with_the_next_host() {
        assert_eq!(sending_order(&row(0, 0), 4), [5, 0, 1, 2, 3]);
    }

    #[test]
    fn sending_order__sites__begins_with_the_furthest() {
        // Hosts 2 and 5 are 25 ms from hosts 0 and 3, and 20 ms from 1 and 4.
        assert_eq!(sending_order(&row(5, 20), 0), [2, 5, 1, 4, 3]);
        assert_eq!(sending_order(&row(5, 20), 2), [3, 4, 0, 1, 5]);
        assert_eq!(sending_order(&row(5, 20), 4), [5, 2, 0, 3, 1]);
    }
}
