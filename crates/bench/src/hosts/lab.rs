//! Hosts of a lab: namespaces on this machine, joined as in a topology file.

use super::{Hosts, PathFacts};
use anyhow::Context;
use kumi_command::interrupt;
use kumi_lab::cluster::{Cluster, UpOptions};
use kumi_lab::topology::{Link, LinkChange, Topology};
use kumi_topo::Network;
use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// A lab. Dropping the value takes it down.
#[derive(Debug)]
pub struct Lab {
    cluster: RefCell<Cluster>,
    names: Vec<String>,
    devices: Vec<Vec<String>>,
    kumi: String,
    /// Declared last, so that it is dropped after the cluster.
    _end: End,
}

/// Reports that a lab is gone, if the command was interrupted.
#[derive(Debug)]
struct End(String);

impl Drop for End {
    fn drop(&mut self) {
        interrupt::undone(|| self.0.clone());
    }
}

impl Lab {
    /// Brings up `topology` under a name of its own. A lab that the user runs on the same topology
    /// does not get in the way.
    pub fn up(topology: &Topology) -> anyhow::Result<Self> {
        let name = format!("bench-{}-{}", topology.name, std::process::id());
        let description = format!("lab {name}: {} hosts", topology.hosts.len());
        let options = UpOptions {
            name: Some(name),
            ..UpOptions::default()
        };
        let names: Vec<String> = topology
            .hosts
            .iter()
            .map(|host| host.name.clone())
            .collect();
        let devices = (0..names.len())
            .map(|host| {
                topology
                    .nics_of(host)
                    .map(|position| position.nic.device.clone())
                    .collect()
            })
            .collect();
        interrupt::check()?;
        let kumi = std::env::current_exe()?;
        Ok(Self {
            cluster: RefCell::new(Cluster::up(topology, options)?),
            names,
            devices,
            kumi: kumi
                .to_str()
                .context("the path of kumi is not UTF-8")?
                .to_string(),
            _end: End(description),
        })
    }

    fn host(&self, name: &str) -> usize {
        self.names
            .iter()
            .position(|host| host == name)
            .expect("plans name hosts by `names`")
    }
}

impl Hosts for Lab {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn command(&self, host: &str, argv: &[&str]) -> Command {
        let cluster = self.cluster.borrow();
        let mut command = cluster
            .command(host, argv[0])
            .expect("plans name hosts by `names`");
        command.args(&argv[1..]).env("KUMI_LAB", cluster.name());
        command
    }

    fn run_on_machines(&self, argv: &[&str]) -> anyhow::Result<()> {
        interrupt::check()?;
        // Its own process group keeps Ctrl-C from ending the command half done. Its effects are
        // undone only as a whole.
        let mut command = Command::new(argv[0]);
        let output = command.args(&argv[1..]).process_group(0).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "{}: {}",
            argv.join(" "),
            stderr.trim()
        );
        Ok(())
    }

    fn path(&self) -> anyhow::Result<PathFacts> {
        path_facts(self.cluster.borrow().topology())
    }

    fn network(&self) -> anyhow::Result<Network> {
        network(self.cluster.borrow().topology())
    }

    fn kumi(&self) -> &str {
        &self.kumi
    }

    fn mpi_agent(&self) -> anyhow::Result<String> {
        Ok(format!("{} lab rsh", self.kumi))
    }

    fn devices(&self, host: &str) -> Vec<String> {
        self.devices[self.host(host)].clone()
    }

    fn rates_bps(&self) -> Vec<f64> {
        rates_bps(self.cluster.borrow().topology())
    }

    fn change(&self, end: &str, change: &LinkChange) -> anyhow::Result<()> {
        Ok(self.cluster.borrow_mut().set_link(end, change)?)
    }

    fn port_drops(&self) -> Option<u64> {
        self.cluster.borrow().port_drops()
    }

    fn void_reasons(&mut self) -> Vec<String> {
        let cluster = self.cluster.get_mut();
        let reasons = cluster.validity().void;
        cluster.begin_watch();
        reasons
    }

    fn scratch(&self) -> Option<PathBuf> {
        Some(self.cluster.borrow().dir().to_owned())
    }

    fn kind(&self) -> &'static str {
        "lab"
    }
}

