//! Paths between two hosts of a tree.

use crate::network::{End, Network};

/// A link in one direction. Its number is twice the index in [`Network::links`], plus one for the
/// direction from the second end to the first.
///
/// The numbers after those belong to hosts with a duplex limit ([`crate::Host::both_ways`]). All
/// bytes that such a host sends and receives cross one more directed link, which has that limit as
/// its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectedLink(pub u32);

impl DirectedLink {
    /// Returns the index in [`Network::links`].
    pub fn link(self) -> usize {
        (self.0 / 2) as usize
    }

    /// Returns the direction: 0 from the link's first end to its second, 1 back.
    pub fn direction(self) -> usize {
        (self.0 % 2) as usize
    }
}

/// A node's place in the rooted tree.
#[derive(Debug, Clone, Copy)]
struct Place {
    parent: u32,
    depth: u32,
    /// The link to the parent: towards the root, and away from it.
    up: DirectedLink,
    down: DirectedLink,
}

/// A network's tree, prepared for path queries. A query takes time proportional to the length of
/// the path.
#[derive(Debug, Clone)]
pub struct Paths {
    places: Vec<Place>,
    hosts: usize,
    /// Rate of each directed link and of each duplex limit, in bytes per second.
    bytes_per_s: Vec<f64>,
    /// For each host, the directed link that represents its duplex limit.
    limits: Vec<Option<DirectedLink>>,
    /// Latency of each link, in seconds.
    latency_s: Vec<f64>,
}

