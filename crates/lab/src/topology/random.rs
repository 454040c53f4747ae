//! Random trees of switches, for properties that must hold on any tree.

use super::{Topology, TopologyError};
use std::fmt::Write as _;

/// Most switches of a random tree.
const SWITCHES_MAX: usize = 9;

impl Topology {
    /// Returns a random tree of `hosts` hosts, at least three, and at most nine switches. Each
    /// switch has three links or more, because hosts cannot detect a switch with fewer. The same
    /// seed gives the same tree.
    ///
    /// # Errors
    /// If there are too many hosts for a lab.
    pub fn random_tree(seed: u64, hosts: usize) -> Result<Self, TopologyError> {
        let text = text(seed, hosts);
        Self::parse(&format!("random-tree-{seed}"), &text)
    }
}

fn text(seed: u64, hosts: usize) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let switches = random.usize(1..=SWITCHES_MAX.min((hosts / 4).max(1)));
    let parents: Vec<usize> = (1..switches)
        .map(|switch| random.usize(0..switch))
        .collect();
    let mut links = vec![0_usize; switches];
    for (index, parent) in parents.iter().enumerate() {
        links[index + 1] += 1;
        links[*parent] += 1;
    }
    // First each switch gets the hosts that it needs. The others go to any switch that has hosts.
    let mut host_switches: Vec<usize> = Vec::with_capacity(hosts);
    for (switch, links) in links.iter().enumerate() {
        host_switches.extend(std::iter::repeat_n(switch, 3_usize.saturating_sub(*links)));
    }
    let populated = host_switches.clone();
    while host_switches.len() < hosts {
        host_switches.push(populated[random.usize(0..populated.len())]);
    }
    random.shuffle(&mut host_switches);
    let mut text = format!("name = \"random-tree-{seed}\"\nfabric = \"emulator\"\n");
    // Writing into a string cannot fail.
    for host in 1..=host_switches.len() {
        let _ = write!(text, "[[host]]\nname = \"h{host}\"\n");
    }
    for switch in 1..=switches {
        let _ = write!(
            text,
            "[[switch]]\nname = \"s{switch}\"\nport_queue = \"64KiB\"\n"
        );
    }
    let mut link = |ends: String, mbps: u64| {
        let delay_us = random.u64(100..400);
        let _ = write!(
            text,
            "[[link]]\nbetween = [{ends}]\nrate = \"{mbps}Mbit\"\ndelay = \"{delay_us}us\"\n"
        );
    };
    let mut rates = fastrand::Rng::with_seed(seed ^ u64::MAX);
    for (host, switch) in host_switches.iter().enumerate() {
        let mbps = [5, 10][rates.usize(0..2)];
        link(format!("\"h{}:eth1\", \"s{}\"", host + 1, switch + 1), mbps);
    }
    for (index, parent) in parents.iter().enumerate() {
        let mbps = [10, 20, 40][rates.usize(0..3)];
        link(format!("\"s{}\", \"s{}\"", index + 2, parent + 1), mbps);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tree__any_seed__is_valid_and_reproducible() {
        for seed in 0..50 {
            let tree = Topology::random_tree(seed, 64).unwrap();
            assert_eq!(tree.hosts.len(), 64);
            assert_eq!(tree.links.len(), 64 + tree.switches.len() - 1);
            assert!(tree.network().is_some(), "seed {seed}");
            assert_eq!(Topology::random_tree(seed, 64).unwrap(), tree);
        }
        let error = Topology::random_tree(1, 1000).unwrap_err().to_string();
        let expected = "random-tree-1:1: host: 1000 hosts: expected 1 to 250 [[host]] entries";
        assert_eq!(error, expected);
    }
}