/// Returns the properties of the path from the first host to the second.
fn path_facts(topology: &Topology) -> anyhow::Result<PathFacts> {
    let links = topology.path(0, 1).with_context(|| {
        let [first, second] = [0, 1].map(|host| &topology.hosts[host].name);
        let name = &topology.name;
        format!("topology `{name}`: no path from `{first}` to `{second}`, its first two hosts")
    })?;
    let rates = links.iter().filter_map(|link| link.rate);
    let slowest = rates
        .map(|rate| rate.bps() as f64)
        .fold(f64::INFINITY, f64::min);
    let delay_ns: u64 = links.iter().map(|link| link.delay.ns()).sum();
    Ok(PathFacts {
        bottleneck_bps: slowest,
        round_trip_s: 2.0 * delay_ns as f64 / 1e9,
    })
}

/// Returns the network on which collectives are planned.
fn network(topology: &Topology) -> anyhow::Result<Network> {
    topology.network().with_context(|| {
        let name = &topology.name;
        let mut counts = (0..topology.hosts.len()).map(|host| topology.nics_of(host).count());
        let reason = match counts.position(|count| count != 1) {
            Some(host) => {
                let count = topology.nics_of(host).count();
                format!("`{}` has {count} links", topology.hosts[host].name)
            }
            None => "its links do not join all hosts".to_owned(),
        };
        format!("topology `{name}`: {reason}; expected a tree of hosts with one link each")
    })
}

/// Returns the rates of the first host's links in bit/s, in their order; infinite without a limit.
/// A single one carries no more than the slowest link on the path to the second host does.
fn rates_bps(topology: &Topology) -> Vec<f64> {
    let bps = |link: &Link| link.rate.map_or(f64::INFINITY, |rate| rate.bps() as f64);
    let rates: Vec<f64> = topology
        .nics_of(0)
        .map(|position| bps(&topology.links[position.link]))
        .collect();
    match (rates.len(), topology.path(0, 1)) {
        (1, Some(path)) => vec![path.into_iter().map(bps).fold(f64::INFINITY, f64::min)],
        _ => rates,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(links: &str) -> Topology {
        let text = format!(
            r#"
            name = "t"
            host = [{{ name = "a" }}, {{ name = "b" }}, {{ name = "c" }}, {{ name = "d" }}]
            link = [{links}]
            "#
        );
        Topology::parse("t.toml", &text).unwrap()
    }

    #[test]
    fn network__not_a_tree_of_hosts__is_refused_with_the_host_that_has_too_many_links() {
        let cable = r#"{ between = ["a:eth1", "b:eth1"] }, "#;
        let parted = topology(&format!(r#"{cable}{{ between = ["c:eth1", "d:eth1"] }}"#));
        assert_eq!(
            network(&parted).unwrap_err().to_string(),
            "topology `t`: its links do not join all hosts; expected a tree of hosts with one \
             link each"
        );
        let double = topology(&format!(r#"{cable}{{ between = ["a:eth2", "b:eth2"] }}"#));
        assert_eq!(
            network(&double).unwrap_err().to_string(),
            "topology `t`: `a` has 2 links; expected a tree of hosts with one link each"
        );
    }

    #[test]
    fn path_facts__hosts_that_are_not_connected__are_named() {
        let parted = topology(r#"{ between = ["a:eth1", "c:eth1"] }"#);
        assert_eq!(
            path_facts(&parted).unwrap_err().to_string(),
            "topology `t`: no path from `a` to `b`, its first two hosts"
        );
    }

    #[test]
    fn rates__hosts_with_one_link__are_those_of_the_slowest_link_between_them() {
        let path = Topology::single_path("path-10Mbit-20ms-12500B");
        assert_eq!(rates_bps(&path.unwrap().unwrap()), [10e6]);
        let rails = topology(
            r#"{ between = ["a:eth1", "b:eth1"], rate = "1Gbit" },
               { between = ["a:eth2", "b:eth2"], rate = "300Mbit" }"#,
        );
        assert_eq!(rates_bps(&rails), [1e9, 3e8]);
    }
}
