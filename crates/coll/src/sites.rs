//! Divides a network into sites: groups of hosts with only links between them that are neither
//! slower nor longer than access links. A host whose access link is much slower than the others' is
//! a site by itself.
//!
//! Cutting a tree of switches at its slow and long links gives parts. Parts with hosts are sites. A
//! part without hosts can be a router between four sites. Data for every site enters it once, along
//! a tree of sites.

use kumi_topo::{End, Network, Paths};

/// A link between switches is cut if its rate is below this share of the slowest access link's
/// rate. Hosts that are sites by themselves do not count.
const SLOW_SHARE: f64 = 0.9;

/// A host is a site by itself if its access link's rate, in the slower direction, is below this
/// share of the median sending rate (ADR 034).
const SLOW_HOST_SHARE: f64 = 0.7;

/// Hosts are sites by themselves only if at most one host in this number is slow. More slow hosts
/// than that are no exception (ADR 034).
const SLOW_HOSTS_DIVISOR: usize = 4;

/// A link between switches is also cut if its latency exceeds this multiple of the longest access
/// link's latency.
const LONG_TIMES: f64 = 20.0;

/// The sites of a network that has more than one.
pub(crate) struct Sites {
    /// For each host, the index of its site.
    pub site_of: Vec<usize>,
    /// For each site, its hosts in the order of a walk that crosses no link twice in one direction.
    pub members: Vec<Vec<usize>>,
    /// For each host, the next one in its site's ring.
    pub next: Vec<usize>,
    /// For each site, the pairs of sites along which its data spreads, in order: sender and
    /// receiver. The sender has the data by then.
    pub spread: Vec<Vec<(usize, usize)>>,
}

impl Sites {
    /// Divides a network at its slow and long links. Returns `None` if the result is one site, or
    /// one site per host.
    pub fn new(network: &Network, paths: &Paths, order: &[usize]) -> Option<Self> {
        let is_cut = cut_links(network, paths);
        let part_of = parts(network, &is_cut);
        // Parts with hosts are sites, in the order of the walk.
        let mut site_of_part = vec![None; network.hosts.len() + network.switches.len()];
        let mut site_of = vec![0; network.hosts.len()];
        let mut members: Vec<Vec<usize>> = Vec::new();
        for host in order.iter().copied() {
            let site = *site_of_part[part_of[host]].get_or_insert(members.len());
            members.resize(members.len().max(site + 1), Vec::new());
            members[site].push(host);
            site_of[host] = site;
        }
        if members.len() < 2 || members.len() == order.len() {
            return None;
        }
        let adjacent = adjacent_parts(network, &is_cut, &part_of);
        let spread = members.iter().map(|hosts| {
            let mut spread = Spread {
                adjacent: &adjacent,
                site_of_part: &site_of_part,
                edges: Vec::new(),
            };
            let part = part_of[hosts[0]];
            let from = site_of_part[part].unwrap_or(0);
            spread.visit(part, None, from);
            spread.edges
        });
        let mut next = vec![0; order.len()];
        for members in &members {
            let successors = members.iter().cycle().skip(1);
            for (host, successor) in members.iter().zip(successors) {
                next[*host] = *successor;
            }
        }
        Some(Self {
            spread: spread.collect(),
            next,
            site_of,
            members,
        })
    }
}

/// Returns whether each link is between sites.
fn cut_links(network: &Network, paths: &Paths) -> Vec<bool> {
    let slowest = |bps: [kumi_topo::Rate; 2]| bps[0].bps().min(bps[1].bps()) as f64 / 8.0;
    let hosts = 0..network.hosts.len();
    let mut rates: Vec<f64> = hosts
        .filter_map(|host| paths.sending_bytes_per_s(host))
        .collect();
    rates.sort_by(f64::total_cmp);
    let usual = rates.get(rates.len() / 2).copied().unwrap_or(f64::INFINITY);
    let slow = rates.partition_point(|rate| *rate < usual * SLOW_HOST_SHARE);
    let are_few = slow * SLOW_HOSTS_DIVISOR <= rates.len();
    let least = if are_few {
        usual * SLOW_HOST_SHARE
    } else {
        0.0
    };
    let slowest_host = rates.iter().copied().find(|rate| *rate >= least);
    let slowest_host = slowest_host.unwrap_or(f64::INFINITY);
    let own = network.links.iter().filter(|link| leads_to_host(link.ends));
    let longest_ns = own.map(|link| link.latency.ns()).max().unwrap_or(0).max(1);
    let is_cut = network.links.iter().map(|link| {
        let bytes_per_s = slowest(link.rates);
        if leads_to_host(link.ends) {
            return bytes_per_s < least;
        }
        let is_slow = bytes_per_s < slowest_host * SLOW_SHARE;
        let is_long = link.latency.ns() as f64 > longest_ns as f64 * LONG_TIMES;
        is_slow || is_long
    });
    is_cut.collect()
}

