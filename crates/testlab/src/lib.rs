//! Fixtures of tests that run a lab: its start, and the topologies that several tests use.
#![forbid(unsafe_code)]

use kumi_lab::{Cluster, Topology, UpOptions};
use std::fmt::Write;

/// Starts a lab with the topology `text`, seed 1. The name is made of `test` and the process, so
/// that tests can run at the same time.
///
/// # Panics
/// The text has a mistake, or the lab cannot be started.
pub fn up(test: &str, text: &str) -> Cluster {
    let topology = Topology::parse(test, text).expect("a topology");
    let options = UpOptions {
        name: Some(format!("{test}-{}", std::process::id())),
        fabric: None,
        seed: 1,
    };
    Cluster::up(&topology, options).expect("the lab starts")
}

/// Returns the topology of hosts `h1` to `hN` on the switch `s1`. Each host has `nics` NICs of this
/// rate, `eth1` and so on.
pub fn star(hosts: usize, nics: usize, rate: &str) -> String {
    let mut text = String::from("name = \"t\"\n[[switch]]\nname = \"s1\"\n");
    for host in 1..=hosts {
        let _ = writeln!(text, "[[host]]\nname = \"h{host}\"");
        for nic in 1..=nics {
            let ends = format!("\"h{host}:eth{nic}\", \"s1\"");
            let _ = writeln!(text, "[[link]]\nbetween = [{ends}]\nrate = \"{rate}\"");
        }
    }
    text
}

/// Returns the topology of two hosts, `h1` and `h2`, that are joined by direct cables of this rate
/// between their NICs `eth1`, `eth2` and so on.
pub fn cables(nics: usize, rate: &str) -> String {
    let mut text = String::from("name = \"t\"\n[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n");
    for nic in 1..=nics {
        let ends = format!("\"h1:eth{nic}\", \"h2:eth{nic}\"");
        let _ = writeln!(text, "[[link]]\nbetween = [{ends}]\nrate = \"{rate}\"");
    }
    text
}

/// A path between two sites. Each has one host, `h1` and `h2`, with 1 Gb/s to its switch, `s1` and
/// `s2`.
#[derive(Debug, Clone, Copy)]
pub struct Wan {
    /// Rate between the switches, such as `500Mbit`.
    pub rate_mbps: u64,
    /// One-way delay between the switches, in microseconds.
    pub delay_us: u64,
    /// Depth of each switch port, in KiB.
    pub port_kib: u64,
    /// Share of frames lost between the switches (0–1).
    pub loss: f64,
    /// Congestion control of the hosts.
    pub congestion_control: &'static str,
}

impl Default for Wan {
    /// Returns the path of the GridMPI paper (§2.2.1): 500 Mb/s, 20 ms round trip, 128 KiB, with
    /// CUBIC.
    fn default() -> Self {
        Self {
            rate_mbps: 500,
            delay_us: 10_000,
            port_kib: 128,
            loss: 0.0,
            congestion_control: "cubic",
        }
    }
}

impl Wan {
    /// Returns the topology.
    pub fn text(&self) -> String {
        let Self {
            rate_mbps,
            delay_us,
            port_kib,
            loss,
            congestion_control,
        } = self;
        let loss = match *loss {
            0.0 => String::new(),
            loss => format!(", loss = {loss}"),
        };
        format!(
            r#"
name = "t"
congestion_control = "{congestion_control}"
host = [{{ name = "h1" }}, {{ name = "h2" }}]
switch = [
  {{ name = "s1", port_queue = "{port_kib}KiB" }},
  {{ name = "s2", port_queue = "{port_kib}KiB" }},
]
link = [
  {{ between = ["h1:eth1", "s1"], rate = "1Gbit" }},
  {{ between = ["h2:eth1", "s2"], rate = "1Gbit" }},
  {{ between = ["s1", "s2"], rate = "{rate_mbps}Mbit", delay = "{delay_us}us"{loss} }},
]
"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies__of_each_kind__are_valid() {
        let lossy = Wan {
            loss: 0.01,
            ..Wan::default()
        };
        for text in [star(3, 2, "1Gbit"), cables(2, "100Mbit"), lossy.text()] {
            Topology::parse("t", &text).expect(&text);
        }
    }
}
