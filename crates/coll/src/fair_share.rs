//! The fair share of a connection in an all-to-all.
//!
//! ```text
//!   S = p · min C(ℓ) / K(ℓ)      burst = PORT_BYTES / max K(ℓ)      over the directed links ℓ
//!
//!   C(ℓ)  rate of ℓ, in bytes per second; for a duplex limit, of both directions together
//!   K(ℓ)  connections that cross ℓ; a duplex limit has no port, so it is left out of the burst
//!   p     payload of a full link, less the acknowledgements of the other direction
//! ```
//!
//! Where S fills two packets of the longest round trip, a window of two packets can express it on
//! that path, and its connections keep to the rate that they find. The others then have no fair
//! share either: between hosts of one site they would wait at the rate of the link between sites.

use crate::distance::furthest_s;
use crate::plan::PORT_BYTES;
use kumi_topo::ethernet::{PLAIN_TCP, WIRE_FRAME_BYTES};
use kumi_topo::{DirectedLink, Network, Paths};

/// Wire size of an acknowledgement with timestamps, in bytes: 14 + 20 + 32, FCS 4, preamble 8, gap
/// 12 (IEEE 802.3).
const WIRE_ACK_BYTES: f64 = 90.0;

/// Segments that one acknowledgement covers (RFC 9293).
const SEGMENTS_PER_ACK: f64 = 2.0;

/// Window that expresses a share, in bytes: two segments with timestamps (`CWND_MIN` of `bpf/tcp`).
const WINDOW_BYTES: f64 = 2.0 * 1448.0;

/// The part of the network that each connection of an all-to-all may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FairShare {
    /// Payload rate at which blocks of one length all end together, in bytes per second.
    pub bytes_per_s: f64,
    /// Payload that each connection may send at once, so that those of all fit the shallowest port.
    pub burst_bytes: u64,
}

impl FairShare {
    /// Returns the fair share in a network; `None` for fewer than two hosts, or if a window can
    /// express it on the longest path.
    pub fn new(network: &Network) -> Option<Self> {
        let paths = Paths::new(network);
        let hosts = paths.hosts() as f64;
        let hosts_before = paths.sum_before(&vec![1.0; paths.hosts()]);
        let crossing = |link: DirectedLink| {
            let before = hosts_before[link.0 as usize];
            before * (hosts - before)
        };
        let (mut lowest, mut most) = (f64::INFINITY, 0.0_f64);
        for link in (0..paths.directed_links()).map(|link| DirectedLink(link as u32)) {
            let limited = paths.limited(link);
            let connections: f64 = match limited {
                Some((_, links)) => links.into_iter().map(crossing).sum(),
                None => crossing(link),
            };
            if connections > 0.0 {
                lowest = lowest.min(paths.link_bytes_per_s(link) / connections);
                // A duplex limit has no port.
                if limited.is_none() {
                    most = most.max(connections);
                }
            }
        }
        let frames = SEGMENTS_PER_ACK * WIRE_FRAME_BYTES as f64;
        let data_part = frames / (frames + WIRE_ACK_BYTES);
        let bytes_per_s = lowest * PLAIN_TCP * data_part;
        let is_known = most > 0.0 && bytes_per_s * furthest_s(&paths) < WINDOW_BYTES;
        is_known.then(|| Self {
            bytes_per_s,
            burst_bytes: (PORT_BYTES as f64 * PLAIN_TCP / most) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{even_tree, tree};
    use crate::{all_to_all, bound_s};
    use kumi_topo::{Delay, End, Link, Rate};

    #[test]
    fn fair_share__any_tree__takes_the_time_of_the_bound() {
        // A trunk as fast as a host's link, with an odd host; and a host with a duplex limit.
        let two = even_tree(&[0, 0], 100, &[0, 0, 0, 1, 1], 100);
        let mut limited = even_tree(&[0], 1000, &[0; 4], 1000);
        limited.hosts[1].both_ways = Rate::from_bps(1_500_000_000);
        // Six connections cross the trunk, and three a host's link.
        for (network, most) in [(two, 6), (limited, 3)] {
            let block = 1_250_000;
            let hosts = network.hosts.len();
            let plan = all_to_all(&network, vec![block; hosts * hosts]).unwrap();
            let share = FairShare::new(&network).unwrap();
            // 1448 of 1538 bytes, and 90 more for two frames.
            let payload = 1448.0 / 1538.0 * 3076.0 / 3166.0;
            let time_s = block as f64 / share.bytes_per_s * payload;
            let bound_s = bound_s(&network, &plan);
            assert!((time_s / bound_s - 1.0).abs() < 1e-9, "{time_s} {bound_s}");
            assert_eq!(share.burst_bytes, 32_768 * 1448 / 1538 / most);
        }
        assert_eq!(FairShare::new(&tree(&[0], &[(0, 1000, 10)])), None);
    }

    /// The connections within each site would have no more than those between the sites.
    #[test]
    fn fair_share__two_sites__is_left_to_windows() {
        let mut two = even_tree(&[0, 0], 500, &[[0; 8], [1; 8]].concat(), 1000);
        assert!(FairShare::new(&two).is_some());
        let is_trunk = |link: &&mut Link| matches!(link.ends, [End::Switch(_), End::Switch(_)]);
        let trunk = two.links.iter_mut().find(is_trunk).unwrap();
        trunk.latency = Delay::from_ns(10_000_000);
        assert_eq!(FairShare::new(&two), None);
    }
}
