//! The lab in real time: hosts are namespaces, links are veths, switches are a fabric.
//!
//! ```text
//!  h1 (net, uts, mnt)          fabric (net)                h2
//!  ┌──────────────────┐   ┌───────────────────────┐   ┌──────────────────┐
//!  │ eth1: TBF + queue├───┤l0a   bridge or    l1a ├───┤eth1: TBF + queue │
//!  │ (TCP feels it)   │   │      emulator         │   │                  │
//!  └──────────────────┘   └───────────────────────┘   └──────────────────┘
//! ```
//!
//! [`Cluster::up`] creates a lab that lives as long as the value. Its processes and devices
//! disappear with the process that owns it, however that process ends. `kumi lab up` keeps a lab in
//! a background process.

pub mod control;
mod error;
mod fault_program;
mod holder;
mod kernel_fabric;
mod link_state;
mod meter;
mod neighbours;
mod others;
mod roster;
mod run_dir;
mod shaper;
pub mod supervisor;
mod tools;
mod validity;
mod wiring;

pub use error::ClusterError;
pub use meter::{Meter, MeterRow};
pub use roster::{HostEntry, Roster, SCHEMA};
pub use run_dir::running_labs;
pub use validity::Validity;

use crate::emulator::{Emulator, Processors, Report};
use crate::topology::address::{self, NicAddress};
use crate::topology::{End, FabricChoice, LinkChange, Rate, Topology};
use holder::Holder;
use kumi_sys::netns::avoid_processor_on_exec;
use link_state::LinkState;
use run_dir::RunDir;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use validity::Watch;

/// Longest wait for the carriers of a new lab's NICs.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(3);

/// Options of [`Cluster::up`].
#[derive(Debug, Clone, Default)]
pub struct UpOptions {
    /// Name of the lab, if not the topology's.
    pub name: Option<String>,
    /// Fabric, if not the topology's.
    pub fabric: Option<FabricChoice>,
    /// Seed of all randomness of an emulated fabric.
    pub seed: u64,
}

/// Fabric that carries the frames now.
#[derive(Debug)]
enum Fabric {
    Kernel,
    Emulator(Arc<Emulator>),
}

impl Fabric {
    fn name(&self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Emulator(_) => "emulator",
        }
    }
}

/// A running lab. Dropping it ends every process in it and removes all its devices and files.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    topology: Topology,
    plan: Vec<NicAddress>,
    active_fabric: Fabric,
    processors: Option<Processors>,
    states: Vec<LinkState>,
    seed: u64,
    watch: Watch,
    hosts: Vec<Holder>,
    fabric: Holder,
    run_dir: RunDir,
    notes: Vec<String>,
}

impl Cluster {
    /// Builds `topology` and returns once every address in it can be used. It waits for the
    /// addresses for at most three seconds.
    ///
    /// # Errors
    /// If a step fails. The error is one sentence with the remedy, and everything built so far is
    /// removed.
    pub fn up(topology: &Topology, options: UpOptions) -> Result<Self, ClusterError> {
        tools::require(&["unshare", "ip", "tc", "ethtool"])?;
        let mut topology = topology.clone();
        topology.fabric = options.fabric.unwrap_or(topology.fabric);
        neighbours::make_room(topology.hosts.len());
        let name = options.name.unwrap_or_else(|| topology.name.clone());
        let run_dir = RunDir::claim(&name)?;
        let plan = address::plan(&topology);
        let fabric = Holder::start("fabric", None)?;
        let mut hosts = Vec::new();
        for (index, host) in topology.hosts.iter().enumerate() {
            let hosts_file = address::hosts_file(&topology, &plan, index);
            let etc = run_dir.write_etc(&host.name, &hosts_file)?;
            hosts.push(Holder::start(&host.name, Some(&etc))?);
        }
        let finished_checksums =
            !topology.fits_kernel() || topology.fabric == FabricChoice::Emulator;
        let notes = wiring::wire(&topology, &plan, &hosts, &fabric, finished_checksums)?;
        let mut cluster = Self {
            name,
            states: topology.links.iter().map(LinkState::new).collect(),
            topology,
            plan,
            active_fabric: Fabric::Kernel,
            processors: Processors::divide(),
            seed: options.seed,
            watch: Watch::start(&hosts),
            hosts,
            fabric,
            run_dir,
            notes,
        };
        if finished_checksums {
            cluster.start_emulator()?;
        } else {
            kernel_fabric::build(&cluster.topology, &cluster.fabric)?;
            for index in 0..cluster.states.len() {
                cluster.apply_directions(index)?;
            }
        }
        cluster.await_carriers()?;
        cluster.watch = Watch::start(&cluster.hosts);
        cluster.publish()?;
        Ok(cluster)
    }

