//! A network's links by the hosts that they part: what can be known of them from outside, whatever switches are called.

use crate::network::{End, Network};
use std::collections::BTreeMap;

/// Which hosts are on the first host's side of a link.
pub type Side = Vec<bool>;

/// A network's links by what they part; several in a row are one, as slow as the slowest.
#[derive(Debug, Clone)]
pub struct Sides {
    links: BTreeMap<Side, SidedLink>,
    /// By host, what it sends and receives, in bits a second.
    hosts_bps: Vec<[f64; 2]>,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct SidedLink {
    /// The end on the first host's side, and the other.
    pub ends: [String; 2],
    /// From the first host's side, and to it, in bits a second.
    pub bps: [f64; 2],
}

impl Sides {
    /// Those of a network, whose first host is the one that sides are called by.
    pub fn of(network: &Network) -> Self {
        let neighbours = network.neighbours();
        let mut links: BTreeMap<Side, SidedLink> = BTreeMap::new();
        let mut hosts_bps = vec![[f64::INFINITY; 2]; network.hosts.len()];
        for (at, link) in network.links.iter().enumerate() {
            let bps = link.rates.map(|rate| rate.bps() as f64);
            match link.ends {
                [End::Host(host), _] => hosts_bps[host] = bps,
                [_, End::Host(host)] => hosts_bps[host] = [bps[1], bps[0]],
                _ => {}
            }
            let from = network.node(link.ends[0]);
            let mut side = vec![false; network.hosts.len()];
            let mut waiting = vec![(from, at)];
            while let Some((node, by)) = waiting.pop() {
                if let End::Host(host) = network.end(node) {
                    side[host] = true;
                }
                let next = neighbours[node]
                    .iter()
                    .filter(|(_, link)| *link != by && *link != at);
                waiting.extend(next);
            }
            if side.iter().all(|is| *is) || side.iter().all(|is| !*is) {
                continue;
            }
            let mut ends = link.ends.map(|end| network.name_of(end).to_owned());
            let mut bps = bps;
            if !side[0] {
                side.iter_mut().for_each(|is| *is = !*is);
                ends.reverse();
                bps.reverse();
            }
            let of_side = links.entry(side).or_insert_with(|| SidedLink {
                ends,
                bps: [f64::INFINITY; 2],
            });
            for (least, bps) in of_side.bps.iter_mut().zip(bps) {
                *least = least.min(bps);
            }
        }
        Self { links, hosts_bps }
    }

    /// The links.
    pub fn links(&self) -> impl Iterator<Item = (&Side, &SidedLink)> {
        self.links.iter()
    }

    /// The link that parts the hosts so.
    pub fn link(&self, side: &Side) -> Option<&SidedLink> {
        self.links.get(side)
    }

    /// What a link carries from the first host's side (way 0) or to it (1), as far as the hosts of either side can fill it, in
    /// bits a second.
    pub fn filled(&self, side: &Side, link: &SidedLink, way: usize) -> f64 {
        let (mut sent, mut received) = (0.0, 0.0);
        for (is_near, [out, back]) in side.iter().zip(&self.hosts_bps) {
            match *is_near == (way == 0) {
                true => sent += out,
                false => received += back,
            }
        }
        link.bps[way].min(sent).min(received)
    }
}
