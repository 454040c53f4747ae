//! Trees for vectors that are not divided: the tree in which the last host receives the vector
//! soonest (Karp et al. 1993, "Optimal broadcast and summation in the LogP model").
//!
//! A host that can send does so to one new host after another:
//!
//! ```text
//!   τ + max(b/r, o)        time at which a host can send again that sends at time τ
//!   τ + λ + max(c/r, o)    time at which the receiver can send
//!
//!   b, c  bytes of the vector, and of its first chunk
//!   r     highest bottleneck rate between neighbours, in bytes per second
//!   λ     lowest latency between neighbours, in seconds
//!   o     processor time of a message: MESSAGE_NS
//! ```
//!
//! The host that can send first sends next. A receiver sends the vector on as soon as its first
//! chunk has arrived. A tree for long vectors is therefore almost a chain, one for short vectors
//! almost a star, and one in between a binomial tree.

use crate::grain::CHUNK_BYTES;
use crate::sites::Sites;
use kumi_topo::Paths;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Processor time of sending a message, in nanoseconds. An estimate, not a measurement.
const MESSAGE_NS: u64 = 3_000;

/// A tree of hosts.
pub(crate) struct Tree {
    /// Pairs of parent and child in sending order. Parents come before their children.
    pub edges: Vec<(usize, usize)>,
}

impl Tree {
    /// Builds the tree of hosts, rooted at the first, in which the last host receives a vector
    /// soonest.
    pub fn new(paths: &Paths, hosts: &[usize], bytes: u64) -> Self {
        Self {
            edges: branch(hosts, Costs::new(paths, hosts, bytes)),
        }
    }

    /// Builds three trees, in which each site receives the vector once, at its first host. The
    /// first hosts of all sites form a tree as in [`Tree::new`], or in the second and third tree a
    /// chain. A chain crosses no link twice in one direction. The hosts of each site form a tree as
    /// in [`Tree::new`], or in the third tree a chain, which keeps up with slowly arriving data.
    pub fn for_sites(paths: &Paths, sites: &Sites, bytes: u64) -> [Self; 3] {
        let firsts: Vec<usize> = sites.members.iter().map(|members| members[0]).collect();
        let soonest = |hosts: &[usize]| branch(hosts, Costs::new(paths, hosts, bytes));
        let chain = |hosts: &[usize]| -> Vec<(usize, usize)> {
            hosts.windows(2).map(|pair| (pair[0], pair[1])).collect()
        };
        let members = || sites.members.iter();
        let member_trees: Vec<_> = members().flat_map(|members| soonest(members)).collect();
        let member_chains: Vec<_> = members().flat_map(|members| chain(members)).collect();
        [
            [soonest(&firsts), member_trees.clone()],
            [chain(&firsts), member_trees],
            [chain(&firsts), member_chains],
        ]
        .map(|edges| Self {
            edges: edges.concat(),
        })
    }
}

/// Costs of sending a vector between neighbours, in nanoseconds.
#[derive(Clone, Copy)]
struct Costs {
    /// Time from the start of a send until the next one may start.
    send_ns: u64,
    /// Time from the start of a send until the receiver can send the first chunk on.
    arrival_ns: u64,
}

impl Costs {
    /// Computes the costs between neighbours in a list, by their highest rate and lowest latency.
    /// For a single host both are 0.
    fn new(paths: &Paths, hosts: &[usize], bytes: u64) -> Self {
        if hosts.len() < 2 {
            return Self {
                send_ns: 0,
                arrival_ns: 0,
            };
        }
        let pairs = || hosts.iter().zip(hosts.iter().skip(1));
        let rates = pairs().map(|(a, b)| paths.bytes_per_s(*a, *b));
        let latencies = pairs().map(|(a, b)| paths.latency_s(*a, *b));
        let bytes_per_s = rates.fold(0.0, f64::max);
        let latency_s = latencies.fold(f64::INFINITY, f64::min);
        let ns = |bytes: u64| (bytes as f64 / bytes_per_s * 1e9) as u64;
        Self {
            send_ns: ns(bytes).max(MESSAGE_NS),
            arrival_ns: (latency_s * 1e9) as u64 + ns(bytes.min(CHUNK_BYTES)).max(MESSAGE_NS),
        }
    }
}

/// Returns edges from the first of these hosts. Each child and the hosts below it are a run of the
/// list, so they are close together.
fn branch(hosts: &[usize], costs: Costs) -> Vec<(usize, usize)> {
    let parents = parents(hosts.len(), costs);
    let mut sizes = vec![1; hosts.len()];
    for child in (1..hosts.len()).rev() {
        sizes[parents[child]] += sizes[child];
    }
    // Start of each host's run, and of its next child's run. A host is the first in its own run.
    let mut place = vec![0; hosts.len()];
    let mut next: Vec<usize> = vec![1; hosts.len()];
    let mut edges = Vec::with_capacity(hosts.len());
    for child in 1..hosts.len() {
        let parent = parents[child];
        place[child] = next[parent];
        next[parent] += sizes[child];
        next[child] = place[child] + 1;
        edges.push((hosts[place[parent]], hosts[place[child]]));
    }
    edges
}

/// Returns the parent of each host. Hosts are numbered in the order in which they receive.
fn parents(hosts: usize, costs: Costs) -> Vec<usize> {
    let mut parents = vec![0];
    // Times at which hosts can send, in nanoseconds, with the host.
    let mut idle = BinaryHeap::from([Reverse((0, 0))]);
    while parents.len() < hosts {
        let Some(Reverse((now_ns, parent))) = idle.pop() else {
            break;
        };
        idle.push(Reverse((now_ns + costs.send_ns, parent)));
        idle.push(Reverse((now_ns + costs.arrival_ns, parents.len())));
        parents.push(parent);
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth_and_children(hosts: usize, costs: Costs) -> (usize, usize) {
        let parents = parents(hosts, costs);
        let mut depth = vec![0; hosts];
        let mut children = vec![0; hosts];
        for child in 1..hosts {
            depth[child] = depth[parents[child]] + 1;
            children[parents[child]] += 1;
        }
        (
            *depth.iter().max().unwrap(),
            *children.iter().max().unwrap(),
        )
    }

    #[test]
    fn tree__send_and_latency_costs__choose_star_chain_or_binomial_tree() {
        let costs = |send_ns, arrival_ns| Costs {
            send_ns,
            arrival_ns,
        };
        assert_eq!(depth_and_children(9, costs(1, 1000)), (1, 8));
        assert_eq!(depth_and_children(9, costs(1000, 1)), (8, 1));
        // A binomial tree of sixteen.
        assert_eq!(depth_and_children(16, costs(100, 100)), (4, 4));
    }

    #[test]
    fn branch__any_order_of_hosts__reaches_each_host_once() {
        let hosts: Vec<usize> = (0..30).map(|host| host * 7 % 30).collect();
        let costs = Costs {
            send_ns: 30,
            arrival_ns: 70,
        };
        let edges = branch(&hosts, costs);
        let mut reached = vec![hosts[0]];
        for (parent, child) in edges {
            assert!(reached.contains(&parent) && !reached.contains(&child));
            reached.push(child);
        }
        assert_eq!(reached.len(), 30);
    }
}