impl Paths {
    /// Prepares a network.
    pub fn new(network: &Network) -> Self {
        let neighbours = network.neighbours();
        let unplaced = Place {
            parent: 0,
            depth: 0,
            up: DirectedLink(0),
            down: DirectedLink(0),
        };
        let mut places = vec![unplaced; neighbours.len()];
        // Root the tree at a switch, if there is one, to keep paths short.
        let root = network.hosts.len() % neighbours.len().max(1);
        let mut waiting = vec![(root, root)];
        while let Some((node, from)) = waiting.pop() {
            for (next, link) in neighbours[node].iter().copied() {
                if next == from {
                    continue;
                }
                let is_first = network.node(network.links[link].ends[0]) == node;
                let directed = |is_away: bool| DirectedLink(2 * link as u32 + u32::from(!is_away));
                places[next] = Place {
                    parent: node as u32,
                    depth: places[node].depth + 1,
                    up: directed(!is_first),
                    down: directed(is_first),
                };
                waiting.push((next, node));
            }
        }
        let rates = network.links.iter().flat_map(|link| link.rates);
        let latencies = network.links.iter().map(|link| link.latency);
        let mut bytes_per_s: Vec<f64> = rates.map(|rate| rate.bps() as f64 / 8.0).collect();
        let mut limits = Vec::with_capacity(network.hosts.len());
        for (host, place) in network.hosts.iter().zip(&places) {
            let rate = |link: DirectedLink| bytes_per_s[link.0 as usize];
            let limit = host.both_ways.map(|rate| rate.bps() as f64 / 8.0);
            // A limit that is not below the sum of both directions has no effect.
            let limit =
                limit.filter(|limit| place.depth > 0 && *limit < rate(place.up) + rate(place.down));
            limits.push(limit.map(|limit| {
                bytes_per_s.push(limit);
                DirectedLink(bytes_per_s.len() as u32 - 1)
            }));
        }
        Self {
            places,
            hosts: network.hosts.len(),
            bytes_per_s,
            limits,
            latency_s: latencies.map(|latency| latency.ns() as f64 / 1e9).collect(),
        }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Returns the number of directed links, duplex limits included.
    pub fn directed_links(&self) -> usize {
        self.bytes_per_s.len()
    }

    /// Returns the directed links from one host to another, in the order in which bytes cross them.
    /// The result is empty for a host and itself. A sender's duplex limit comes after its access
    /// link, a receiver's before its.
    pub fn links(&self, from: usize, to: usize) -> Vec<DirectedLink> {
        let mut links = Vec::with_capacity(6);
        let mut upwards = 0;
        self.walk(from, to, |link, is_up| {
            links.insert(upwards, link);
            upwards += usize::from(is_up);
        });
        if let Some(inner) = links.len().checked_sub(1) {
            if let Some(limit) = self.limits[to] {
                links.insert(inner.max(1), limit);
            }
            if let Some(limit) = self.limits[from] {
                links.insert(1, limit);
            }
        }
        links
    }

    /// Returns the host to which a duplex limit belongs, with its access link in both directions.
    /// Returns `None` for an ordinary link.
    pub fn limited(&self, limit: DirectedLink) -> Option<(usize, [DirectedLink; 2])> {
        let host = self.limits.iter().position(|entry| *entry == Some(limit))?;
        Some((host, [self.places[host].up, self.places[host].down]))
    }

    /// Returns whether a host has a duplex limit: it sends more slowly while it receives.
    pub fn is_limited(&self, host: usize) -> bool {
        self.limits[host].is_some()
    }

    /// Returns the rate of a directed link, in bytes per second.
    pub fn link_bytes_per_s(&self, link: DirectedLink) -> f64 {
        self.bytes_per_s[link.0 as usize]
    }

    /// Returns the bottleneck rate between two hosts, in bytes per second; infinite for a host and
    /// itself.
    pub fn bytes_per_s(&self, from: usize, to: usize) -> f64 {
        let mut slowest = f64::INFINITY;
        self.walk(from, to, |link, _| {
            slowest = slowest.min(self.link_bytes_per_s(link));
        });
        let limits = [from, to].into_iter().filter(|_| from != to);
        let limits = limits.filter_map(|host| self.limits[host]);
        limits.fold(slowest, |slowest, limit| {
            slowest.min(self.link_bytes_per_s(limit))
        })
    }

    /// Returns the one-way latency between two hosts, in seconds.
    pub fn latency_s(&self, from: usize, to: usize) -> f64 {
        let mut sum = 0.0;
        self.walk(from, to, |link, _| sum += self.latency_s[link.link()]);
        sum
    }

    /// Returns the two hosts with the highest latency between them. For a single host, returns it
    /// twice.
    pub fn furthest(&self) -> (usize, usize) {
        // In a tree, the host furthest from an arbitrary host is an end of the longest path.
        let furthest = |host: usize| {
            let others = (0..self.hosts).map(|other| (self.latency_s(host, other), other));
            let best = others.reduce(|best, other| if other.0 > best.0 { other } else { best });
            best.map_or(host, |(_, other)| other)
        };
        let end = furthest(0);
        (end, furthest(end))
    }

    /// Returns a lower bound of the time for `bytes` from a host to any other, in seconds: the time
    /// on its access link.
    pub fn min_time_s(&self, from: usize, bytes: u64) -> f64 {
        let place = self.places[from];
        if place.depth == 0 {
            return 0.0;
        }
        bytes as f64 / self.link_bytes_per_s(place.up) + self.latency_s[place.up.link()]
    }

    /// Returns the rate of a host's access link in the sending direction, in bytes per second.
    /// Returns `None` for a host without a link.
    pub fn sending_bytes_per_s(&self, host: usize) -> Option<f64> {
        let place = self.places[host];
        (place.depth > 0).then(|| self.link_bytes_per_s(place.up))
    }

    /// Returns, for each directed link, the sum of the weights of the hosts on its sending side.
    pub fn sum_before(&self, weights: &[f64]) -> Vec<f64> {
        let total: f64 = weights.iter().sum();
        let mut subtree_sums = vec![0.0; self.places.len()];
        subtree_sums[..weights.len()].copy_from_slice(weights);
        let mut sums = vec![0.0; self.bytes_per_s.len()];
        let mut nodes: Vec<usize> = (0..self.places.len()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(self.places[*node].depth));
        for node in nodes {
            let place = self.places[node];
            if place.depth > 0 {
                subtree_sums[place.parent as usize] += subtree_sums[node];
                sums[place.up.0 as usize] = subtree_sums[node];
                sums[place.down.0 as usize] = total - subtree_sums[node];
            }
        }
        sums
    }

    /// Visits the links from one host to another, from both ends inwards. The flag says whether a
    /// link leads towards the root.
    fn walk(&self, from: usize, to: usize, mut visit: impl FnMut(DirectedLink, bool)) {
        let (mut low, mut high) = (from, to);
        while low != high {
            let (a, b) = (self.places[low], self.places[high]);
            if a.depth >= b.depth {
                visit(a.up, true);
                low = a.parent as usize;
            } else {
                visit(b.down, false);
                high = b.parent as usize;
            }
        }
    }

    /// Returns the hosts in the order of a walk from `root` that crosses each link at most once in
    /// each direction (lemma 1 of the contention-free gather paper, Yoshitomi and Taura). `root` is
    /// the first.
    ///
    /// Where the walk has a choice, it visits the host with the highest bandwidth to the root first
    /// (section 4.4.2 there). For hosts with a duplex limit, their relay rate counts. Between
    /// equals it prefers a neighbour.
    pub fn tour(&self, network: &Network, root: usize) -> Vec<usize> {
        let neighbours = network.neighbours();
        let order = depth_first(&neighbours, root);
        // Highest bandwidth to the root among the hosts below each node, computed from the leaves
        // up.
        let mut best = vec![0.0_f64; neighbours.len()];
        for (node, from) in order.iter().rev().copied() {
            if let End::Host(host) = network.end(node) {
                let relay_rate = self.limits[host].map(|limit| self.link_bytes_per_s(limit) / 2.0);
                best[node] = relay_rate
                    .unwrap_or(f64::INFINITY)
                    .min(self.bytes_per_s(host, root));
            }
            if node != root {
                best[from] = best[from].max(best[node]);
            }
        }
        let mut sorted = neighbours;
        for adjacent in &mut sorted {
            // The stack is popped from its end, so the best goes last. Between equals, hosts behind
            // switches go last.
            adjacent.reverse();
            let is_host = |node: usize| matches!(network.end(node), End::Host(_));
            adjacent.sort_by(|a, b| {
                let by_rate = best[a.0].total_cmp(&best[b.0]);
                by_rate.then(is_host(a.0).cmp(&is_host(b.0)))
            });
        }
        let walk = depth_first(&sorted, root);
        let hosts = walk
            .into_iter()
            .filter_map(|(node, _)| match network.end(node) {
                End::Host(host) => Some(host),
                End::Switch(_) => None,
            });
        hosts.collect()
    }
}

/// Returns every node with the node it was reached from, parents before children.
fn depth_first(neighbours: &[Vec<(usize, usize)>], root: usize) -> Vec<(usize, usize)> {
    let mut order = Vec::with_capacity(neighbours.len());
    let mut waiting = vec![(root, root)];
    while let Some((node, from)) = waiting.pop() {
        order.push((node, from));
        let next = neighbours[node].iter().map(|(next, _)| *next);
        waiting.extend(next.filter(|next| *next != from).map(|next| (next, node)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Rate;

    const TWO_SWITCHES: &str = r#"
        name = "two"
        host = [{ name = "a" }, { name = "b" }, { name = "c" }]
        switch = [{ name = "s" }, { name = "t" }]
        link = [
            { between = ["a", "s"], rate = "1Gbit", latency = "10us" },
            { between = ["s", "t"], rates = ["100Mbit", "200Mbit"], latency = "1ms" },
            { between = ["t", "b"], rate = "1Gbit", latency = "10us" },
            { between = ["c", "s"], rate = "2Gbit", latency = "10us" },
        ]
    "#;

    fn two() -> Network {
        Network::parse("two.toml", TWO_SWITCHES).unwrap()
    }

    #[test]
    fn paths__link_with_two_rates__use_the_rate_of_their_direction() {
        let network = two();
        let paths = Paths::new(&network);
        assert_eq!(paths.links(0, 1).len(), 3);
        assert_eq!(paths.bytes_per_s(0, 1), 100e6 / 8.0);
        assert_eq!(paths.bytes_per_s(1, 0), 200e6 / 8.0);
        assert!((paths.latency_s(1, 0) - 1.02e-3).abs() < 1e-9);
        let (a, b) = paths.furthest();
        assert_eq!((a.min(b), a.max(b)), (0, 1));
        assert_eq!(paths.links(2, 2), []);
    }

    #[test]
    fn path_links__either_direction__are_in_travel_order() {
        let network = two();
        let paths = Paths::new(&network);
        let names = |from: usize, to: usize| {
            let links = paths.links(from, to).into_iter();
            let ends = links.map(|link| network.links[link.link()].ends[link.direction()]);
            ends.map(|end| network.name_of(end).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0, 1), ["a", "s", "t"]);
        assert_eq!(names(1, 0), ["b", "t", "s"]);
    }

    #[test]
    fn path_links__host_limited_both_ways__include_its_limit_in_either_direction() {
        let mut network = two();
        network.hosts[0].both_ways = Rate::from_bps(1_500_000_000);
        // This limit has no effect: the link's two directions sum to it.
        network.hosts[2].both_ways = Rate::from_bps(4_000_000_000);
        let paths = Paths::new(&network);
        let limit = DirectedLink(8);
        assert_eq!(paths.directed_links(), 9);
        assert_eq!(paths.links(0, 2)[1], limit);
        assert_eq!(paths.links(2, 0)[1], limit);
        assert_eq!(paths.limited(limit).unwrap().0, 0);
        assert!(!paths.is_limited(2) && paths.limited(DirectedLink(0)).is_none());
    }

    #[test]
    fn paths__forward_and_return__share_no_directed_link() {
        let network = two();
        let paths = Paths::new(&network);
        let back = paths.links(1, 0);
        assert!(paths.links(0, 1).iter().all(|link| !back.contains(link)));
    }

    #[test]
    fn tour__several_next_hosts__visits_the_one_fastest_to_the_root_first() {
        let network = two();
        // c shares the switch and has 1 Gb/s to a, b 200 Mb/s.
        assert_eq!(Paths::new(&network).tour(&network, 0), [0, 2, 1]);
    }
}
