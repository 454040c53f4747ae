//! The machines a plan runs on: a lab's namespaces, or real ones over ssh.
//!
//! Plans, variants and workloads see this trait only, so that the same plan gives the same table on
//! both. What is left to a back end is how to run a command on a host, and how to hurt a link.

pub mod background;
pub mod lab;
pub mod ssh;

use crate::interrupt;
use anyhow::{Context, bail};
use kumi_lab::topology::LinkChange;
use kumi_topo::Network;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// No single command of a bench takes longer; one that does is stuck, and is ended where it runs.
pub const COMMAND_SECONDS_MAX: u32 = 120;

const TIMEOUT: [&str; 2] = ["timeout", "--kill-after=1"];

/// What a path can do, by its topology or, between real machines, as measured at rest.
#[derive(Debug, Clone, Copy)]
pub struct PathFacts {
    /// Rate of the slowest link, in bits a second on the wire; infinite where nothing limits it.
    pub bottleneck_bps: f64,
    /// Round trip of an empty path, in seconds.
    pub round_trip_s: f64,
}

/// A set of hosts joined by parallel links. Data flows from the first host to the second.
pub trait Hosts {
    /// The hosts' names, in the order of the topology.
    fn names(&self) -> &[String];

    /// A command that runs `argv` on `host`.
    fn command(&self, host: &str, argv: &[&str]) -> Command;

    /// The same for what runs in the background: it ends on its host when the command here is ended.
    fn tied_command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = self.command(host, argv);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `argv` once on each machine that hosts are on: the hosts of a lab share one.
    fn run_on_machines(&self, argv: &[&str]) -> anyhow::Result<()>;

    /// The path from the first host to the second.
    fn path(&self) -> anyhow::Result<PathFacts>;

    /// The network that collectives are planned on, and whose busiest link bounds them.
    fn network(&self) -> anyhow::Result<Network>;

    /// How this `kumi` is called on the hosts.
    fn kumi(&self) -> &str;

    /// The program by which mpirun starts its daemon on another host (`plm_rsh_agent`).
    fn mpi_agent(&self) -> anyhow::Result<String>;

    /// Names of the devices of `host` that plans may use, first link first.
    fn devices(&self, host: &str) -> Vec<String>;

    /// Rate of each link in bit/s, first link first; infinite where nothing limits it.
    fn rates_bps(&self) -> Vec<f64>;

    /// Changes the link that ends in `end` (`h2:eth2`: second host, second device).
    fn change(&self, end: &str, change: &LinkChange) -> anyhow::Result<()>;

    /// Frames that switches' ports had no room for so far, where they can be asked.
    fn port_drops(&self) -> Option<u64> {
        None
    }

    /// Why nothing measured since the last call counts; empty when the back end was punctual.
    fn void_reasons(&mut self) -> Vec<String>;

    /// A folder of all hosts that goes with them, even after a SIGKILL; `None`: the temporary one.
    fn scratch(&self) -> Option<PathBuf> {
        None
    }

    /// One word for the manifest.
    fn kind(&self) -> &'static str;
}

/// What runs on hosts, said once for all back ends.
impl dyn Hosts + '_ {
    /// Runs `argv` on `host` and returns what it printed; fails, with what it complained of, if it
    /// fails.
    pub fn run(&self, host: &str, argv: &[&str]) -> anyhow::Result<String> {
        self.feed(host, argv, b"")
    }

    /// [`Self::run`] with `input` on its standard input.
    pub fn feed(&self, host: &str, argv: &[&str], input: &[u8]) -> anyhow::Result<String> {
        let shown = || format!("on {host}: {}", argv.join(" "));
        interrupt::check()?;
        let mut child = self
            .bounded(host, argv, COMMAND_SECONDS_MAX)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(shown)?;
        let _tied = interrupt::tie(child.id());
        // A command that does not read its input closes the pipe: that is no failure of ours.
        let _ = child.stdin.take().expect("stdin is piped").write_all(input);
        let output = child.wait_with_output().with_context(shown)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!(
                "{}: {}: {}{}",
                shown(),
                output.status,
                complaint.trim(),
                said.trim()
            );
        }
        Ok(said)
    }

    /// A command that `timeout` ends on the host itself: a killed ssh leaves its command running.
    pub fn bounded(&self, host: &str, argv: &[&str], seconds_max: u32) -> Command {
        let seconds = seconds_max.to_string();
        self.command(host, &[&TIMEOUT[..], &[&seconds], argv].concat())
    }

    /// [`Self::bounded`] for what runs in the background.
    pub fn bounded_tied(&self, host: &str, argv: &[&str], seconds_max: u32) -> Command {
        let seconds = seconds_max.to_string();
        self.tied_command(host, &[&TIMEOUT[..], &[&seconds], argv].concat())
    }

    /// Puts `content` into a new file on `host` and returns its path. The file is the user's alone:
    /// it may hold a key.
    pub fn put(&self, host: &str, name: &str, content: &[u8]) -> anyhow::Result<String> {
        let within = self
            .scratch()
            .map_or("-t".into(), |folder| format!("-p '{}'", folder.display()));
        let script = format!(
            "umask 077; folder=$(mktemp -d {within} kumi-bench.XXXXXX) && cat > $folder/{name} && echo $folder/{name}"
        );
        Ok(self
            .feed(host, &["sh", "-c", &script], content)?
            .trim()
            .to_string())
    }

    /// Removes a file that [`Self::put`] made, with its folder.
    pub fn remove(&self, host: &str, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            let _ = self.run(host, &["rm", "-r", folder]);
        }
    }

    /// First IPv4 address of `device` on `host`.
    pub fn address(&self, host: &str, device: &str) -> anyhow::Result<String> {
        let text = self.run(host, &["ip", "-j", "-4", "address", "show", "dev", device])?;
        let shown: Value = serde_json::from_str(&text)?;
        shown[0]["addr_info"][0]["local"]
            .as_str()
            .map(str::to_string)
            .with_context(|| format!("{host}: {device} has no IPv4 address; give it one"))
    }

    /// IPv6 link-local address of `device` on `host`.
    pub fn link_local(&self, host: &str, device: &str) -> anyhow::Result<String> {
        let argv = [
            "ip", "-j", "-6", "address", "show", "dev", device, "scope", "link",
        ];
        let shown: Value = serde_json::from_str(&self.run(host, &argv)?)?;
        shown[0]["addr_info"][0]["local"]
            .as_str()
            .map(str::to_string)
            .with_context(|| format!("{host}: {device} has no IPv6 link-local address"))
    }

    /// Index of `device` on `host`.
    pub fn ifindex(&self, host: &str, device: &str) -> anyhow::Result<u64> {
        let text = self.run(host, &["ip", "-j", "link", "show", "dev", device])?;
        let shown: Value = serde_json::from_str(&text)?;
        shown[0]["ifindex"]
            .as_u64()
            .with_context(|| format!("{host}: no ifindex of {device}"))
    }
}
