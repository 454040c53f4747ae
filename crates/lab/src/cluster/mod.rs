//! The cluster in a box: hosts are namespaces, links are veths, switches are a fabric.
//!
//! ```text
//!  h1 (net, uts, mnt)          fabric (net)                h2
//!  ┌──────────────────┐   ┌───────────────────────┐   ┌──────────────────┐
//!  │ eth1: TBF + queue├───┤l0a   bridge or    l1a ├───┤eth1: TBF + queue │
//!  │ (TCP feels it)   │   │      emulator         │   │                  │
//!  └──────────────────┘   └───────────────────────┘   └──────────────────┘
//! ```
//!
//! [`Cluster::up`] makes one that lives as long as the value; its processes and devices go with
//! the process that owns it, however that ends. `kumi lab up` keeps one in a background process.

pub mod control;
mod error;
mod holder;
mod kernel_fabric;
mod roster;
mod run_dir;
mod shaper;
pub mod supervisor;
mod tools;
mod wiring;

pub use error::ClusterError;
pub use roster::{HostEntry, Roster, SCHEMA};
pub use run_dir::living;

use crate::topology::address::{self, NicAddress};
use crate::topology::{End, FabricChoice, LinkChange, Topology};
use holder::Holder;
use run_dir::RunDir;
use std::path::Path;
use std::process::Command;

/// How to bring a lab up.
#[derive(Debug, Clone, Default)]
pub struct UpOptions {
    /// Its name, where it is not to be the topology's.
    pub name: Option<String>,
    /// The fabric, where it is not to be the topology's.
    pub fabric: Option<FabricChoice>,
}

/// What carries the frames now.
#[derive(Debug)]
enum Fabric {
    Kernel,
}

impl Fabric {
    fn name(&self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
        }
    }
}

/// A running cluster in a box. Dropping it ends every process in it and removes every trace.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    topology: Topology,
    plan: Vec<NicAddress>,
    carrier: Fabric,
    hosts: Vec<Holder>,
    fabric: Holder,
    run_dir: RunDir,
    notes: Vec<String>,
}

impl Cluster {
    /// Builds `topology` and returns when every address in it can be used.
    ///
    /// # Errors
    /// One sentence and what mends it; whatever had been made is gone again.
    pub fn up(topology: &Topology, options: UpOptions) -> Result<Self, ClusterError> {
        tools::require(&["unshare", "ip", "tc", "ethtool"])?;
        let mut topology = topology.clone();
        topology.fabric = options.fabric.unwrap_or(topology.fabric);
        let name = options.name.unwrap_or_else(|| topology.name.clone());
        let run_dir = RunDir::claim(&name)?;
        let plan = address::plan(&topology);
        let fabric = Holder::start("fabric", None)?;
        let mut hosts = Vec::new();
        for (index, host) in topology.hosts.iter().enumerate() {
            run_dir.write(
                &format!("{}/hosts", host.name),
                &address::hosts_file(&topology, &plan, index),
            )?;
            run_dir.write(
                &format!("{}/hostname", host.name),
                &format!("{}\n", host.name),
            )?;
            hosts.push(Holder::start(
                &host.name,
                Some(&run_dir.path().join(&host.name)),
            )?);
        }
        let notes = wiring::wire(&topology, &plan, &hosts, &fabric, false)?;
        kernel_fabric::build(&topology, &fabric)?;
        let cluster = Self {
            name,
            topology,
            plan,
            carrier: Fabric::Kernel,
            hosts,
            fabric,
            run_dir,
            notes,
        };
        cluster.publish()?;
        Ok(cluster)
    }