fn leads_to_host(ends: [End; 2]) -> bool {
    ends.iter().any(|end| matches!(end, End::Host(_)))
}

/// Returns the part of each node after the cuts, named by one of its nodes.
fn parts(network: &Network, is_cut: &[bool]) -> Vec<usize> {
    let neighbours = network.neighbours();
    let mut part_of = vec![usize::MAX; neighbours.len()];
    for first in 0..neighbours.len() {
        let mut waiting = vec![first];
        while let Some(node) = waiting.pop() {
            if part_of[node] != usize::MAX {
                continue;
            }
            part_of[node] = first;
            let uncut = neighbours[node].iter().filter(|(_, link)| !is_cut[*link]);
            waiting.extend(uncut.map(|(next, _)| *next));
        }
    }
    part_of
}

/// Returns, for each part, the parts that cut links join it with.
fn adjacent_parts(network: &Network, is_cut: &[bool], part_of: &[usize]) -> Vec<Vec<usize>> {
    let mut adjacent = vec![Vec::new(); part_of.len()];
    for (link, _) in network
        .links
        .iter()
        .zip(is_cut)
        .filter(|(_, is_cut)| **is_cut)
    {
        let [a, b] = link.ends.map(|end| part_of[network.node(end)]);
        adjacent[a].push(b);
        adjacent[b].push(a);
    }
    adjacent
}

/// Walks the tree of parts from the part that has the data.
struct Spread<'a> {
    adjacent: &'a [Vec<usize>],
    site_of_part: &'a [Option<usize>],
    edges: Vec<(usize, usize)>,
}

impl Spread<'_> {
    /// Brings the data of site `from` to a part and to all parts behind it. Returns a site that has
    /// it afterwards: the part itself, or the last one that was reached through it. A part without
    /// hosts cannot relay. Its neighbours pass the data from one to the next, so that every link is
    /// crossed once in each direction.
    fn visit(&mut self, part: usize, previous: Option<usize>, from: usize) -> usize {
        let mut holder = from;
        if let Some(site) = self.site_of_part[part] {
            if previous.is_some() {
                self.edges.push((from, site));
            }
            holder = site;
        }
        let adjacent = &self.adjacent[part];
        let place = adjacent.iter().position(|next| Some(*next) == previous);
        let first = place.map_or(0, |place| place + 1);
        let others = adjacent.len() - usize::from(place.is_some());
        for step in 0..others {
            let next = adjacent[(first + step) % adjacent.len()];
            let reached = self.visit(next, Some(part), holder);
            if self.site_of_part[part].is_none() {
                holder = reached;
            }
        }
        holder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::tree;
    use kumi_topo::Rate;

    /// Returns the sites of a network with two hosts on each of these switches, except the bare
    /// ones. Each switch is linked to an earlier one, by a slow link.
    fn slow(switches: &[usize], bare: &[usize]) -> Sites {
        let occupied = (0..switches.len()).filter(|switch| !bare.contains(switch));
        let hosts: Vec<_> = occupied
            .flat_map(|switch| [(switch, 1000, 10); 2])
            .collect();
        let mut network = tree(switches, &hosts);
        for link in &mut network.links {
            let mbps = if leads_to_host(link.ends) { 1000 } else { 250 };
            link.rates = [Rate::from_bps(mbps * 1_000_000).unwrap(); 2];
        }
        let paths = Paths::new(&network);
        let order = paths.tour(&network, 0);
        Sites::new(&network, &paths, &order).unwrap()
    }

    #[test]
    fn spread__sites_around_a_switch_without_hosts__goes_from_site_to_site() {
        let sites = slow(&[0, 0, 0, 0], &[0]);
        assert_eq!(sites.members.len(), 3);
        for (first, edges) in sites.spread.iter().enumerate() {
            let others: Vec<usize> = (1..3).map(|step| (first + step) % 3).collect();
            let forward = [(first, others[0]), (others[0], others[1])];
            let backward = [(first, others[1]), (others[1], others[0])];
            assert!(*edges == forward || *edges == backward, "{edges:?}");
        }
    }

    #[test]
    fn spread__sites_in_a_row__is_relayed_by_the_sites_between() {
        let sites = slow(&[0, 0, 1], &[]);
        let site = |host: usize| sites.site_of[host];
        assert_eq!(
            sites.spread[site(0)],
            [(site(0), site(2)), (site(2), site(4))],
            "{:?}",
            sites.spread
        );
        let mut from_middle = sites.spread[site(2)].clone();
        from_middle.sort_unstable();
        let mut expected = [(site(2), site(0)), (site(2), site(4))];
        expected.sort_unstable();
        assert_eq!(from_middle, expected);
    }

    #[test]
    fn sites__equal_links__are_not_found() {
        let network = tree(&[0], &[(0, 1000, 10); 4]);
        let paths = Paths::new(&network);
        assert!(Sites::new(&network, &paths, &[0, 1, 2, 3]).is_none());
    }
}
