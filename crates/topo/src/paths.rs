//! What lies between two hosts of a tree.

use crate::network::{End, Network};

/// A link in one direction: twice the index in [`Network::links`], plus one from its second end to its first. Behind those
/// stand the hosts that are limited both ways at once: what such a one sends and what it receives passes one more link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectedLink(pub u32);

impl DirectedLink {
    /// The index in [`Network::links`].
    pub fn link(self) -> usize {
        (self.0 / 2) as usize
    }

    /// The way: 0 from the link's first end to its second, 1 back.
    pub fn way(self) -> usize {
        (self.0 % 2) as usize
    }
}

/// A node's place in the tree that hangs from the root.
#[derive(Debug, Clone, Copy)]
struct Place {
    parent: u32,
    depth: u32,
    /// The link to the parent, upwards and downwards.
    up: DirectedLink,
    down: DirectedLink,
}

/// A network's tree, ready for questions. Each takes as many steps as the path has links.
#[derive(Debug, Clone)]
pub struct Paths {
    places: Vec<Place>,
    hosts: usize,
    /// Bytes a second of each directed link, and of each limit.
    bytes_per_s: Vec<f64>,
    /// Of each host, what stands for its limit both ways at once.
    limits: Vec<Option<DirectedLink>>,
    /// Seconds of each link.
    latency_s: Vec<f64>,
}