    /// Writes the roster for other processes to find.
    fn publish(&self) -> Result<(), ClusterError> {
        let text =
            serde_json::to_string_pretty(&self.roster()).map_err(|error| ClusterError::Io {
                doing: "writing the roster".into(),
                source: error.into(),
            })?;
        self.run_dir.write("roster.json", &text).map(drop)
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was built from.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Every NIC with its addresses, in the order of the links.
    pub fn nics(&self) -> &[NicAddress] {
        &self.plan
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// Who is in it.
    pub fn roster(&self) -> Roster {
        Roster {
            schema: SCHEMA,
            name: self.name.clone(),
            pid: std::process::id(),
            fabric: self.carrier.name().to_owned(),
            fabric_pid: self.fabric.pid(),
            hosts: self
                .hosts
                .iter()
                .map(|host| HostEntry {
                    name: host.name().to_owned(),
                    pid: host.pid(),
                })
                .collect(),
            nics: self.plan.clone(),
            notes: self.notes.clone(),
        }
    }

    /// A command that runs `program` in the host called `host`: its network, its host name, its
    /// `/etc/hosts`, its `/sys/class/net`.
    ///
    /// # Errors
    /// Names the hosts there are.
    pub fn command(&self, host: &str, program: &str) -> Result<Command, ClusterError> {
        let index = self
            .topology
            .host(host)
            .ok_or_else(|| ClusterError::NoSuchHost {
                host: host.to_owned(),
                known: self
                    .topology
                    .hosts
                    .iter()
                    .map(|h| h.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
        Ok(self.hosts[index].command(program))
    }

    /// The link called `name`, and which of its sides was named: `h1:eth1` from the NIC's side,
    /// `a:b` between two switches from the first one's.
    fn find_link(&self, name: &str) -> Result<(usize, usize), ClusterError> {
        if let Some(at) = self.topology.nic(name) {
            return Ok((at.link, at.side));
        }
        let switch = |name: &str| self.topology.switches.iter().position(|s| s.name == name);
        let between = name
            .split_once(':')
            .and_then(|(a, b)| Some((switch(a)?, switch(b)?)));
        let found = between.and_then(|(a, b)| {
            self.topology
                .links
                .iter()
                .enumerate()
                .find_map(|(index, link)| match link.ends {
                    [End::Port(x), End::Port(y)] if (x, y) == (a, b) => Some((index, 0)),
                    [End::Port(x), End::Port(y)] if (y, x) == (a, b) => Some((index, 1)),
                    _ => None,
                })
        });
        found.ok_or_else(|| ClusterError::NoSuchNic {
            nic: name.to_owned(),
            known: self.topology.nic_names().join(", "),
        })
    }

    /// Changes a link while it runs.
    ///
    /// # Errors
    /// There is no such link, or the kernel refuses.
    pub fn set_link(&mut self, name: &str, change: &LinkChange) -> Result<(), ClusterError> {
        let (index, _side) = self.find_link(name)?;
        if let Some(rate) = change.rate {
            self.topology.links[index].rate = Some(rate);
            kernel_fabric::set_rate(&self.topology, &self.fabric, index, rate)?;
            let link = &self.topology.links[index];
            for nic in link.ends.iter().filter_map(End::nic) {
                let lines = shaper::nic_lines(&nic.device, Some(rate), link.mtu, nic.queue);
                tools::batch(&self.hosts[nic.host], "tc", &lines)?;
            }
        }
        if let Some(up) = change.carrier {
            self.set_carrier(index, up)?;
        }
        Ok(())
    }

    /// Pulls or plugs the cable of link `index`: both of its ends see it.
    fn set_carrier(&self, index: usize, up: bool) -> Result<(), ClusterError> {
        let state = if up { "up" } else { "down" };
        let lines: Vec<String> = kernel_fabric::ports_of(&self.topology.links[index], index)
            .into_iter()
            .map(|(port, _)| format!("link set {port} {state}"))
            .collect();
        tools::batch(&self.fabric, "ip", &lines)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once, then each is waited for as the fields drop.
        self.hosts.iter_mut().for_each(Holder::begin_end);
        self.fabric.begin_end();
    }
}
