//! Lower bounds of the time of any plan.
//!
//! ```text
//!   cut bound      T ≥ max B(ℓ) / C(ℓ) over the directed links ℓ
//!   all-reduce     T ≥ 2 · V · (N − 1) / Σ R(h) over the hosts h
//!   latency bound  T ≥ max ( d + Σ b(h)/c over the hosts h with d(h) ≥ d ) over the distances d
//!
//!   B(ℓ)  bytes that must cross ℓ in any plan; for a duplex limit, those that the host sends and
//!         receives
//!   C(ℓ)  rate of ℓ, in bytes per second
//!   V     bytes of the vector
//!   N     number of hosts
//!   R(h)  rate at which host h sends, in bytes per second
//!   b(h)  bytes of the block that host h sends or receives
//!   c     rate of the root's access link in that direction, in bytes per second
//!   d(h)  latency between the root and host h, in seconds
//! ```
//!
//! The blocks b(h) count in a gather and a scatter. In an operation without a root, the latency
//! bound is the latency between the hosts that are furthest apart.

use crate::plan::{Operation, Plan};
use kumi_topo::{DirectedLink, Network, Paths};

/// Returns the cut bound of a plan's operation, in seconds: for each link, the bytes that must
/// cross it divided by its rate; the largest such quotient. An all-reduce has the bound of its
/// hosts as well. Latencies are not included.
pub fn bound_s(network: &Network, plan: &Plan) -> f64 {
    let paths = Paths::new(network);
    if paths.hosts() < 2 {
        return 0.0;
    }
    let links = (0..paths.directed_links()).map(|link| DirectedLink(link as u32));
    let hosts_before = paths.sum_before(&vec![1.0; paths.hosts()]);
    let must_pass = must_pass(&paths, plan);
    let times = links.map(|link| {
        let bytes = match (paths.limited(link), hosts_before[link.0 as usize] as usize) {
            // All bytes that the host sends and receives.
            (Some((_, links)), _) => links.iter().map(|link| must_pass[link.0 as usize]).sum(),
            // The link leads to a switch without hosts, so no bytes must cross it.
            (None, count) if count == 0 || count == paths.hosts() => 0.0,
            _ => must_pass[link.0 as usize],
        };
        bytes / paths.link_bytes_per_s(link)
    });
    let hosts_s = match plan.operation {
        // All hosts except one send each part to be combined, and all except one receive its sum.
        Operation::AllReduce => {
            let hosts = 0..paths.hosts();
            let bytes_per_s: f64 = hosts
                .filter_map(|host| paths.sending_bytes_per_s(host))
                .sum();
            2.0 * sum(plan) * (paths.hosts() - 1) as f64 / bytes_per_s
        }
        _ => 0.0,
    };
    times.fold(hosts_s, f64::max)
}

fn sum(plan: &Plan) -> f64 {
    plan.block_bytes.iter().sum::<u64>() as f64
}

/// Returns the latency bound of a plan's operation, in seconds: the one-way latency to the most
/// distant host. In a gather or scatter, it includes the blocks of all hosts at that distance or
/// beyond, which cross the root's access link one after another.
pub fn latency_bound_s(network: &Network, plan: &Plan) -> f64 {
    let paths = Paths::new(network);
    let Some(root) = plan.operation.root() else {
        let (a, b) = paths.furthest();
        return paths.latency_s(a, b);
    };
    let own_link = |host: usize| match plan.operation {
        Operation::Gather { .. } => paths.links(host, root).last().copied(),
        Operation::Scatter { .. } => paths.links(root, host).first().copied(),
        _ => None,
    };
    let blocks = plan.order.iter().enumerate().map(|(place, host)| {
        let link = own_link(*host).map(|link| paths.link_bytes_per_s(link));
        let block_s = link.map_or(0.0, |rate| plan.block_bytes[place] as f64 / rate);
        (paths.latency_s(root, *host), block_s)
    });
    let mut blocks: Vec<(f64, f64)> = blocks.collect();
    blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut least_s, mut sum_s) = (0.0_f64, 0.0);
    for (latency_s, block_s) in blocks {
        sum_s += block_s;
        least_s = least_s.max(latency_s + sum_s);
    }
    least_s
}

