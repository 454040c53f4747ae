//! Finds links that are slower than the file says, from the goodput between pairs of hosts.
//!
//! A slow pair has a slow link on its path. A pair at the written rate has none. Among the links
//! that no fast pair uses, the one that explains the most slow pairs is taken as slow. This repeats
//! until all slow pairs are explained. It names a trunk rather than every host behind it.

use crate::compare::Difference;
use crate::ethernet::PLAIN_TCP;
use crate::network::Network;
use crate::paths::{DirectedLink, Paths};
use crate::quantity::Rate;
use std::collections::BTreeMap;

/// Goodput of one transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct Came {
    /// Name of the sending host.
    pub from: String,
    /// Name of the receiving host.
    pub to: String,
    /// Goodput in bits per second, without headers.
    pub bps: f64,
}

/// A transfer is slow below this share of the goodput that the file allows.
const SLOW_SHARE: f64 = 0.85;

/// Transfers of a pair that count: the median of the latest ones.
const LATEST: usize = 15;

/// A pair of hosts with at least one transfer.
struct Pair {
    links: Vec<DirectedLink>,
    bps: f64,
    is_slow: bool,
}

/// Returns the network with the rates of slow links corrected, and the corrections. `transfers` is
/// in the order of arrival. Hosts that the network does not contain are ignored.
pub fn corrected(network: &Network, transfers: &[Came]) -> (Network, Vec<Difference>) {
    let paths = Paths::new(network);
    let pairs = pairs(network, &paths, transfers);
    let mut is_fast = vec![false; paths.directed_links()];
    for pair in pairs.iter().filter(|pair| !pair.is_slow) {
        pair.links
            .iter()
            .for_each(|link| is_fast[link.0 as usize] = true);
    }
    let mut unexplained: Vec<&Pair> = pairs.iter().filter(|pair| pair.is_slow).collect();
    let mut network = network.clone();
    let mut differences = Vec::new();
    loop {
        let mut explains: BTreeMap<DirectedLink, (usize, f64)> = BTreeMap::new();
        for pair in &unexplained {
            // A duplex limit belongs to a host, not to a link.
            let links = pair
                .links
                .iter()
                .filter(|link| paths.limited(**link).is_none());
            for link in links.filter(|link| !is_fast[link.0 as usize]) {
                let (count, best_bps) = explains.entry(*link).or_default();
                *count += 1;
                *best_bps = best_bps.max(pair.bps);
            }
        }
        let best = explains.iter().max_by_key(|(_, (count, _))| *count);
        let Some((link, (_, bps))) = best.map(|(link, evidence)| (*link, *evidence)) else {
            return (network, differences);
        };
        unexplained.retain(|pair| !pair.links.contains(&link));
        let slow_link = &mut network.links[link.link()];
        let (written, measured) = (
            slow_link.rates[link.direction()],
            Rate::measured(bps / PLAIN_TCP),
        );
        let Some(measured) = measured.filter(|measured| measured.bps() < written.bps()) else {
            continue;
        };
        slow_link.rates[link.direction()] = measured;
        let ends = slow_link.ends;
        let [from, to] = [link.direction(), 1 - link.direction()]
            .map(|end| network.name_of(ends[end]).to_owned());
        differences.push(Difference::Rate {
            from,
            to,
            written,
            measured,
        });
    }
}

fn pairs(network: &Network, paths: &Paths, transfers: &[Came]) -> Vec<Pair> {
    let mut by_pair: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for transfer in transfers {
        if let (Some(from), Some(to)) = (network.host(&transfer.from), network.host(&transfer.to)) {
            if from != to {
                by_pair.entry((from, to)).or_default().push(transfer.bps);
            }
        }
    }
    let pairs = by_pair.into_iter().map(|((from, to), samples)| {
        let mut latest = samples[samples.len().saturating_sub(LATEST)..].to_vec();
        latest.sort_by(f64::total_cmp);
        let bps = latest[latest.len() / 2];
        let expected_bps = paths.bytes_per_s(from, to) * 8.0 * PLAIN_TCP;
        Pair {
            links: paths.links(from, to),
            bps,
            is_slow: bps < expected_bps * SLOW_SHARE,
        }
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        let mut text = "name = \"two\"\nswitch = [{ name = \"s\" }, { name = \"t\" }]\n".to_owned();
        for host in 0..6 {
            let switch = if host < 3 { "s" } else { "t" };
            text += &format!(
                "[[host]]\nname = \"h{host}\"\n[[link]]\nbetween = [\"h{host}\", \"{switch}\"]\nrate = \"1Gbit\"\n"
            );
        }
        text += "[[link]]\nbetween = [\"s\", \"t\"]\nrate = \"1Gbit\"\n";
        Network::parse("two", &text).unwrap()
    }

    fn transfer(from: usize, to: usize, bps: f64) -> Came {
        Came {
            from: format!("h{from}"),
            to: format!("h{to}"),
            bps,
        }
    }

    #[test]
    fn corrected__slow_trunk__is_the_only_difference() {
        let mut transfers = Vec::new();
        for from in 0..3 {
            for to in 3..6 {
                transfers.extend([transfer(from, to, 236e6), transfer(to, from, 935e6)]);
            }
        }
        transfers.extend([transfer(0, 1, 930e6), transfer(1, 2, 935e6)]);
        let (network, differences) = corrected(&network(), &transfers);
        let messages: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].starts_with("from s to t: 251"), "{messages:?}");
        assert!(messages[0].ends_with("measured, 1Gbit in the file"));
        assert_eq!(network.links[6].rates[1].bps(), 1_000_000_000);
    }

    #[test]
    fn corrected__slow_host__is_distinguished_by_the_flows_to_its_neighbours() {
        let transfers = [
            transfer(3, 0, 95e6),
            transfer(4, 0, 94e6),
            transfer(3, 1, 930e6),
            transfer(4, 1, 930e6),
        ];
        let (_, differences) = corrected(&network(), &transfers);
        assert!(
            differences.len() == 1 && differences[0].to_string().starts_with("from s to h0: 10")
        );
    }

    #[test]
    fn corrected__only_some_flows_slow__changes_nothing() {
        let mut transfers = vec![transfer(0, 1, 300e6); 3];
        transfers.extend(vec![transfer(0, 1, 940e6); 5]);
        transfers.push(transfer(9, 1, 1.0));
        assert_eq!(corrected(&network(), &transfers).1, []);
    }
}
