//! The network as the ranks of a job use it.

use crate::network::{End, Host, Link, Network, Switch};
use crate::paths::Paths;
use crate::quantity::{Delay, Rate};

/// Rate between ranks of one host. It exceeds every link between hosts, so it never limits a plan.
const INSIDE_RATE: Rate = match Rate::from_bps(400_000_000_000) {
    Some(rate) => rate,
    None => panic!("a rate"),
};

/// The same in bytes per second. A rank with this access-link rate shares its host's link with
/// other ranks.
pub const INSIDE_BYTES_PER_S: f64 = INSIDE_RATE.bps() as f64 / 8.0;

/// Latency of a hop inside a host, in nanoseconds.
const INSIDE_NS: u64 = 500;

impl Network {
    /// Returns the network with ranks in place of hosts. Rank *i* runs on the host with index
    /// `hosts[i]`. A host with several ranks becomes a switch. Hosts without ranks are removed.
    pub fn of_ranks(&self, hosts: &[usize]) -> Self {
        let mut ranks_by_host: Vec<Vec<usize>> = vec![Vec::new(); self.hosts.len()];
        for (rank, host) in hosts.iter().enumerate() {
            ranks_by_host[*host].push(rank);
        }
        let mut switches = self.switches.clone();
        // The end that represents each host.
        let mut ends: Vec<Option<End>> = Vec::with_capacity(self.hosts.len());
        for (host, ranks) in self.hosts.iter().zip(&ranks_by_host) {
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
        for (host, ranks) in ranks_by_host.iter().enumerate() {
            if let (Some(switch), true) = (ends[host], ranks.len() > 1) {
                links.extend(ranks.iter().map(|rank| Link {
                    ends: [End::Host(*rank), switch],
                    rates: [INSIDE_RATE; 2],
                    latency: Delay::from_ns(INSIDE_NS),
                }));
            }
        }
        let names = hosts.iter().enumerate();
        let rank_hosts = names.map(|(rank, host)| Host {
            name: format!("rank {rank} on {}", self.hosts[*host].name),
            both_ways: self.hosts[*host].both_ways,
        });
        Self {
            name: self.name.clone(),
            hosts: rank_hosts.collect(),
            switches,
            links,
        }
    }

    /// Returns hosts on one switch with equal links, the assumption for hosts without a network
    /// file.
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

    /// Returns the share of the network that a communicator may use while others of its job are
    /// active. `members` and `job` hold a host index for each rank.
    ///
    /// The share of a link is members ÷ job's ranks, both counted on the side of the link with
    /// fewer ranks of the job. Communicators without common ranks therefore never exceed a link's
    /// rate together.
    #[must_use]
    pub fn share_of(&self, members: &[usize], job: &[usize]) -> Self {
        let paths = Paths::new(self);
        let ranks_before = |hosts: &[usize]| {
            let mut ranks = vec![0.0; self.hosts.len()];
            for host in hosts {
                ranks[*host] += 1.0;
            }
            paths.sum_before(&ranks)
        };
        let (members, job) = (ranks_before(members), ranks_before(job));
        let mut network = self.clone();
        for (index, link) in network.links.iter_mut().enumerate() {
            let ends = [2 * index, 2 * index + 1];
            let side = ends[usize::from(job[ends[1]] < job[ends[0]])];
            if members[side] > 0.0 && members[side] < job[side] {
                let share = members[side] / job[side];
                let shared = |rate: Rate| Rate::from_bps((rate.bps() as f64 * share) as u64);
                link.rates = link.rates.map(|rate| shared(rate).unwrap_or(rate));
            }
        }
        network
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paths;
    use proptest::prelude::*;

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
        assert_eq!(paths.bytes_per_s(0, 2), INSIDE_RATE.bps() as f64 / 8.0);
        // Both ranks send over the access link of `c`.
        assert_eq!(paths.links(0, 1)[1..], paths.links(2, 1)[1..]);
        assert_eq!(paths.bytes_per_s(0, 1), 125e6);
    }

    #[test]
    fn ranks__all_on_one_host__still_form_a_tree() {
        let network = three().of_ranks(&[1, 1]);
        let paths = Paths::new(&network);
        assert_eq!(paths.links(0, 1).len(), 2);
    }

    proptest! {
        #[test]
        fn capacity_shares__ranks_split_into_any_groups__add_up_to_at_most_the_link(
            switches in prop::collection::vec(0_usize..8, 1..6),
            ranks in prop::collection::vec((0_usize..10, 0_usize..4), 1..20),
            hosts in prop::collection::vec(0_usize..8, 10),
        ) {
            let rate = [Rate::from_bps(1_000_000_000).unwrap(); 2];
            let link = |a: End, b: End| Link { ends: [a, b], rates: rate, latency: Delay::ZERO };
            let trunks = (1..switches.len()).map(|index| link(End::Switch(index), End::Switch(switches[index] % index)));
            let own = hosts.iter().enumerate().map(|(host, switch)| link(End::Host(host), End::Switch(switch % switches.len())));
            let network = Network {
                name: "any".to_owned(),
                hosts: (0..10).map(|index| Host { name: format!("h{index}"), both_ways: None }).collect(),
                switches: (0..switches.len()).map(|index| Switch { name: format!("s{index}") }).collect(),
                links: trunks.chain(own).collect(),
            };
            let job: Vec<usize> = ranks.iter().map(|(host, _)| *host).collect();
            let mut used = vec![0; network.links.len()];
            for part in 0..4 {
                let part_ranks = ranks.iter().filter(|(_, number)| *number == part);
                let members: Vec<usize> = part_ranks.map(|(host, _)| *host).collect();
                let shared = network.share_of(&members, &job);
                let paths = Paths::new(&shared);
                let mut weights = vec![0.0; 10];
                members.iter().for_each(|host| weights[*host] = 1.0);
                let sums = paths.sum_before(&weights);
                for (index, link) in shared.links.iter().enumerate() {
                    // A link is used if it has ranks on both sides, or on one side several ranks of
                    // one host.
                    let is_passed = sums[2 * index] > 0.0 && sums[2 * index + 1] > 0.0;
                    used[index] += if is_passed { link.rates[0].bps() } else { 0 };
                }
            }
            prop_assert!(used.iter().all(|used| *used <= 1_000_000_000), "{used:?}");
        }
    }

    #[test]
    fn capacity_share__half_of_the_ranks__is_half_the_trunk_and_all_of_each_access_link() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }, { name = "d" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["b", "s"], rate = "1Gbit" },
                { between = ["c", "t"], rate = "1Gbit" },
                { between = ["d", "t"], rate = "1Gbit" },
                { between = ["s", "t"], rate = "1Gbit" },
            ]
        "#;
        let network = Network::parse("two", text).unwrap();
        let half = network.share_of(&[0, 2], &[0, 1, 2, 3]);
        assert_eq!(half.links[4].rates[0].bps(), 500_000_000);
        assert_eq!(half.links[..4], network.links[..4]);
        assert_eq!(network.share_of(&[0, 1, 2, 3], &[0, 1, 2, 3]), network);
    }
}
