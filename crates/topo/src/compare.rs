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
    Merged {
        /// One of the two switches.
        first: String,
        /// The other one, whose hosts are as close.
        second: String,
    },
    /// The hosts of one switch are on two switches.
    Split {
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
            Self::Merged { first, second } => {
                write!(
                    out,
                    "{first} and {second} are one switch: their hosts are as close to each other as to hosts of the same switch"
                )
            }
            Self::Split { switch, hosts } => {
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
            (Self::Split { switch, .. }, Self::Split { switch: other, .. }) => switch == other,
            _ => self == other,
        }
    }
}

/// Returns the differences between `written` and `measured`, which have hosts of the same names.
/// `tolerance` is the largest accepted deviation of a rate, as a share of the written rate.
pub fn differences(written: &Network, measured: &Network, tolerance: f64) -> Vec<Difference> {
    let measured = in_order_of(written, measured);
    let named = named_like(written, &measured);
    let mut differences = leaf_differences(written, &named);
    let is_same = differences.is_empty();
    let (written_sides, measured_sides) = (Sides::of(written), Sides::of(&named));
    for (side, link) in written_sides.links() {
        match measured_sides.link(side) {
            Some(measured_link) => {
                for direction in 0..2 {
                    let measured_bps = measured_sides.filled(side, measured_link, direction);
                    let written_bps = written_sides.filled(side, link, direction);
                    if (measured_bps / written_bps - 1.0).abs() > tolerance {
                        let [from, to] =
                            [direction, 1 - direction].map(|end| link.ends[end].clone());
                        differences.extend(rate_difference(from, to, written_bps, measured_bps));
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
        let unwritten = measured_sides
            .links()
            .map(|(side, _)| side)
            .filter(|side| written_sides.link(side).is_none());
        differences.extend(unwritten.map(|side| Difference::Unwritten {
            hosts: hosts_where(&named, |host| !side[host]),
        }));
    }
    differences
}

fn rate_difference(
    from: String,
    to: String,
    written_bps: f64,
    measured_bps: f64,
) -> Option<Difference> {
    Some(Difference::Rate {
        from,
        to,
        written: Rate::from_bps(written_bps as u64)?,
        measured: Rate::from_bps(measured_bps as u64)?,
    })
}

/// Returns the measured network with the file's switch names. A measured switch gets the name of
/// the written switch that most of its hosts belong to.
pub fn named_like(written: &Network, measured: &Network) -> Network {
    let names = written_names(written, measured);
    let mut network = measured.clone();
    let mut used_names: Vec<String> = network.hosts.iter().map(|host| host.name.clone()).collect();
    for (switch, name) in network.switches.iter_mut().zip(&names) {
        if let Some(name) = name.as_ref().filter(|name| !used_names.contains(*name)) {
            switch.name.clone_from(name);
            used_names.push(name.clone());
        }
    }
    // A switch without such a name keeps its own, unless another switch has taken it.
    for (switch, name) in network.switches.iter_mut().zip(&names) {
        let is_named = name.as_ref() == Some(&switch.name);
        while !is_named && used_names.contains(&switch.name) {
            switch.name.push_str("-2");
        }
        if !is_named {
            used_names.push(switch.name.clone());
        }
    }
    network
}

/// Returns, for each measured switch, the name of the written switch that most of its hosts belong
/// to.
fn written_names(written: &Network, measured: &Network) -> Vec<Option<String>> {
    let (written_switch, measured_switch) = (written.switch_of_each(), measured.switch_of_each());
    let mut counts: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); measured.switches.len()];
    for (host, switch) in measured_switch.iter().enumerate() {
        let file_switch = written
            .host(&measured.hosts[host].name)
            .and_then(|host| written_switch[host]);
        if let (Some(switch), Some(file_switch)) = (switch, file_switch) {
            *counts[*switch].entry(file_switch).or_default() += 1;
        }
    }
    let most_common = |counts: &BTreeMap<usize, usize>| {
        let best = counts.iter().max_by_key(|(_, count)| **count);
        best.map(|(switch, _)| written.switches[*switch].name.clone())
    };
    counts.iter().map(most_common).collect()
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
    for (index, host) in order.iter().enumerate() {
        place[*host] = index;
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

fn hosts_where(network: &Network, is_selected: impl Fn(usize) -> bool) -> Vec<String> {
    let hosts = network.hosts.iter().enumerate();
    let selected = hosts.filter(|(host, _)| is_selected(*host));
    selected.map(|(_, host)| host.name.clone()).collect()
}

/// Returns the differences in the hosts' switches. `named` has its hosts in the order of `written`.
fn leaf_differences(written: &Network, named: &Network) -> Vec<Difference> {
    let (written_switch, measured_switch) = (written.switch_of_each(), named.switch_of_each());
    let written_name =
        |host: usize| written_switch[host].map(|switch| written.switches[switch].name.clone());
    let measured_name =
        |host: usize| measured_switch[host].map(|switch| named.switches[switch].name.clone());
    let mut differences = Vec::new();
    let mut is_reported = vec![false; written.hosts.len()];
    // Switches of which every host has moved, and measured switches with a name that the file does
    // not have.
    for (index, switch) in written.switches.iter().enumerate() {
        let hosts: Vec<usize> = (0..written_switch.len())
            .filter(|host| written_switch[*host] == Some(index))
            .collect();
        let Some(first) = hosts.first().copied() else {
            continue;
        };
        let is_one_switch = hosts
            .iter()
            .all(|host| measured_switch[*host] == measured_switch[first]);
        let other = measured_name(first).filter(|name| {
            *name != switch.name && written.switches.iter().any(|known| known.name == *name)
        });
        if let (true, Some(first)) = (is_one_switch && hosts.len() > 1, other) {
            differences.push(Difference::Merged {
                first,
                second: switch.name.clone(),
            });
            hosts.iter().for_each(|host| is_reported[*host] = true);
        }
    }
    for (index, switch) in named.switches.iter().enumerate() {
        let hosts: Vec<usize> = (0..measured_switch.len())
            .filter(|host| measured_switch[*host] == Some(index))
            .collect();
        let Some(first) = hosts.first().copied() else {
            continue;
        };
        let is_known = written
            .switches
            .iter()
            .any(|known| known.name == switch.name);
        let is_one_switch = hosts
            .iter()
            .all(|host| written_switch[*host] == written_switch[first]);
        if let (false, true, Some(switch)) = (is_known, is_one_switch, written_name(first)) {
            differences.push(Difference::Split {
                switch,
                hosts: hosts
                    .iter()
                    .map(|host| written.hosts[*host].name.clone())
                    .collect(),
            });
            hosts.iter().for_each(|host| is_reported[*host] = true);
        }
    }
    for host in (0..written.hosts.len()).filter(|host| !is_reported[*host]) {
        if let (Some(old_name), Some(new_name)) = (written_name(host), measured_name(host)) {
            if old_name != new_name {
                differences.push(Difference::Moved {
                    host: written.hosts[host].name.clone(),
                    written: old_name,
                    measured: new_name,
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

    fn messages(written: &Network, measured: &Network) -> Vec<String> {
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
        assert_eq!(messages(&written(), &measured), [""; 0]);
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
            messages(&written(), &measured),
            ["h3 is connected to b, not to a"]
        );
    }

    #[test]
    fn differences__merged_or_split_switches__are_reported() {
        let one = network(&[("s1", &["h1", "h2", "h3", "h4", "h5", "h6"])], &[]);
        let one = messages(&written(), &one);
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
            messages(&written(), &three),
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
            messages(&written(), &measured),
            [
                "from a to b: 250Mbit measured, 3Gbit in the file",
                "from b to a: 250Mbit measured, 3Gbit in the file"
            ]
        );
    }

    #[test]
    fn differences__switches_connected_differently__names_missing_and_extra_links() {
        let build = |links: &[(&str, &str, u64)]| {
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
        let row = build(&[("a", "b", 2000), ("b", "c", 2000), ("c", "d", 2000)]);
        let other = build(&[("a", "c", 2000), ("c", "b", 2000), ("b", "d", 2000)]);
        let messages = messages(&row, &other);
        assert_eq!(
            messages,
            [
                "no measured link separates the hosts as the link between b and c would",
                "a link that is not in the file separates h3 h4 h7 h8 from the others"
            ]
        );
    }
}