impl Paths {
    /// Looks at a network.
    pub fn new(network: &Network) -> Self {
        let neighbours = network.neighbours();
        let nowhere = Place {
            parent: 0,
            depth: 0,
            up: DirectedLink(0),
            down: DirectedLink(0),
        };
        let mut places = vec![nowhere; neighbours.len()];
        // From a switch, if there is one: paths are short then.
        let root = network.hosts.len() % neighbours.len().max(1);
        let mut waiting = vec![(root, root)];
        while let Some((node, from)) = waiting.pop() {
            for (next, link) in neighbours[node].iter().copied() {
                if next == from {
                    continue;
                }
                let is_first = network.node(network.links[link].ends[0]) == node;
                let directed = |away: bool| DirectedLink(2 * link as u32 + u32::from(!away));
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
            let both = |link: DirectedLink| bytes_per_s[link.0 as usize];
            let limit = host.both_ways.map(|rate| rate.bps() as f64 / 8.0);
            // Where it is none, it is not waited for.
            let limit =
                limit.filter(|limit| place.depth > 0 && *limit < both(place.up) + both(place.down));
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

    /// Hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Directed links there are, limits with them.
    pub fn directed_links(&self) -> usize {
        self.bytes_per_s.len()
    }

    /// The directed links from one host to another, as what is sent passes them; none from a host to itself. A limit of
    /// the sender stands behind its own link, one of the receiver before its.
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

    /// The host whose limit both ways something is, with its own links to the network and from it; none of a link.
    pub fn limited(&self, limit: DirectedLink) -> Option<(usize, [DirectedLink; 2])> {
        let host = self.limits.iter().position(|one| *one == Some(limit))?;
        Some((host, [self.places[host].up, self.places[host].down]))
    }

    /// Whether a host sends less while it receives.
    pub fn is_limited(&self, host: usize) -> bool {
        self.limits[host].is_some()
    }

    /// Bytes a second of a directed link.
    pub fn link_bytes_per_s(&self, link: DirectedLink) -> f64 {
        self.bytes_per_s[link.0 as usize]
    }

    /// Bytes a second between two hosts, of the slowest link; infinite from a host to itself.
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

    /// Seconds between two hosts, one way.
    pub fn latency_s(&self, from: usize, to: usize) -> f64 {
        let mut sum = 0.0;
        self.walk(from, to, |link, _| sum += self.latency_s[link.link()]);
        sum
    }

    /// The two hosts that are furthest apart, by latency; the first twice if it is alone.
    pub fn furthest(&self) -> (usize, usize) {
        // The host furthest from any one is an end of the longest path of a tree.
        let from = |one: usize| {
            let others = (0..self.hosts).map(|other| (self.latency_s(one, other), other));
            let best = others.reduce(|best, other| if other.0 > best.0 { other } else { best });
            best.map_or(one, |(_, other)| other)
        };
        let end = from(0);
        (end, from(end))
    }

    /// Seconds that so many bytes from a host to any other take at least: on its own link.
    pub fn at_least_s(&self, from: usize, bytes: u64) -> f64 {
        let place = self.places[from];
        if place.depth == 0 {
            return 0.0;
        }
        bytes as f64 / self.link_bytes_per_s(place.up) + self.latency_s[place.up.link()]
    }

    /// Bytes a second that a host's own link takes from it; none of a host without a link of its own.
    pub fn sending_bytes_per_s(&self, host: usize) -> Option<f64> {
        let place = self.places[host];
        (place.depth > 0).then(|| self.link_bytes_per_s(place.up))
    }

    /// For each directed link, what the weights of the hosts before it add up to.
    pub fn sum_before(&self, weights: &[f64]) -> Vec<f64> {
        let all: f64 = weights.iter().sum();
        let mut below = vec![0.0; self.places.len()];
        below[..weights.len()].copy_from_slice(weights);
        let mut before = vec![0.0; self.bytes_per_s.len()];
        let mut nodes: Vec<usize> = (0..self.places.len()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(self.places[*node].depth));
        for node in nodes {
            let place = self.places[node];
            if place.depth > 0 {
                below[place.parent as usize] += below[node];
                before[place.up.0 as usize] = below[node];
                before[place.down.0 as usize] = all - below[node];
            }
        }
        before
    }

    /// Shows the links from one host to another, each with whether it leads towards the root; from both ends inwards.
    fn walk(&self, from: usize, to: usize, mut see: impl FnMut(DirectedLink, bool)) {
        let (mut low, mut high) = (from, to);
        while low != high {
            let (a, b) = (self.places[low], self.places[high]);
            if a.depth >= b.depth {
                see(a.up, true);
                low = a.parent as usize;
            } else {
                see(b.down, false);
                high = b.parent as usize;
            }
        }
    }

    /// The hosts in the order in which one walk from `root` meets them that passes no link twice in the same
    /// direction (lemma 1 of Yoshitomi and Taura). Where the walk may choose, it goes to the host first that
    /// has the most bandwidth to the root (section 4.4.2), or, limited both ways, relays at most; and of equals to a
    /// neighbour. `root` is the first.
    pub fn tour(&self, network: &Network, root: usize) -> Vec<usize> {
        let neighbours = network.neighbours();
        let order = depth_first(&neighbours, root);
        // The most bandwidth to the root of any host below a node, from the leaves up.
        let mut best = vec![0.0_f64; neighbours.len()];
        for (node, from) in order.iter().rev().copied() {
            if let End::Host(host) = network.end(node) {
                let relays = self.limits[host].map(|limit| self.link_bytes_per_s(limit) / 2.0);
                best[node] = relays
                    .unwrap_or(f64::INFINITY)
                    .min(self.bytes_per_s(host, root));
            }
            if node != root {
                best[from] = best[from].max(best[node]);
            }
        }
        let mut sorted = neighbours;
        for near in &mut sorted {
            // A stack is emptied from its end: the best last; of equals hosts behind switches, the first last.
            near.reverse();
            let is_host = |node: usize| matches!(network.end(node), End::Host(_));
            near.sort_by(|a, b| {
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

/// Every node with the one it was reached from, parents before children.
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
    fn paths__across_a_link_with_two_rates__have_that_of_their_direction() {
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
    fn links__are_in_the_order_in_which_they_are_passed() {
        let network = two();
        let paths = Paths::new(&network);
        let names = |from: usize, to: usize| {
            let links = paths.links(from, to).into_iter();
            let left = links.map(|link| network.links[link.link()].ends[link.way()]);
            left.map(|end| network.name_of(end).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0, 1), ["a", "s", "t"]);
        assert_eq!(names(1, 0), ["b", "t", "s"]);
    }

    #[test]
    fn links__of_a_host_limited_both_ways__pass_its_limit_in_either_direction() {
        let mut network = two();
        network.hosts[0].both_ways = Rate::from_bps(1_500_000_000);
        // No limit: its link carries no more.
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
    fn paths__there_and_back__share_no_directed_link() {
        let network = two();
        let paths = Paths::new(&network);
        let back = paths.links(1, 0);
        assert!(paths.links(0, 1).iter().all(|link| !back.contains(link)));
    }

    #[test]
    fn tour__with_a_choice__goes_first_where_the_root_is_reached_fastest() {
        let network = two();
        // c shares the switch and has 1 Gb/s to a, b 200 Mb/s.
        assert_eq!(Paths::new(&network).tour(&network, 0), [0, 2, 1]);
    }
}
