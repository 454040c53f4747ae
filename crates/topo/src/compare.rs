//! Compares a network file with measurements, and describes each difference.
//!
//! Links are identified by the hosts that they separate. Names of switches prove nothing. A switch
//! with only two links cannot be observed from outside.

use crate::network::{End, Network};
use crate::quantity::Rate;
use crate::sides::Sides;
use std::collections::BTreeMap;
use std::fmt;

/// A difference between the file and the measurement.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// A host is linked to another switch.
    Moved {
        /// Name of the host.
        host: String,
        /// Its switch according to the file.
        written: String,
        /// Its measured switch.
        measured: String,
    },
    /// The hosts of two switches are on one switch.
    Together {
        /// One of the two switches.
        one: String,
        /// The other one, whose hosts are as close.
        other: String,
    },
    /// The hosts of one switch are on two switches.
    Apart {
        /// The switch.
        switch: String,
        /// Hosts on the second of the measured switches.
        hosts: Vec<String>,
    },
    /// A link between switches does not exist, or separates other hosts than the file says.
    Missing {
        /// Names of its ends.
        between: [String; 2],
    },
    /// A measured link is missing from the file.
    Unwritten {
        /// Hosts behind the link, seen from the first host.
        hosts: Vec<String>,
    },
    /// A link has another rate.
    Rate {
        /// The end that sends.
        from: String,
        /// The end that receives.
        to: String,
        /// Rate according to the file.
        written: Rate,
        /// Measured rate, limited by the rate at which the hosts can fill the link.
        measured: Rate,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved {
                host,
                written,
                measured,
            } => write!(out, "{host} is connected to {measured}, not to {written}"),
            Self::Together { one, other } => {
                write!(
                    out,
                    "{one} and {other} are one switch: their hosts are as close to each other as to hosts of the same switch"
                )
            }
            Self::Apart { switch, hosts } => {
                let hosts = hosts.join(" ");
                write!(out, "{switch} is two switches; the second has {hosts}")
            }
            Self::Missing { between: [a, b] } => {
                write!(
                    out,
                    "no measured link separates the hosts as the link between {a} and {b} would"
                )
            }
            Self::Unwritten { hosts } => {
                let hosts = hosts.join(" ");
                write!(
                    out,
                    "a link that is not in the file separates {hosts} from the others"
                )
            }
            Self::Rate {
                from,
                to,
                written,
                measured,
            } => write!(
                out,
                "from {from} to {to}: {measured} measured, {written} in the file"
            ),
        }
    }
}

impl Difference {
    /// Returns whether both concern the same host, switch or link, whatever the measured values
    /// are.
    pub fn is_of_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rate { from, to, .. }, Self::Rate { from: f, to: t, .. }) => {
                (from, to) == (f, t)
            }
            (Self::Moved { host, .. }, Self::Moved { host: other, .. }) => host == other,
            (Self::Apart { switch, .. }, Self::Apart { switch: other, .. }) => switch == other,
            _ => self == other,
        }
    }
}

/// Returns the differences between `written` and `measured`, which have hosts of the same names.
/// `tolerance` is the largest accepted deviation of a rate, as a share of the written rate.
pub fn differences(written: &Network, measured: &Network, tolerance: f64) -> Vec<Difference> {
    let measured = in_order_of(written, measured);
    let named = named_like(written, &measured);
    let mut differences = of_leaves(written, &named);
    let is_same = differences.is_empty();
    let (there, seen) = (Sides::of(written), Sides::of(&named));
    for (side, link) in there.links() {
        match seen.link(side) {
            Some(found) => {
                for way in 0..2 {
                    let is = seen.filled(side, found, way);
                    let was = there.filled(side, link, way);
                    if (is / was - 1.0).abs() > tolerance {
                        let [from, to] = [way, 1 - way].map(|end| link.ends[end].clone());
                        differences.extend(rate_difference(from, to, was, is));
                    }
                }
            }
            None if is_same => differences.push(Difference::Missing {
                between: link.ends.clone(),
            }),
            None => {}
        }
    }
    if is_same {
        let unwritten = seen
            .links()
            .map(|(side, _)| side)
            .filter(|side| there.link(side).is_none());
        differences.extend(unwritten.map(|side| Difference::Unwritten {
            hosts: hosts_where(&named, |host| !side[host]),
        }));
    }
    differences
}

fn rate_difference(from: String, to: String, was: f64, is: f64) -> Option<Difference> {
    Some(Difference::Rate {
        from,
        to,
        written: Rate::from_bps(was as u64)?,
        measured: Rate::from_bps(is as u64)?,
    })
}

