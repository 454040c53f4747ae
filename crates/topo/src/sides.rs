//! A network's links, each identified by the two sets of hosts that it separates. This is all that
//! measurements between hosts can show, whatever the switches are called.

use crate::network::{End, Network};
use std::collections::BTreeMap;

/// For each host, whether it is on the first host's side of a link.
pub type Side = Vec<bool>;

/// A network's links by the hosts they separate. Links in series count as one, with the lowest of
/// their rates.
#[derive(Debug, Clone)]
pub struct Sides {
    links: BTreeMap<Side, SidedLink>,
    /// For each host, its sending and receiving rate, in bits per second.
    hosts_bps: Vec<[f64; 2]>,
}

/// A link between two sets of hosts.
#[derive(Debug, Clone)]
pub struct SidedLink {
    /// Names of the end on the first host's side and of the other end.
    pub ends: [String; 2],
    /// Rate from the first host's side and rate to it, in bits per second.
    pub bps: [f64; 2],
}

impl Sides {
    /// Collects the links of a network. Sides are relative to its first host.
    pub fn of(network: &Network) -> Self {
        let neighbours = network.neighbours();
        let mut links: BTreeMap<Side, SidedLink> = BTreeMap::new();
        let mut hosts_bps = vec![[f64::INFINITY; 2]; network.hosts.len()];
        for (index, link) in network.links.iter().enumerate() {
            let bps = link.rates.map(|rate| rate.bps() as f64);
            match link.ends {
                [End::Host(host), _] => hosts_bps[host] = bps,
                [_, End::Host(host)] => hosts_bps[host] = [bps[1], bps[0]],
                _ => {}
            }
            let from = network.node(link.ends[0]);
            let mut side = vec![false; network.hosts.len()];
            let mut waiting = vec![(from, index)];
            while let Some((node, previous)) = waiting.pop() {
                if let End::Host(host) = network.end(node) {
                    side[host] = true;
                }
                let next = neighbours[node]
                    .iter()
                    .filter(|(_, link)| *link != previous && *link != index);
                waiting.extend(next);
            }
            if side.iter().all(|is_in| *is_in) || side.iter().all(|is_in| !*is_in) {
                continue;
            }
            let mut ends = link.ends.map(|end| network.name_of(end).to_owned());
            let mut bps = bps;
            if !side[0] {
                side.iter_mut().for_each(|is_in| *is_in = !*is_in);
                ends.reverse();
                bps.reverse();
            }
            let sided_link = links.entry(side).or_insert_with(|| SidedLink {
                ends,
                bps: [f64::INFINITY; 2],
            });
            for (lowest, bps) in sided_link.bps.iter_mut().zip(bps) {
                *lowest = lowest.min(bps);
            }
        }
        Self { links, hosts_bps }
    }

    /// Iterates over the links.
    pub fn links(&self) -> impl Iterator<Item = (&Side, &SidedLink)> {
        self.links.iter()
    }

    /// Returns the link with these sides.
    pub fn link(&self, side: &Side) -> Option<&SidedLink> {
        self.links.get(side)
    }

    /// Returns the usable rate of a link, in bits per second. Direction 0 is from the first host's
    /// side, direction 1 is to it. The hosts of either side limit it to the rate at which they can
    /// fill the link.
    pub fn filled(&self, side: &Side, link: &SidedLink, direction: usize) -> f64 {
        let (mut sent, mut received) = (0.0, 0.0);
        for (is_first_side, [out_bps, in_bps]) in side.iter().zip(&self.hosts_bps) {
            match *is_first_side == (direction == 0) {
                true => sent += out_bps,
                false => received += in_bps,
            }
        }
        link.bps[direction].min(sent).min(received)
    }
}
