//! Reads and writes the network files of Slurm's tree plugin: [`conf`] and [`yaml`].

pub mod conf;
mod names;
pub mod yaml;

use crate::network::{End, Host, Link, Network, Switch};
use crate::quantity::{Delay, Rate};
use std::collections::HashMap;
use std::fmt;

/// Reason for which a Slurm file was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmError {
    /// Path of the file.
    pub file: String,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The problem, and the accepted values.
    pub problem: String,
}

impl fmt::Display for SlurmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, problem) = (&self.file, &self.problem);
        match self.line {
            0 => write!(f, "{file}: {problem}"),
            line => write!(f, "{file}:{line}: {problem}"),
        }
    }
}

impl std::error::Error for SlurmError {}

impl SlurmError {
    fn new(file: &str, line: usize, problem: String) -> Self {
        let file = file.to_owned();
        Self {
            file,
            line,
            problem,
        }
    }
}

/// Switches, and the names of their children.
struct TreeBuilder<'a> {
    file: &'a str,
    network: Network,
    ends: HashMap<String, End>,
    /// Line, switch, and name of the child.
    joins: Vec<(usize, usize, String)>,
}

impl<'a> TreeBuilder<'a> {
    fn new(file: &'a str) -> Self {
        Self {
            file,
            network: Network {
                name: "slurm".to_owned(),
                hosts: Vec::new(),
                switches: Vec::new(),
                links: Vec::new(),
            },
            ends: HashMap::new(),
            joins: Vec::new(),
        }
    }

    /// Adds a switch and returns its index.
    fn switch(&mut self, line: usize, name: &str) -> Result<usize, SlurmError> {
        let switches = &mut self.network.switches;
        let end = End::Switch(switches.len());
        if self.ends.insert(name.to_owned(), end).is_some() {
            let problem = format!("switch `{name}` is defined twice; give each its own name");
            return Err(SlurmError::new(self.file, line, problem));
        }
        switches.push(Switch {
            name: name.to_owned(),
        });
        Ok(switches.len() - 1)
    }

    fn add_children(&mut self, line: usize, switch: usize, names: Vec<String>) {
        let joins = names.into_iter().map(|name| (line, switch, name));
        self.joins.extend(joins);
    }

    /// Builds the network. A switch may be named before its own line. A name without a line of its
    /// own is a host.
    fn build(mut self, rate: Rate) -> Result<Network, SlurmError> {
        let network = &mut self.network;
        for (_, switch, name) in self.joins {
            let end = *self.ends.entry(name.clone()).or_insert_with(|| {
                network.hosts.push(Host {
                    name,
                    both_ways: None,
                });
                End::Host(network.hosts.len() - 1)
            });
            network.links.push(Link {
                ends: [end, End::Switch(switch)],
                rates: [rate, rate],
                latency: Delay::ZERO,
            });
        }
        // The network file's own checks: one tree, hosts as leaves, valid names.
        let wrong = |problem: String| SlurmError::new(self.file, 0, problem);
        let written = network
            .to_toml()
            .map_err(|error| wrong(error.to_string()))?;
        if network.hosts.is_empty() {
            let problem = "no host in this file: expected nodes of a switch, such as n[1-16]";
            return Err(wrong(problem.to_owned()));
        }
        Network::parse(self.file, &written).map_err(|error| match error {
            crate::FileError::Wrong { problem, .. } => wrong(problem),
            unreadable @ crate::FileError::Unreadable { .. } => wrong(unreadable.to_string()),
        })
    }
}

/// A switch and its children.
struct SwitchEntry<'a> {
    name: &'a str,
    hosts: Vec<&'a str>,
    switches: Vec<&'a str>,
}

