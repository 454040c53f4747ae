//! Slurm's `topology.conf` (its tree plugin), read and written.

use crate::network::{End, HOSTS_MAX, Host, Link, Network, Switch};
use crate::quantity::{Delay, Rate};
use std::collections::HashMap;

/// Most names that a list such as `n[1-16]` may stand for.
const NAMES_MAX: usize = HOSTS_MAX;

/// Why a `topology.conf` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct SlurmError {
    /// The file's path.
    pub file: String,
    /// Line, from 1; 0 is the file as a whole.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// Reads a `topology.conf`. It knows no rates and no latencies (its `LinkSpeed` is a relative number): every
/// link gets `rate`, and no latency.
///
/// # Errors
/// Names the file and the line.
pub fn read(file: &str, text: &str, rate: Rate) -> Result<Network, SlurmError> {
    let wrong = |line: usize, problem: String| SlurmError {
        file: file.to_owned(),
        line,
        problem,
    };
    let mut network = Network {
        name: "slurm".to_owned(),
        hosts: Vec::new(),
        switches: Vec::new(),
        links: Vec::new(),
    };
    let mut ends: HashMap<String, End> = HashMap::new();
    let mut joins: Vec<(usize, usize, String)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let mut switch = None;
        for word in line.split_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                let problem = format!("`{word}` is no KEY=VALUE");
                return Err(wrong(at + 1, problem));
            };
            match (key.to_ascii_lowercase().as_str(), switch) {
                ("switchname", None) => {
                    let end = End::Switch(network.switches.len());
                    if ends.insert(value.to_owned(), end).is_some() {
                        return Err(wrong(at + 1, format!("`{value}` is there twice")));
                    }
                    switch = Some(network.switches.len());
                    network.switches.push(Switch {
                        name: value.to_owned(),
                    });
                }
                ("nodes" | "switches", Some(switch)) => {
                    let names = expand(value).map_err(|problem| wrong(at + 1, problem))?;
                    joins.extend(names.into_iter().map(|name| (at + 1, switch, name)));
                }
                ("linkspeed", Some(_)) => {}
                (_, None) => {
                    let problem = "a line begins with SwitchName=NAME".to_owned();
                    return Err(wrong(at + 1, problem));
                }
                _ => {
                    let problem =
                        format!("`{key}` is not known here (known: Nodes, Switches, LinkSpeed)");
                    return Err(wrong(at + 1, problem));
                }
            }
        }
    }
    // Switches may be named before their own line; what has none is a host.
    for (_, switch, name) in joins {
        let end = *ends.entry(name.clone()).or_insert_with(|| {
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
    // The network file's own checks: one tree, hosts as leaves, sound names.
    let written = network
        .to_toml()
        .map_err(|error| wrong(0, error.to_string()))?;
    Network::parse(file, &written).map_err(|error| match error {
        crate::FileError::Wrong { problem, .. } => wrong(0, problem),
        unreadable @ crate::FileError::Unreadable { .. } => wrong(0, unreadable.to_string()),
    })
}

/// Writes a `topology.conf`. Hosts are listed one by one.
pub fn write(network: &Network) -> String {
    let mut text = format!("# {}: written by kumi topo export\n", network.name);
    for of in by_switch(network) {
        text.push_str(&format!("SwitchName={}", of.name));
        for (key, names) in [("Nodes", of.hosts), ("Switches", of.switches)] {
            if !names.is_empty() {
                text.push_str(&format!(" {key}={}", names.join(",")));
            }
        }
        text.push('\n');
    }
    text
}

/// Writes a `topology.yaml` of one topology, a tree, which is the cluster's default.
pub fn write_yaml(network: &Network) -> String {
    let mut text = format!(
        "# written by kumi topo export\n- topology: {}\n  cluster_default: true\n  tree:\n    switches:\n",
        network.name
    );
    for of in by_switch(network) {
        text.push_str(&format!("      - switch: {}\n", of.name));
        for (key, names) in [("nodes", of.hosts), ("children", of.switches)] {
            if !names.is_empty() {
                text.push_str(&format!("        {key}: \"{}\"\n", names.join(",")));
            }
        }
    }
    text
}

/// A switch and what hangs from it.
struct OfSwitch<'a> {
    name: &'a str,
    hosts: Vec<&'a str>,
    switches: Vec<&'a str>,
}

/// From the first switch downwards: a switch names those below it.
fn by_switch(network: &Network) -> Vec<OfSwitch<'_>> {
    let neighbours = network.neighbours();
    let mut seen = vec![false; neighbours.len()];
    let mut waiting = vec![network.hosts.len()];
    let mut all = Vec::new();
    while let Some(node) = waiting.pop() {
        let (Some(near), End::Switch(switch)) = (neighbours.get(node), network.end(node)) else {
            continue;
        };
        seen[node] = true;
        let mut of = OfSwitch {
            name: &network.switches[switch].name,
            hosts: Vec::new(),
            switches: Vec::new(),
        };
        for (next, _) in near {
            match network.end(*next) {
                End::Host(host) => of.hosts.push(&network.hosts[host].name),
                End::Switch(_) if seen[*next] => {}
                End::Switch(switch) => {
                    of.switches.push(&network.switches[switch].name);
                    waiting.push(*next);
                }
            }
        }
        all.push(of);
    }
    all
}