/// Returns the measured network with the file's switch names. A measured switch gets the name of
/// the written switch that most of its hosts belong to.
pub fn named_like(written: &Network, measured: &Network) -> Network {
    let names = written_names(written, measured);
    let mut network = measured.clone();
    let mut taken: Vec<String> = network.hosts.iter().map(|host| host.name.clone()).collect();
    for (switch, name) in network.switches.iter_mut().zip(&names) {
        if let Some(name) = name.as_ref().filter(|name| !taken.contains(*name)) {
            switch.name.clone_from(name);
            taken.push(name.clone());
        }
    }
    // A switch without such a name keeps its own, unless another switch has taken it.
    for (switch, name) in network.switches.iter_mut().zip(&names) {
        let is_named = name.as_ref() == Some(&switch.name);
        while !is_named && taken.contains(&switch.name) {
            switch.name.push_str("-2");
        }
        if !is_named {
            taken.push(switch.name.clone());
        }
    }
    network
}

/// Returns, for each measured switch, the name of the written switch that most of its hosts belong
/// to.
fn written_names(written: &Network, measured: &Network) -> Vec<Option<String>> {
    let (there, seen) = (written.switch_of_each(), measured.switch_of_each());
    let mut counts: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); measured.switches.len()];
    for (host, switch) in seen.iter().enumerate() {
        let was = written
            .host(&measured.hosts[host].name)
            .and_then(|host| there[host]);
        if let (Some(switch), Some(was)) = (switch, was) {
            *counts[*switch].entry(was).or_default() += 1;
        }
    }
    let most = |counts: &BTreeMap<usize, usize>| {
        let best = counts.iter().max_by_key(|(_, count)| **count);
        best.map(|(switch, _)| written.switches[*switch].name.clone())
    };
    counts.iter().map(most).collect()
}

/// Returns the measured network with its hosts in the order of the written one.
pub fn in_order_of(written: &Network, measured: &Network) -> Network {
    let mut place = vec![0; measured.hosts.len()];
    let mut order: Vec<usize> = (0..measured.hosts.len()).collect();
    order.sort_by_key(|host| {
        written
            .host(&measured.hosts[*host].name)
            .unwrap_or(usize::MAX)
    });
    for (at, host) in order.iter().enumerate() {
        place[*host] = at;
    }
    let mut network = measured.clone();
    network.hosts = order
        .iter()
        .map(|host| measured.hosts[*host].clone())
        .collect();
    for link in &mut network.links {
        link.ends = link.ends.map(|end| match end {
            End::Host(host) => End::Host(place[host]),
            switch => switch,
        });
    }
    network
}

fn hosts_where(network: &Network, is_one: impl Fn(usize) -> bool) -> Vec<String> {
    let hosts = network.hosts.iter().enumerate();
    let some = hosts.filter(|(host, _)| is_one(*host));
    some.map(|(_, host)| host.name.clone()).collect()
}