/// Returns the bytes that must cross each directed link, whatever the plan.
fn must_pass(paths: &Paths, plan: &Plan) -> Vec<f64> {
    let hosts = paths.hosts();
    if plan.operation == Operation::AllToAll {
        let mut bytes = vec![0.0; paths.directed_links()];
        for (block, block_bytes) in plan.block_bytes.iter().enumerate() {
            for link in paths.links(block / hosts, block % hosts) {
                bytes[link.0 as usize] += *block_bytes as f64;
            }
        }
        return bytes;
    }
    let total = sum(plan);
    let blocks_before = || {
        let host_bytes = plan
            .places()
            .into_iter()
            .map(|place| plan.block_bytes[place] as f64);
        paths.sum_before(&host_bytes.collect::<Vec<_>>())
    };
    // 1 if the root is on the sending side of the link, 0 if it is on the other.
    let root_before = |root: usize| {
        let mut weights = vec![0.0; hosts];
        weights[root] = 1.0;
        paths.sum_before(&weights)
    };
    let zip = |a: Vec<f64>, b: Vec<f64>, join: fn(f64, f64) -> f64| {
        a.into_iter().zip(b).map(|(a, b)| join(a, b)).collect()
    };
    match plan.operation {
        Operation::AllToAll => Vec::new(),
        Operation::Gather { root } => zip(blocks_before(), root_before(root), |bytes, weight| {
            bytes * (1.0 - weight)
        }),
        Operation::Scatter { root } => {
            let remaining = blocks_before().into_iter().map(|bytes| total - bytes);
            zip(remaining.collect(), root_before(root), |bytes, weight| {
                bytes * weight
            })
        }
        Operation::Broadcast { root } => root_before(root)
            .into_iter()
            .map(|weight| total * weight)
            .collect(),
        Operation::Reduce { root } => {
            let weights = root_before(root).into_iter();
            weights.map(|weight| total * (1.0 - weight)).collect()
        }
        Operation::AllGather => blocks_before(),
        Operation::ReduceScatter => {
            let sums = blocks_before().into_iter();
            sums.map(|bytes| total - bytes).collect()
        }
        Operation::AllReduce => vec![total; paths.directed_links()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{even_tree, tree};
    use crate::{
        Vector, all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter,
    };
    use kumi_topo::Rate;

    #[test]
    fn bound__links_of_different_rates__is_that_of_the_busiest_link() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["s", "t"], rates = ["1Gbit", "100Mbit"] },
                { between = ["t", "b"], rate = "1Gbit" },
                { between = ["t", "c"], rate = "1Gbit" },
            ]
        "#;
        let network = Network::parse("two", text).unwrap();
        let block = 1_250_000;
        let bound = |plan: Plan| (bound_s(&network, &plan) * 1e4).round() / 1e4;
        // Two blocks from t to s at 100 Mb/s; from s to t one at 1 Gb/s, and two to b.
        assert_eq!(bound(gather(&network, 0, block).unwrap()), 0.2);
        assert_eq!(bound(gather(&network, 1, block).unwrap()), 0.02);
        assert_eq!(bound(scatter(&network, 1, &[block; 3]).unwrap()), 0.1);
        assert_eq!(bound(all_to_all(&network, vec![block; 9]).unwrap()), 0.2);
        assert_eq!(bound(all_gather(&network, &[block; 3]).unwrap()), 0.2);
        assert_eq!(bound(reduce_scatter(&network, &[block; 3]).unwrap()), 0.1);
        // The vector has three blocks, and its sum is for a.
        assert_eq!(bound(all_reduce(&network, Vector::new(3 * block, 1))), 0.3);
        assert_eq!(
            bound(broadcast(&network, 0, Vector::new(3 * block, 1)).unwrap()),
            0.03
        );
    }

    #[test]
    fn bound__host_limited_both_ways__counts_sent_and_received_bytes() {
        let network = even_tree(&[0], 1000, &[0; 4], 1000);
        let block = 1_250_000;
        let free = bound_s(&network, &all_to_all(&network, vec![block; 16]).unwrap());
        let mut limited = network.clone();
        limited.hosts[1].both_ways = Rate::from_bps(1_500_000_000);
        let bound = bound_s(&limited, &all_to_all(&limited, vec![block; 16]).unwrap());
        assert!((bound / free - 2.0 / 1.5).abs() < 1e-9, "{bound} {free}");
    }

    #[test]
    fn latency_bound__hosts_at_different_distances__is_set_by_the_furthest() {
        let network = tree(&[0, 0], &[(0, 1000, 10), (0, 1000, 20), (1, 1000, 10)]);
        let paths = Paths::new(&network);
        let block = 12_500;
        let latency_s = latency_bound_s(&network, &all_to_all(&network, vec![block; 9]).unwrap());
        assert_eq!(latency_s, paths.latency_s(1, 2));
        // The access link of host 1 receives at 501 Mb/s. The nearer block may arrive earlier.
        let gather_s = latency_bound_s(&network, &gather(&network, 1, block).unwrap());
        let block_s = block as f64 * 8.0 / 501e6;
        let nearest_s = paths.latency_s(0, 1);
        let furthest_s = paths.latency_s(2, 1);
        let expected_s = (furthest_s + block_s).max(nearest_s + 2.0 * block_s);
        assert!((gather_s - expected_s).abs() < 1e-9, "{gather_s}");
    }
}
