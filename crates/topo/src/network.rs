//! Hosts, switches and links, measured or configured.

use crate::quantity::{Delay, Rate};

/// Most hosts of a network. The checker's proof keeps two bits for each pair of hosts, 64 MB at
/// this limit.
pub const HOSTS_MAX: usize = 16_384;

/// Most switches of a network: with 16 ports each, enough for that many hosts.
pub const SWITCHES_MAX: usize = 4096;

/// A host: a leaf of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Duplex limit: sum of sending and receiving rate, if that is below the sum of its link's
    /// directions. It limits a relay.
    pub both_ways: Option<Rate>,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Name of the switch.
    pub name: String,
}

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// The host with this index in [`Network::hosts`].
    Host(usize),
    /// The switch with this index in [`Network::switches`].
    Switch(usize),
}

/// A full-duplex link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Both ends.
    pub ends: [End; 2],
    /// Rate from the first end to the second, and rate back.
    pub rates: [Rate; 2],
    /// One-way latency, the same in both directions.
    pub latency: Delay,
}

/// A valid network: one tree in which every host is a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Name of the network.
    pub name: String,
    /// Hosts; their order gives each its index.
    pub hosts: Vec<Host>,
    /// Switches; their order gives each its index.
    pub switches: Vec<Switch>,
    /// Links. There is one link fewer than hosts and switches together.
    pub links: Vec<Link>,
}

impl Network {
    /// Returns the index of the host with this name.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// Returns the name of an end.
    pub fn name_of(&self, end: End) -> &str {
        match end {
            End::Host(host) => &self.hosts[host].name,
            End::Switch(switch) => &self.switches[switch].name,
        }
    }

    /// Returns the number of an end in one numbering of hosts and switches, hosts first.
    pub fn node(&self, end: End) -> usize {
        match end {
            End::Host(host) => host,
            End::Switch(switch) => self.hosts.len() + switch,
        }
    }

    /// Returns the end with this number ([`Network::node`]).
    pub(crate) fn end(&self, node: usize) -> End {
        match node.checked_sub(self.hosts.len()) {
            Some(switch) => End::Switch(switch),
            None => End::Host(node),
        }
    }

    /// Returns the switch of each host, or `None` for a host that is not linked to a switch.
    pub fn switch_of_each(&self) -> Vec<Option<usize>> {
        let mut switch_of = vec![None; self.hosts.len()];
        for link in &self.links {
            match link.ends {
                [End::Host(host), End::Switch(switch)] | [End::Switch(switch), End::Host(host)] => {
                    switch_of[host] = Some(switch);
                }
                _ => {}
            }
        }
        switch_of
    }

    /// Returns the links of each node, as the other node and the link's index, in the order of the
    /// links.
    pub fn neighbours(&self) -> Vec<Vec<(usize, usize)>> {
        let mut neighbours = vec![Vec::new(); self.hosts.len() + self.switches.len()];
        for (index, link) in self.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| self.node(end));
            neighbours[a].push((b, index));
            neighbours[b].push((a, index));
        }
        neighbours
    }
}
