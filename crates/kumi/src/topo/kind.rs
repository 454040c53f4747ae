//! Kinds of files that describe a network, and the commands that read them.
//!
//! ```text
//!                   kumi topo           kumi lab up                 kumi run --topology
//!  network file     as it is            hosts with one NIC, eth1    as it is
//!  lab topology     if it is a tree     as it is                    after export
//!  Slurm's file     links of one rate   after import                after import
//! ```

use super::slurm;
use kumi_command::BadInput;
use kumi_command::errln;
use kumi_lab::{Topology, carried};
use kumi_topo::{Network, Rate};
use std::fmt::Write as _;
use std::path::Path;
use toml::{Table, Value};

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Network file of `kumi topo`.
    Network,
    /// Topology of a lab.
    Lab,
    /// Slurm's `topology.conf` or `topology.yaml`.
    Slurm,
    /// Configuration of `kumi up`.
    Devices,
}

impl Kind {
    /// Recognizes a file by its name and its keys. A file of no known kind counts as a network
    /// file. Mistakes in a file are left to its parser.
    pub fn detect(path: &Path, text: &str) -> Self {
        if slurm::is_slurm_file(path) || text.contains("SwitchName=") {
            return Self::Slurm;
        }
        let table: Table = toml::from_str(text).unwrap_or_default();
        let entries = |key: &str| {
            let all = table.get(key).and_then(Value::as_array);
            all.into_iter().flatten().filter_map(Value::as_table)
        };
        let mut ends = entries("link")
            .filter_map(|link| link.get("between")?.as_array())
            .flatten()
            .filter_map(Value::as_str);
        if entries("link").any(|link| link.contains_key("over")) {
            Self::Devices
        } else if ends.any(|end| end.contains(':')) || table.contains_key("fabric") {
            Self::Lab
        } else {
            Self::Network
        }
    }
}

fn read(path: &Path) -> Result<(String, String, Kind), BadInput> {
    let (file, text) =
        kumi_topo::source::read(path).map_err(|error| BadInput(error.to_string()))?;
    let kind = Kind::detect(path, &text);
    Ok((file, text, kind))
}

fn devices_error(file: &str) -> BadInput {
    BadInput(format!(
        "{file} is a configuration of devices, not a network file; use it with `kumi up -c {file}`"
    ))
}

/// Reads a network from a file of any kind. `slurm_rate` is the rate of the links of Slurm's file.
pub fn network(path: &Path, slurm_rate: Rate) -> anyhow::Result<Network> {
    let (file, text, kind) = read(path)?;
    match kind {
        Kind::Network => Ok(parse(&file, &text)?),
        Kind::Slurm => Ok(slurm::read(path, slurm_rate)?),
        Kind::Devices => Err(devices_error(&file).into()),
        Kind::Lab => {
            let lab = Topology::parse(&file, &text).map_err(|error| BadInput(error.to_string()))?;
            let network = lab.network().ok_or_else(|| {
                BadInput(format!(
                    "{file} is the topology of a lab, but not a tree of hosts with one link each, \
                     which `kumi topo` requires; use it with `kumi lab up {file}`"
                ))
            });
            Ok(network?)
        }
    }
}

/// Reads a network file. For a file of another kind, the error names the command that converts it.
/// Used for files that the planning library reads, which accepts no other kind.
pub fn network_file(path: &Path) -> Result<Network, BadInput> {
    let (file, text, kind) = read(path)?;
    match kind {
        Kind::Network => parse(&file, &text),
        Kind::Devices => Err(devices_error(&file)),
        Kind::Lab => Err(BadInput(format!(
            "{file} is the topology of a lab, not a network file; \
             convert it with `kumi topo export --format kumi {file} > network.toml`"
        ))),
        Kind::Slurm => Err(BadInput(format!(
            "{file} is a Slurm topology, not a network file; convert it with `kumi topo import {file} > network.toml`"
        ))),
    }
}

fn parse(file: &str, text: &str) -> Result<Network, BadInput> {
    Network::parse(file, text).map_err(|error| BadInput(error.to_string()))
}

