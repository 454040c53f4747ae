//! Conditions of a measurement, by which a reader decides whether two results are comparable.

use super::hosts::Hosts;
use serde::Serialize;
use std::collections::BTreeMap;

/// Machine, software and settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Manifest {
    /// Kernel release of the first host.
    pub kernel: String,
    /// Processors online on the first host.
    pub cpus: usize,
    /// Commit that this command was built from. It ends in `-dirty` if files of the build differed
    /// from the commit. Empty for a build outside a checkout.
    pub commit: String,
    /// Seed of the plan.
    pub seed: u64,
    /// Kind of the hosts: `lab` or `ssh`.
    pub hosts: &'static str,
    /// TCP congestion control of every socket whose variant selects no other. It is set, not
    /// inherited.
    pub congestion_control: &'static str,
    /// Offloads that are on at the first host's first device.
    pub offloads: Vec<String>,
    /// Versions of the programs that take the measurements.
    pub programs: BTreeMap<String, String>,
    /// True if the processors of a virtual machine polled instead of halting (PM QoS).
    pub kept_awake: bool,
    /// True for a `--quick` run, whose figures prove nothing.
    pub quick: bool,
    /// Start of the run, in seconds since 1970.
    pub begun_unix_s: u64,
}

/// Offloads that decide whether a frame on the link is one segment or an aggregate.
const OFFLOADS: [&str; 5] = [
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "tx-udp-segmentation",
    "rx-udp-gro-forwarding",
];

impl Manifest {
    /// Queries the first host. Facts that it cannot provide are left empty.
    pub fn collect(hosts: &dyn Hosts, seed: u64, quick: bool) -> anyhow::Result<Self> {
        let host = hosts.names().first().map_or("", String::as_str).to_string();
        let read = |argv: &[&str]| {
            hosts
                .run(&host, argv)
                .unwrap_or_default()
                .trim()
                .to_string()
        };
        let device = hosts.devices(&host).first().cloned().unwrap_or_default();
        Ok(Self {
            kernel: read(&["uname", "-r"]),
            cpus: read(&["nproc"]).parse().unwrap_or(0),
            commit: env!("KUMI_COMMIT").to_owned(),
            seed,
            hosts: hosts.kind(),
            congestion_control: super::variant::CONGESTION_CONTROL,
            offloads: offloads(&read(&["ethtool", "-k", &device])),
            programs: BTreeMap::from([
                ("iperf3".into(), first_line(&read(&["iperf3", "--version"]))),
                ("mpirun".into(), first_line(&read(&["mpirun", "--version"]))),
                (
                    "kumi".into(),
                    first_line(&read(&[hosts.kumi(), "--version"])),
                ),
            ]),
            kept_awake: false,
            quick,
            begun_unix_s: super::workload::unix_s(),
        })
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

/// Returns the offloads among [`OFFLOADS`] that `ethtool -k` shows as on.
fn offloads(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(name, state)| OFFLOADS.contains(name) && state.starts_with("on"))
        .map(|(name, _)| name.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads__ethtool_output__lists_those_on_and_not_fixed() {
        let output = "Features for eth1:\ntcp-segmentation-offload: off\n\
                      generic-receive-offload: on\nrx-checksumming: on [fixed]\n";
        assert_eq!(offloads(output), ["generic-receive-offload"]);
    }
}
