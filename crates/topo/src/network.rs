//! Hosts, switches and links, as they were measured or written down.

use crate::quantity::{Delay, Rate};

/// Most hosts of a network. A check's proof takes a bit for each pair, twice: 64 MB of as many.
pub const HOSTS_MAX: usize = 16_384;

/// Most switches of a network: of 16 ports each they join all those hosts.
pub const SWITCHES_MAX: usize = 4096;

/// A host: a leaf of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// What it sends and receives at once, added up, where that is less than its link carries both ways:
    /// a relay is held up by it.
    pub both_ways: Option<Rate>,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
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
    /// Its two ends.
    pub ends: [End; 2],
    /// What it carries, from the first end to the second and back.
    pub rates: [Rate; 2],
    /// One way, in either direction.
    pub latency: Delay,
}

/// A sound description of a network: one tree, of which every host is a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Switches.
    pub switches: Vec<Switch>,
    /// Links: one less than hosts and switches together.
    pub links: Vec<Link>,
}

impl Network {
    /// The index of the host of this name.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// The name of an end.
    pub fn name_of(&self, end: End) -> &str {
        match end {
            End::Host(host) => &self.hosts[host].name,
            End::Switch(switch) => &self.switches[switch].name,
        }
    }

    /// Hosts and switches under one numbering, hosts first.
    pub fn node(&self, end: End) -> usize {
        match end {
            End::Host(host) => host,
            End::Switch(switch) => self.hosts.len() + switch,
        }
    }

    /// What stands under a number of [`Network::node`].
    pub(crate) fn end(&self, node: usize) -> End {
        match node.checked_sub(self.hosts.len()) {
            Some(switch) => End::Switch(switch),
            None => End::Host(node),
        }
    }

    /// By host, the switch it hangs from, if that is what it hangs from.
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

    /// The links of each node, as the other node and the link's index, in the order of the links.
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