/// Returns the differences in the hosts' switches. `named` has its hosts in the order of `written`.
fn of_leaves(written: &Network, named: &Network) -> Vec<Difference> {
    let (there, seen) = (written.switch_of_each(), named.switch_of_each());
    let name_there = |host: usize| there[host].map(|switch| written.switches[switch].name.clone());
    let name_seen = |host: usize| seen[host].map(|switch| named.switches[switch].name.clone());
    let mut differences = Vec::new();
    let mut is_told = vec![false; written.hosts.len()];
    // Switches of which every host has moved, and measured switches with a name that the file does
    // not have.
    for (switch, of) in written.switches.iter().enumerate() {
        let hosts: Vec<usize> = (0..there.len())
            .filter(|host| there[*host] == Some(switch))
            .collect();
        let Some(first) = hosts.first().copied() else {
            continue;
        };
        let is_one = hosts.iter().all(|host| seen[*host] == seen[first]);
        let other = name_seen(first).filter(|name| {
            *name != of.name && written.switches.iter().any(|one| one.name == *name)
        });
        if let (true, Some(one)) = (is_one && hosts.len() > 1, other) {
            differences.push(Difference::Together {
                one,
                other: of.name.clone(),
            });
            hosts.iter().for_each(|host| is_told[*host] = true);
        }
    }
    for (switch, of) in named.switches.iter().enumerate() {
        let hosts: Vec<usize> = (0..seen.len())
            .filter(|host| seen[*host] == Some(switch))
            .collect();
        let Some(first) = hosts.first().copied() else {
            continue;
        };
        let is_known = written.switches.iter().any(|one| one.name == of.name);
        let is_one = hosts.iter().all(|host| there[*host] == there[first]);
        if let (false, true, Some(switch)) = (is_known, is_one, name_there(first)) {
            differences.push(Difference::Apart {
                switch,
                hosts: hosts
                    .iter()
                    .map(|host| written.hosts[*host].name.clone())
                    .collect(),
            });
            hosts.iter().for_each(|host| is_told[*host] = true);
        }
    }
    for host in (0..written.hosts.len()).filter(|host| !is_told[*host]) {
        if let (Some(was), Some(is)) = (name_there(host), name_seen(host)) {
            if was != is {
                differences.push(Difference::Moved {
                    host: written.hosts[host].name.clone(),
                    written: was,
                    measured: is,
                });
            }
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a network from hosts by switch and links between switches, with rates in Mb/s.
    fn network(switches: &[(&str, &[&str])], links: &[(&str, &str, u64)]) -> Network {
        let mut text = "name = \"n\"\n".to_owned();
        for (switch, hosts) in switches {
            text += &format!("[[switch]]\nname = \"{switch}\"\n");
            for host in *hosts {
                text += &format!(
                    "[[host]]\nname = \"{host}\"\n[[link]]\nbetween = [\"{host}\", \"{switch}\"]\nrate = \"1Gbit\"\n"
                );
            }
        }
        for (a, b, mbps) in links {
            text += &format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\nrate = \"{mbps}Mbit\"\n");
        }
        Network::parse("n", &text).unwrap()
    }

    fn said(written: &Network, measured: &Network) -> Vec<String> {
        let differences = differences(written, measured, 0.15);
        differences.iter().map(ToString::to_string).collect()
    }

    fn written() -> Network {
        network(
            &[("a", &["h1", "h2", "h3"]), ("b", &["h4", "h5", "h6"])],
            &[("a", "b", 10_000)],
        )
    }

    #[test]
    fn differences__network_as_in_the_file__are_empty() {
        // Other names, another order, and a trunk that its hosts cannot fill.
        let measured = network(
            &[("s2", &["h6", "h4", "h5"]), ("s1", &["h2", "h3", "h1"])],
            &[("s1", "s2", 2_900)],
        );
        assert_eq!(said(&written(), &measured), [""; 0]);
        let names = named_like(&written(), &measured);
        assert_eq!(names.switches[0].name, "b");
    }

    #[test]
    fn differences__host_on_another_switch__names_both_switches() {
        let measured = network(
            &[("s1", &["h1", "h2"]), ("s2", &["h3", "h4", "h5", "h6"])],
            &[("s1", "s2", 2_000)],
        );
        assert_eq!(
            said(&written(), &measured),
            ["h3 is connected to b, not to a"]
        );
    }

    #[test]
    fn differences__merged_or_split_switches__are_reported() {
        let one = network(&[("s1", &["h1", "h2", "h3", "h4", "h5", "h6"])], &[]);
        let one = said(&written(), &one);
        assert!(
            one.len() == 1 && one[0].contains("are one switch"),
            "{one:?}"
        );
        let three = network(
            &[
                ("s1", &["h1", "h2"]),
                ("s2", &["h4", "h5", "h6"]),
                ("s3", &["h3"]),
            ],
            &[("s1", "s2", 3_000), ("s3", "s1", 1_000)],
        );
        assert_eq!(
            said(&written(), &three),
            ["a is two switches; the second has h3"]
        );
    }

    #[test]
    fn named_like__names_already_taken__gives_a_network_that_parses() {
        // The second switch has the hosts of `a` and the name of `b`. The third gets the remaining
        // name.
        let measured = network(
            &[
                ("b", &["h1", "h2"]),
                ("a", &["h4", "h5", "h6"]),
                ("x", &["h3"]),
            ],
            &[("a", "b", 1000), ("x", "b", 1000)],
        );
        let named = named_like(&written(), &measured);
        let again = Network::parse("again", &named.to_toml().unwrap()).unwrap();
        assert_eq!(again, named);
        assert_eq!(
            (
                named.switches[0].name.as_str(),
                named.switches[1].name.as_str()
            ),
            ("a", "b")
        );
        let split = network(
            &[
                ("a", &["h1", "h2"]),
                ("a-2", &["h3"]),
                ("b", &["h4", "h5", "h6"]),
            ],
            &[("a", "a-2", 1000), ("b", "a", 1000)],
        );
        let mut other = split.clone();
        other.switches[1].name = "b".to_owned();
        other.switches[2].name = "z".to_owned();
        let named = named_like(&written(), &other);
        Network::parse("again", &named.to_toml().unwrap()).unwrap();
    }

    #[test]
    fn differences__slow_link__is_reported_per_direction() {
        let measured = network(
            &[("s1", &["h1", "h2", "h3"]), ("s2", &["h4", "h5", "h6"])],
            &[("s1", "s2", 250)],
        );
        assert_eq!(
            said(&written(), &measured),
            [
                "from a to b: 250Mbit measured, 3Gbit in the file",
                "from b to a: 250Mbit measured, 3Gbit in the file"
            ]
        );
    }

    #[test]
    fn differences__switches_connected_differently__names_missing_and_extra_links() {
        let of = |links: &[(&str, &str, u64)]| {
            network(
                &[
                    ("a", &["h1", "h2"]),
                    ("b", &["h3", "h4"]),
                    ("c", &["h5", "h6"]),
                    ("d", &["h7", "h8"]),
                ],
                links,
            )
        };
        let row = of(&[("a", "b", 2000), ("b", "c", 2000), ("c", "d", 2000)]);
        let other = of(&[("a", "c", 2000), ("c", "b", 2000), ("b", "d", 2000)]);
        let said = said(&row, &other);
        assert_eq!(
            said,
            [
                "no measured link separates the hosts as the link between b and c would",
                "a link that is not in the file separates h3 h4 h7 h8 from the others"
            ]
        );
    }
}
