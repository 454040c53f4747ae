//! The network as the ranks of a job see it.

use crate::network::{End, Host, Link, Network, Switch};
use crate::quantity::{Delay, Rate};

/// What ranks of one host carry among each other: more than any link between hosts, so that it never decides.
const INSIDE: Rate = match Rate::from_bps(400_000_000_000) {
    Some(rate) => rate,
    None => panic!("a rate"),
};

/// What a hop inside a host takes.
const INSIDE_NS: u64 = 500;

impl Network {
    /// The network with ranks in place of hosts: rank *i* runs on the host with index `on[i]`. Several of one host
    /// hang from it as from a switch; hosts without ranks are left out.
    pub fn of_ranks(&self, on: &[usize]) -> Self {
        let mut ranks_on: Vec<Vec<usize>> = vec![Vec::new(); self.hosts.len()];
        for (rank, host) in on.iter().enumerate() {
            ranks_on[*host].push(rank);
        }
        let mut switches = self.switches.clone();
        // What stands for each host.
        let mut ends: Vec<Option<End>> = Vec::with_capacity(self.hosts.len());
        for (host, ranks) in self.hosts.iter().zip(&ranks_on) {
            ends.push(match ranks.as_slice() {
                [] => None,
                [rank] => Some(End::Host(*rank)),
                _ => {
                    switches.push(Switch {
                        name: host.name.clone(),
                    });
                    Some(End::Switch(switches.len() - 1))
                }
            });
        }
        let end_of = |end: End| match end {
            End::Host(host) => ends[host],
            End::Switch(_) => Some(end),
        };
        let mut links: Vec<Link> = Vec::new();
        for link in &self.links {
            if let [Some(a), Some(b)] = link.ends.map(end_of) {
                links.push(Link {
                    ends: [a, b],
                    ..*link
                });
            }
        }
        for (host, ranks) in ranks_on.iter().enumerate() {
            if let (Some(inside), true) = (ends[host], ranks.len() > 1) {
                links.extend(ranks.iter().map(|rank| Link {
                    ends: [End::Host(*rank), inside],
                    rates: [INSIDE; 2],
                    latency: Delay::from_ns(INSIDE_NS),
                }));
            }
        }
        let names = on.iter().enumerate();
        let hosts = names.map(|(rank, host)| Host {
            name: format!("rank {rank} on {}", self.hosts[*host].name),
            both_ways: self.hosts[*host].both_ways,
        });
        Self {
            name: self.name.clone(),
            hosts: hosts.collect(),
            switches,
            links,
        }
    }

    /// Hosts on one switch, by links that are alike: what is assumed of hosts of which nothing is known.
    pub fn star(hosts: &[&str], rate: Rate, latency: Delay) -> Self {
        let links = (0..hosts.len()).map(|host| Link {
            ends: [End::Host(host), End::Switch(0)],
            rates: [rate; 2],
            latency,
        });
        Self {
            name: "one switch".to_owned(),
            hosts: hosts
                .iter()
                .map(|name| Host {
                    name: (*name).to_owned(),
                    both_ways: None,
                })
                .collect(),
            switches: vec![Switch {
                name: "switch".to_owned(),
            }],
            links: links.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paths;

    fn three() -> Network {
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        Network::star(&["a", "b", "c"], rate, Delay::from_ns(10_000))
    }

    #[test]
    fn ranks__two_on_one_host__share_its_link() {
        let network = three().of_ranks(&[2, 0, 2]);
        let paths = Paths::new(&network);
        assert_eq!(network.hosts.len(), 3);
        assert_eq!(network.hosts[2].name, "rank 2 on c");
        assert_eq!(paths.links(0, 2).len(), 2);
        assert_eq!(paths.bytes_per_s(0, 2), INSIDE.bps() as f64 / 8.0);
        // Both leave by the link of c.
        assert_eq!(paths.links(0, 1)[1..], paths.links(2, 1)[1..]);
        assert_eq!(paths.bytes_per_s(0, 1), 125e6);
    }

    #[test]
    fn ranks__all_on_one_host__are_still_a_tree() {
        let network = three().of_ranks(&[1, 1]);
        let paths = Paths::new(&network);
        assert_eq!(paths.links(0, 1).len(), 2);
    }
}