/// Reads the topology of a lab from a topology file or a network file. If no such file exists,
/// `path` may be the name of a topology that the command contains. Prints a note for each property
/// of a network that the lab does not emulate.
pub fn lab(path: &Path) -> Result<Topology, BadInput> {
    let name = path.to_string_lossy();
    if let (false, Some(topology)) = (path.exists(), carried::topology(&name)) {
        return topology.map_err(|error| BadInput(error.to_string()));
    }
    let (file, text, kind) = read(path).map_err(|BadInput(error)| {
        let names: Vec<&str> = carried::names().collect();
        BadInput(format!(
            "{error}; expected a topology file, or the name of a built-in topology: {}",
            names.join(", ")
        ))
    })?;
    let topology = match kind {
        Kind::Lab => Topology::parse(&file, &text),
        Kind::Devices => return Err(devices_error(&file)),
        Kind::Slurm => {
            return Err(BadInput(format!(
                "{file} is a Slurm topology; run `kumi topo import {file} > network.toml`, then `kumi lab up network.toml`"
            )));
        }
        Kind::Network => {
            let (text, notes) = lab_text(&parse(&file, &text)?);
            notes.iter().for_each(|note| errln!("kumi: {file}: {note}"));
            Topology::parse(&format!("{file} as the topology of a lab"), &text)
        }
    };
    topology.map_err(|error| BadInput(error.to_string()))
}

/// Returns the topology file of a lab with the hosts, switches, rates and latencies of `network`,
/// and notes on the properties that the lab does not emulate.
fn lab_text(network: &Network) -> (String, Vec<String>) {
    let mut notes = Vec::new();
    let mut text = format!("name = {:?}\n", network.name);
    for host in &network.hosts {
        let _ = writeln!(text, "[[host]]\nname = {:?}", host.name);
        if let Some(rate) = host.both_ways {
            notes.push(format!(
                "{}: the lab does not limit the sum of both directions to {rate}",
                host.name
            ));
        }
    }
    for switch in &network.switches {
        let _ = writeln!(text, "[[switch]]\nname = {:?}", switch.name);
    }
    for link in &network.links {
        let names = link.ends.map(|end| network.name_of(end));
        let ends = [0, 1].map(|side| match link.ends[side] {
            kumi_topo::End::Host(_) => format!("{}:eth1", names[side]),
            kumi_topo::End::Switch(_) => names[side].to_owned(),
        });
        let rate = link.rates[0].min(link.rates[1]);
        if link.rates[0] != link.rates[1] {
            let [tx, rx] = link.rates;
            notes.push(format!(
                "{} to {}: {tx}, and {rx} back; the lab's link has {rate} in both directions",
                names[0], names[1]
            ));
        }
        let _ = writeln!(
            text,
            "[[link]]\nbetween = [{:?}, {:?}]\nrate = \"{rate}\"\ndelay = \"{}\"",
            ends[0], ends[1], link.latency
        );
    }
    (text, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGED: &str = include_str!("../../../../packaging/network.toml");
    const DEVICES: &str = include_str!("../../../../packaging/kumi.toml");

    #[test]
    fn kind__each_known_file_type__is_recognized() {
        let kind = |name: &str, text: &str| Kind::detect(Path::new(name), text);
        assert_eq!(kind("network.toml", PACKAGED), Kind::Network);
        assert_eq!(kind("kumi.toml", DEVICES), Kind::Devices);
        assert_eq!(kind("topology.yaml", ""), Kind::Slurm);
        assert_eq!(
            kind("topology", "SwitchName=s0 Nodes=n[1-4]\n"),
            Kind::Slurm
        );
        let cable = "[[link]]\nbetween = [\"h1:eth1\", \"h2:eth1\"]\n";
        assert_eq!(kind("lab.toml", cable), Kind::Lab);
        assert_eq!(kind("broken.toml", "name = "), Kind::Network);
    }

    #[test]
    fn lab_text__network_file__describes_a_lab_with_the_same_tree() {
        let network = Network::parse("n", PACKAGED).unwrap();
        let (text, notes) = lab_text(&network);
        let lab_network = Topology::parse("lab", &text).unwrap().network().unwrap();
        assert_eq!(lab_network.hosts.len(), network.hosts.len());
        let rates = |link: &kumi_topo::Link| link.rates[0].min(link.rates[1]);
        for (lab_link, file_link) in lab_network.links.iter().zip(&network.links) {
            assert_eq!(
                (lab_link.ends, lab_link.latency),
                (file_link.ends, file_link.latency)
            );
            assert_eq!(rates(lab_link), rates(file_link));
        }
        // One note is for the link with two rates, the other for the host with a rate both ways.
        assert_eq!(notes.len(), 2, "{notes:?}");
    }
}