/// Returns the switches from the first one downwards. Each lists the switches below it.
fn by_switch(network: &Network) -> Vec<SwitchEntry<'_>> {
    let neighbours = network.neighbours();
    let mut is_visited = vec![false; neighbours.len()];
    let mut waiting = vec![network.hosts.len()];
    let mut entries = Vec::new();
    while let Some(node) = waiting.pop() {
        let (Some(adjacent), End::Switch(switch)) = (neighbours.get(node), network.end(node))
        else {
            continue;
        };
        is_visited[node] = true;
        let mut entry = SwitchEntry {
            name: &network.switches[switch].name,
            hosts: Vec::new(),
            switches: Vec::new(),
        };
        for (next, _) in adjacent {
            match network.end(*next) {
                End::Host(host) => entry.hosts.push(&network.hosts[host].name),
                End::Switch(_) if is_visited[*next] => {}
                End::Switch(switch) => {
                    entry.switches.push(&network.switches[switch].name);
                    waiting.push(*next);
                }
            }
        }
        entries.push(entry);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "# two leaves\nSwitchName=top Switches=leaf[0-1]\n\
        SwitchName=leaf0 Nodes=n[08-10] LinkSpeed=900\nSwitchName=leaf1 Nodes=m,k[1-2]\n";

    fn rate() -> Rate {
        Rate::from_bps(1_000_000_000).unwrap()
    }

    #[test]
    fn topology_conf__written_and_read_back__keeps_hosts_and_links() {
        let network = conf::read("topology.conf", CONF, rate()).unwrap();
        let names: Vec<&str> = network
            .hosts
            .iter()
            .map(|host| host.name.as_str())
            .collect();
        assert_eq!(names, ["n08", "n09", "n10", "m", "k1", "k2"]);
        let again = conf::read("again", &conf::write(&network), rate()).unwrap();
        assert_eq!((again.hosts.len(), again.links.len()), (6, 8));
        assert!(conf::write(&network).contains("SwitchName=leaf1 Nodes=m,k1,k2"));
    }

    #[test]
    fn topology_yaml__two_levels__lists_each_switch_with_its_children_and_nodes() {
        let network = conf::read("topology.conf", CONF, rate()).unwrap();
        let yaml = yaml::write(&network);
        assert!(yaml.contains("- topology: \"slurm\"\n  cluster_default: true\n  tree:\n"));
        assert!(
            yaml.contains("      - switch: \"top\"\n        children: \"leaf0,leaf1\"\n"),
            "{yaml}"
        );
        assert!(yaml.contains("      - switch: \"leaf1\"\n        nodes: \"m,k1,k2\"\n"));
    }

    #[test]
    fn topology_yaml__written_and_read_back__keeps_the_same_connections() {
        // Names that YAML reads as another type unless they are quoted.
        let conf = CONF
            .replace("top", "12")
            .replace("leaf0", "null")
            .replace("leaf[0-1]", "null,leaf1");
        let network = conf::read("topology.conf", &conf, rate()).unwrap();
        let again = yaml::read("again", &yaml::write(&network), rate()).unwrap();
        assert_eq!(conf::write(&again), conf::write(&network));
    }

    #[test]
    fn topology_yaml__several_topologies__uses_the_cluster_default() {
        let text = "- topology: blocks\n  block: {block_sizes: [4], blocks: [{block: b, nodes: \"x[1-4]\"}]}\n\
            - topology: other\n  tree: {switches: [{switch: s, nodes: y}]}\n\
            - topology: one # in use\n  cluster_default: true\n  tree:\n    switches:\n\
            \x20     - switch: top\n        children: leaf[0-1]\n\
            \x20     - {switch: leaf0, nodes: \"n[08-10]\"}\n      - {switch: leaf1, nodes: \"m,k[1-2]\"}\n";
        let network = yaml::read("topology.yaml", text, rate()).unwrap();
        let same = conf::read("topology.conf", CONF, rate()).unwrap();
        assert_eq!(conf::write(&network), conf::write(&same));
    }

    #[test]
    fn topology_yaml__invalid__is_refused_with_the_line() {
        let expected = "expected a list of `- topology: NAME`, each with a `tree:`";
        let tree = |switches: &str| format!("- topology: a\n  tree:\n    switches:\n{switches}");
        for (text, message) in [
            ("tree: 1".to_owned(), format!("t:1: {expected}")),
            (String::new(), format!("t:1: {expected}")),
            (
                "- topology: a\n  flat: true\n".to_owned(),
                format!("t: no tree in this file: {expected}"),
            ),
            (
                "- topology: a\n  cluster_default: true\n  flat: true\n".to_owned(),
                "t:1: the cluster's default topology has no `tree:`; \
                 block and flat topologies do not name links"
                    .to_owned(),
            ),
            (
                "- topology: a\n  tree: 3\n".to_owned(),
                "t:2: expected `switches:`, a list".to_owned(),
            ),
            (
                tree("      - nodes: n1\n"),
                "t:4: expected `- switch: NAME`".to_owned(),
            ),
            (
                tree("      - switch: s\n        nodes: n[1-\n"),
                "t:5: `n[1-` has no closing `]`".to_owned(),
            ),
            (
                tree("      - switch: s\n        nodes: [a]\n"),
                "t:5: `nodes`: expected a name or a list such as n[1-16]; \
                 quote a number to use it as a name"
                    .to_owned(),
            ),
            (
                tree("      - switch: 12\n"),
                "t:4: `switch`: expected a name or a list such as n[1-16]; \
                 quote a number to use it as a name"
                    .to_owned(),
            ),
            (
                tree("      - switch: s\n      - switch: s\n"),
                "t:5: switch `s` is defined twice; give each its own name".to_owned(),
            ),
        ] {
            let error = yaml::read("t", &text, rate()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        let syntax = yaml::read("t", "- topology: {", rate()).unwrap_err();
        let syntax = syntax.to_string();
        assert!(syntax.starts_with("t: while parsing a node"), "{syntax}");
    }

    #[test]
    fn topology_conf__invalid__is_refused_with_the_reason() {
        for (text, message) in [
            (
                "Nodes=n1",
                "t:1: `Nodes=n1`: expected SwitchName=NAME at the start of the line",
            ),
            ("\nSwitchName=s Nodes", "t:2: `Nodes`: expected KEY=VALUE"),
            (
                "SwitchName=s Node=n1",
                "t:1: invalid key `Node`: expected Nodes, Switches or LinkSpeed",
            ),
            (
                "SwitchName=s Nodes=a\nSwitchName=s Nodes=b",
                "t:2: switch `s` is defined twice; give each its own name",
            ),
            ("SwitchName=s Nodes=n[1-", "t:1: `n[1-` has no closing `]`"),
            (
                "SwitchName=s Nodes=n[1-2]r[3-4]",
                "t:1: `n[1-2]r[3-4]` has more than one [ ]; write one entry for each",
            ),
            (
                "SwitchName=s Nodes=n[3-1]",
                "t:1: `3-1` is not a range: expected for instance `1-16`",
            ),
            (
                "SwitchName=s Nodes=n[1-99999999]",
                "t:1: `n[1-99999999]` expands the list to more than 16384 names",
            ),
            (
                "SwitchName=s Nodes=a\nSwitchName=t Nodes=b",
                "t: no path from `a` to `b`; connect them with links",
            ),
            (
                "SwitchName=s Nodes=a,b\nSwitchName=t Nodes=a Switches=s",
                "t: `a` already has a link; \
                 a host has one (the member links of a device count as one)",
            ),
            (
                "SwitchName=s Switches=s",
                "t: no host in this file: expected nodes of a switch, such as n[1-16]",
            ),
            (
                "SwitchName=s Nodes=n/1",
                "t: `n/1` is not a name; use 1 to 64 letters, digits, `-`, `_` or `.`, \
                 a letter or digit first",
            ),
        ] {
            let error = conf::read("t", text, rate()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