/// `n[1-3,7],m` as `n1`, `n2`, `n3`, `n7`, `m`; `n[08-10]` keeps its zeros.
fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(list) {
        let Some((stem, rest)) = part.split_once('[') else {
            names.push(part.to_owned());
            continue;
        };
        let Some((ranges, tail)) = rest.split_once(']') else {
            return Err(format!("`{part}` lacks its `]`"));
        };
        if tail.contains('[') {
            return Err(format!(
                "`{part}` has more than one [ ]; write its parts one by one"
            ));
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u64>().ok().zip(last.parse::<u64>().ok());
            let Some((from, to)) = bounds.filter(|(from, to)| from <= to) else {
                return Err(format!("`{range}` is no range; write it as `1-16`"));
            };
            if to - from >= (NAMES_MAX - names.len().min(NAMES_MAX)) as u64 {
                return Err(format!("`{part}` stands for more than {NAMES_MAX} names"));
            }
            let width = first.len();
            names.extend((from..=to).map(|number| format!("{stem}{number:0width$}{tail}")));
        }
    }
    Ok(names)
}

fn split_outside_brackets(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut depth) = (0, 0_u32);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts.retain(|part| !part.is_empty());
    parts
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
    fn topology_conf__written_and_read_back__joins_the_same() {
        let network = read("topology.conf", CONF, rate()).unwrap();
        let names: Vec<&str> = network
            .hosts
            .iter()
            .map(|host| host.name.as_str())
            .collect();
        assert_eq!(names, ["n08", "n09", "n10", "m", "k1", "k2"]);
        let again = read("again", &write(&network), rate()).unwrap();
        assert_eq!((again.hosts.len(), again.links.len()), (6, 8));
        assert!(write(&network).contains("SwitchName=leaf1 Nodes=m,k1,k2"));
    }

    #[test]
    fn topology_yaml__has_each_switch_with_what_hangs_from_it() {
        let network = read("topology.conf", CONF, rate()).unwrap();
        let yaml = write_yaml(&network);
        assert!(yaml.contains("- topology: slurm\n  cluster_default: true\n  tree:\n"));
        assert!(
            yaml.contains("      - switch: top\n        children: \"leaf0,leaf1\"\n"),
            "{yaml}"
        );
        assert!(yaml.contains("      - switch: leaf1\n        nodes: \"m,k1,k2\"\n"));
    }

    #[test]
    fn topology_conf__that_is_wrong__is_refused_by_its_line() {
        let problem = |text: &str| read("t", text, rate()).unwrap_err().to_string();
        assert!(problem("Nodes=n1").starts_with("t:1: a line begins with SwitchName"));
        assert!(problem("SwitchName=s Nodes=n[1-").contains("lacks its `]`"));
        assert!(problem("SwitchName=s Nodes=n[3-1]").contains("no range"));
        assert!(problem("SwitchName=s Nodes=n[1-99999999]").contains("more than 16384"));
        assert!(problem("SwitchName=s Node=n1").contains("known: Nodes"));
        assert!(problem("SwitchName=s Nodes=a\nSwitchName=t Nodes=b").contains("no link leads"));
        assert!(
            problem("SwitchName=s Nodes=a,b\nSwitchName=t Nodes=a Switches=s")
                .contains("has a link")
        );
    }
}