    /// Waits until every NIC has its carrier and a usable link-local address. After
    /// [`CARRIER_WAIT_MAX`] it returns without them.
    fn await_carriers(&self) -> Result<(), ClusterError> {
        let deadline = Instant::now() + CARRIER_WAIT_MAX;
        for host in &self.hosts {
            loop {
                let text = tools::run_command(
                    host,
                    "ip",
                    &["-o", "-6", "addr", "show", "scope", "link", "-tentative"],
                )?;
                let nics = self.plan.iter().filter(|nic| nic.host_name == host.name());
                if nics
                    .clone()
                    .all(|nic| text.contains(&format!(" {} ", nic.device)))
                    || nics.clone().count() == 0
                    || Instant::now() > deadline
                {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Returns the fabric's devices, in the order of [`Topology::nics`].
    fn ports(&self) -> Vec<String> {
        self.topology
            .nics()
            .map(|position| wiring::port_name(position.link, position.side))
            .collect()
    }

    /// Starts the emulator as the fabric, from the present state of the links.
    fn start_emulator(&mut self) -> Result<(), ClusterError> {
        let lines: Vec<String> = self
            .topology
            .nics()
            .filter(|position| self.states[position.link].carrier)
            .map(|position| {
                format!(
                    "link set {} up",
                    wiring::port_name(position.link, position.side)
                )
            })
            .collect();
        tools::batch(&self.fabric, "ip", &lines)?;
        let emulator = Emulator::start(
            &self.topology,
            self.fabric.namespaces(),
            &self.ports(),
            self.seed,
            self.processors.clone(),
        )
        .map_err(ClusterError::io("starting the emulator"))?;
        for (index, state) in self.states.iter().enumerate() {
            for change in state.as_changes() {
                emulator.change(index, 0, change);
            }
        }
        self.active_fabric = Fabric::Emulator(Arc::new(emulator));
        self.receive_beside_the_emulator()
    }

    /// Makes the hosts process received frames on other processors than the emulator's (ADR 016).
    /// This requires a second processor and the privilege to write to sysfs.
    fn receive_beside_the_emulator(&self) -> Result<(), ClusterError> {
        let Some(processors) = &self.processors else {
            return Ok(());
        };
        let mask = processors.receivers_mask();
        for (index, host) in self.hosts.iter().enumerate() {
            let lines: Vec<String> = self
                .topology
                .nics_of(index)
                .map(|position| {
                    let queue = format!("/sys/class/net/{}/queues/rx-0", position.nic.device);
                    format!("( echo {mask} > {queue}/rps_cpus ) 2>/dev/null || :")
                })
                .collect();
            tools::script(host, &lines)?;
        }
        Ok(())
    }

    /// Moves the whole fabric from the kernel to the emulator. The hosts keep their NICs.
    fn move_to_emulator(&mut self) -> Result<(), ClusterError> {
        if self.topology.fabric == FabricChoice::Kernel {
            return Err(ClusterError::Unsupported {
                reason: "the kernel fabric has no delay, jitter or re-ordering, and without BPF no faults".to_owned(),
                remedy: "bring the lab up with `--fabric auto` or `--fabric emulator`".to_owned(),
            });
        }
        self.finish_checksums()?;
        kernel_fabric::dismantle(&self.topology, &self.fabric)?;
        self.start_emulator()?;
        self.publish()
    }

    /// Makes the hosts compute checksums before the wire, without offload. User space forwards the
    /// real bytes, and a fault damages them, so the checksum must be among them.
    fn finish_checksums(&self) -> Result<(), ClusterError> {
        for (index, host) in self.hosts.iter().enumerate() {
            let lines: Vec<String> = self
                .topology
                .nics_of(index)
                .map(|position| format!("ethtool -K {} tx off >/dev/null", position.nic.device))
                .collect();
            tools::script(host, &lines)?;
        }
        Ok(())
    }

    /// Writes the roster, so that other processes can find the lab.
    fn publish(&self) -> Result<(), ClusterError> {
        let text =
            serde_json::to_string_pretty(&self.roster()).map_err(|error| ClusterError::Io {
                operation: "writing the roster".into(),
                reason: error.into(),
            })?;
        self.run_dir.write("roster.json", &text).map(drop)
    }

    /// Returns the lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the topology that the lab was built from, with later changes of rates.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns every NIC with its addresses, in the order of [`Topology::nics`].
    pub fn nics(&self) -> &[NicAddress] {
        &self.plan
    }

    /// Returns the directory of the lab's files.
    pub fn dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// Returns the roster of the lab.
    pub fn roster(&self) -> Roster {
        Roster {
            schema: SCHEMA,
            name: self.name.clone(),
            pid: std::process::id(),
            fabric: self.active_fabric.name().to_owned(),
            fabric_pid: self.fabric.pid(),
            fabric_processor: self.fabric_processor(),
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

    /// Returns a command that runs `program` in the host called `host`. The command has the host's
    /// network, host name, `/etc/hosts` and `/sys/class/net`.
    ///
    /// # Errors
    /// If there is no such host. The error names the lab's hosts.
    pub fn command(&self, host: &str, program: &str) -> Result<Command, ClusterError> {
        let mut command = self.hosts[self.host_index(host)?].command(program);
        if let Some(processor) = self.fabric_processor() {
            avoid_processor_on_exec(&mut command, processor);
        }
        Ok(command)
    }

    /// Returns the processor that hosts leave to the fabric: the emulator's, if there is one.
    fn fabric_processor(&self) -> Option<usize> {
        match self.active_fabric {
            Fabric::Kernel => None,
            Fabric::Emulator(_) => self.processors.as_ref().map(Processors::emulator),
        }
    }

    fn host_index(&self, host: &str) -> Result<usize, ClusterError> {
        let host_names = || {
            let names: Vec<&str> = self
                .topology
                .hosts
                .iter()
                .map(|h| h.name.as_str())
                .collect();
            names.join(", ")
        };
        self.topology
            .host(host)
            .ok_or_else(|| ClusterError::NoSuchHost {
                host: host.to_owned(),
                known: host_names(),
            })
    }

    /// Moves the calling thread into the network of the host called `host`, for good. Sockets that
    /// it opens from then on belong to that host.
    ///
    /// # Errors
    /// If there is no such host, or if the kernel refuses.
    pub fn enter_thread(&self, host: &str) -> Result<(), ClusterError> {
        let holder = &self.hosts[self.host_index(host)?];
        holder
            .namespaces()
            .enter_net_on_thread()
            .map_err(ClusterError::io(format!("entering host {host}")))
    }

    /// Changes a running link: `h1:eth1`, or `a:b` between two switches.
    ///
    /// If the kernel fabric does not support the change, the whole fabric moves to the emulator.
    ///
    /// # Errors
    /// If there is no such link, or if the kernel refuses.
    pub fn set_link(&mut self, name: &str, change: &LinkChange) -> Result<(), ClusterError> {
        let (index, side) = find_link(&self.topology, name)?;
        if let Some(rate) = change.rate {
            self.set_rate(index, rate)?;
        }
        let old = self.states[index];
        let new = old.with_change(side, change);
        self.states[index] = new;
        match &self.active_fabric {
            Fabric::Emulator(emulator) => emulator.change(index, side, change.clone()),
            Fabric::Kernel if old.directions != new.directions => self.apply_directions(index)?,
            Fabric::Kernel => {}
        }
        if old.carrier != new.carrier {
            self.set_carrier(index, new.carrier)?;
        }
        Ok(())
    }

    /// Applies the state of link `index` to the kernel fabric. If the kernel fabric does not
    /// support it, the whole fabric moves to the emulator.
    fn apply_directions(&mut self, index: usize) -> Result<(), ClusterError> {
        let directions = self.states[index].directions;
        if directions
            .iter()
            .any(|direction| direction.faults.corrupt.get() > 0.0)
        {
            self.finish_checksums()?;
        }
        for (side, direction) in directions.iter().enumerate() {
            let place = (index, side);
            if !direction.fits_kernel()
                || !kernel_fabric::set_direction(
                    &self.topology,
                    &self.fabric,
                    &self.run_dir,
                    place,
                    direction,
                )?
            {
                return self.move_to_emulator();
            }
        }
        Ok(())
    }

    fn set_rate(&mut self, index: usize, rate: Rate) -> Result<(), ClusterError> {
        self.topology.links[index].rate = Some(rate);
        if let Fabric::Kernel = self.active_fabric {
            kernel_fabric::set_rate(&self.topology, &self.fabric, index)?;
        }
        let link = &self.topology.links[index];
        for nic in link.ends.iter().filter_map(End::nic) {
            let lines = shaper::nic_lines(nic, link);
            tools::batch(&self.hosts[nic.host], "tc", &lines)?;
        }
        Ok(())
    }

    /// Pulls or plugs the cable of link `index`. Both of its ends notice.
    fn set_carrier(&self, index: usize, up: bool) -> Result<(), ClusterError> {
        let state = if up { "up" } else { "down" };
        let is_emulated = matches!(self.active_fabric, Fabric::Emulator(_));
        let link = &self.topology.links[index];
        if is_emulated && link.ends.iter().all(|end| end.nic().is_none()) {
            return Ok(());
        }
        let lines: Vec<String> = kernel_fabric::port_devices(link, index)
            .into_iter()
            .map(|(port, _)| format!("link set {port} {state}"))
            .collect();
        tools::batch(&self.fabric, "ip", &lines)
    }

    /// Starts the traffic meter: bytes per 1 ms bin, port and direction.
    ///
    /// # Errors
    /// If the meter's thread cannot be started.
    pub fn meter(&self) -> Result<Meter, ClusterError> {
        match &self.active_fabric {
            Fabric::Emulator(emulator) => {
                Ok(Meter::from_emulator(Arc::clone(emulator), &self.plan))
            }
            Fabric::Kernel => {
                Meter::from_counters(self.fabric.namespaces(), &self.ports(), &self.plan)
            }
        }
    }

    /// Starts a new period for [`Cluster::validity`]. It is called before a measurement.
    pub fn begin_watch(&mut self) {
        if let Fabric::Emulator(emulator) = &self.active_fabric {
            emulator.report();
        }
        self.watch = Watch::start(&self.hosts);
    }

    /// Returns the emulator's state, if there is an emulator. It starts a new period of lateness
    /// and overruns.
    pub fn emulator_report(&self) -> Option<Report> {
        match &self.active_fabric {
            Fabric::Emulator(emulator) => Some(emulator.report()),
            Fabric::Kernel => None,
        }
    }

    /// Returns the number of frames that the switches' full ports have dropped since the start;
    /// `None` if the kernel does not report it.
    pub fn port_drops(&self) -> Option<u64> {
        match &self.active_fabric {
            Fabric::Emulator(emulator) => Some(emulator.port_drops()),
            Fabric::Kernel => kernel_fabric::port_drops(&self.fabric),
        }
    }

    /// Returns whether the run since [`Cluster::begin_watch`] (or `up`) is valid, and the reasons
    /// if it is void.
    pub fn validity(&self) -> Validity {
        let report = match &self.active_fabric {
            Fabric::Emulator(emulator) => Some(emulator.report()),
            Fabric::Kernel => None,
        };
        self.watch.judge(&self.topology, report, &self.hosts)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All holders begin to end at once. Each is waited for when its field drops.
        self.hosts.iter_mut().for_each(Holder::begin_end);
        self.fabric.begin_end();
    }
}

/// Finds the link called `name`, and the side that the name refers to. `h1:eth1` refers to the
/// NIC's side. `a:b` between two switches refers to the side of `a`.
fn find_link(topology: &Topology, name: &str) -> Result<(usize, usize), ClusterError> {
    if let Some(position) = topology.nic(name) {
        return Ok((position.link, position.side));
    }
    let switch = |name: &str| topology.switches.iter().position(|s| s.name == name);
    let switches = name
        .split_once(':')
        .and_then(|(a, b)| Some((switch(a)?, switch(b)?)));
    let mut trunks = Vec::new();
    for (index, link) in topology.links.iter().enumerate() {
        let [End::Port(a), End::Port(b)] = link.ends else {
            continue;
        };
        if switches == Some((a, b)) {
            return Ok((index, 0));
        }
        if switches == Some((b, a)) {
            return Ok((index, 1));
        }
        let [a, b] = [a, b].map(|switch| topology.switches[switch].name.as_str());
        trunks.push(format!("{a}:{b}"));
    }
    let known = [topology.nic_names(), trunks].concat();
    Err(ClusterError::NoSuchLink {
        link: name.to_owned(),
        known: known.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_link__nic_or_two_switches__gives_the_side_and_refuses_others_with_all_names() {
        let text = r#"
            name = "t"
            host = [{ name = "h1" }, { name = "h2" }]
            switch = [{ name = "a" }, { name = "b" }]
            link = [
                { between = ["h1:eth1", "a"] },
                { between = ["a", "b"] },
                { between = ["b", "h2:eth1"] },
            ]
        "#;
        let topology = Topology::parse("t.toml", text).unwrap();
        let find = |name: &str| find_link(&topology, name);
        assert_eq!(find("h1:eth1").unwrap(), (0, 0));
        assert_eq!(find("h2:eth1").unwrap(), (2, 1));
        assert_eq!(find("a:b").unwrap(), (1, 0));
        assert_eq!(find("b:a").unwrap(), (1, 1));
        for wrong in ["h3:eth1", "a:a", "h1"] {
            let expected =
                format!("the lab has no link `{wrong}`; expected one of h1:eth1, h2:eth1, a:b");
            assert_eq!(find(wrong).unwrap_err().to_string(), expected);
        }
    }
}
