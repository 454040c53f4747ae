//! The order in which a host begins the blocks of an all-to-all that sends all at once.

use crate::distance::{MULTI_SITE_S, furthest_s, is_multi_site_on, round_trip_s};
use kumi_topo::{Network, Paths};
use std::collections::BTreeMap;

/// Returns the other hosts in the order in which `host` begins its blocks of an all-to-all that
/// sends all at once. Far sites are before nearer ones, because their blocks arrive last: lower
/// classes are first, and in a network that is not multi-site all hosts have class 0.
///
/// ```text
///   class = floor(log2(longest round trip / max(round trip, 1 ms)))
/// ```
///
/// Within a class the order is that of the numbers. It begins at a place that is different for each
/// host of a site, so that the first blocks of a site go to different hosts.
pub fn sending_order(network: &Network, host: usize) -> Vec<usize> {
    let paths = Paths::new(network);
    let (is_multi_site, longest_s) = (is_multi_site_on(&paths), furthest_s(&paths));
    let mut classes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for other in (0..paths.hosts()).filter(|other| *other != host) {
        let apart_s = round_trip_s(&paths, host, other).max(MULTI_SITE_S);
        let class = match is_multi_site {
            true => (longest_s / apart_s).log2() as u32,
            false => 0,
        };
        classes.entry(class).or_default().push(other);
    }
    let nearest = classes.values().next_back();
    let lower = nearest.map_or(0, |near| near.iter().filter(|other| **other < host).count());
    for others in classes.values_mut() {
        let place = lower % others.len();
        others.rotate_left(place);
    }
    classes.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use kumi_topo::{Delay, End, Link};
    use std::collections::BTreeSet;

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
        assert_eq!(sending_order(&row(0, 0), 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn sending_order__sites__begins_with_the_furthest() {
        // Hosts 2 and 5 are 25 ms from hosts 0 and 3, and 20 ms from 1 and 4.
        assert_eq!(sending_order(&row(5, 20), 0), [2, 5, 1, 4, 3]);
        assert_eq!(sending_order(&row(5, 20), 3), [5, 2, 4, 1, 0]);
        assert_eq!(sending_order(&row(5, 20), 2), [0, 1, 3, 4, 5]);
        assert_eq!(sending_order(&row(5, 20), 4), [5, 2, 3, 0, 1]);
    }

    #[test]
    fn sending_order__two_sites__begins_with_another_host_for_each() {
        let mut two = even_tree(&[0, 0], 500, &[[0; 8], [1; 8]].concat(), 1000);
        let is_trunk = |link: &&mut Link| matches!(link.ends, [End::Switch(_), End::Switch(_)]);
        two.links.iter_mut().find(is_trunk).unwrap().latency = Delay::from_ns(10_000_000);
        // At each place of the order, all hosts of a site have different ones.
        for place in 0..15 {
            for site in [0..8, 8..16] {
                let chosen: BTreeSet<usize> =
                    site.map(|host| sending_order(&two, host)[place]).collect();
                assert_eq!(chosen.len(), 8, "{place}");
            }
        }
    }
}
