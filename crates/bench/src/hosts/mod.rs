//! Hosts that a plan runs on: the namespaces of a lab, or real machines over ssh.
//!
//! Plans, variants and workloads use only the trait [`Hosts`], so that the same plan gives the same
//! table on both. A back end implements the execution of commands on a host and the changes of a
//! link.

pub mod background;
#[cfg(test)]
pub(crate) mod fake;
pub mod lab;
pub mod ssh;

use anyhow::{Context, bail};
use kumi_command::interrupt;
use kumi_lab::topology::LinkChange;
use kumi_topo::Network;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Longest time of a single command of a bench, in seconds. A command that takes longer is stuck,
/// and is ended on its host.
pub const COMMAND_SECONDS_MAX: u32 = 120;

const TIMEOUT: [&str; 2] = ["timeout", "--kill-after=1"];

/// Properties of a path, from the topology or, between real machines, as measured on the idle path.
#[derive(Debug, Clone, Copy)]
pub struct PathFacts {
    /// Rate of the slowest link, in bits per second on the wire; infinite without a limit.
    pub bottleneck_bps: f64,
    /// Round-trip time of the idle path, in seconds.
    pub round_trip_s: f64,
}

/// A set of hosts joined by parallel links. Data flows from the first host to the second.
pub trait Hosts {
    /// Returns the names of the hosts, in the order of the topology.
    fn names(&self) -> &[String];

    /// Returns a command that runs `argv` on `host`.
    fn command(&self, host: &str, argv: &[&str]) -> Command;

    /// Returns a command that runs `argv` on `host` in the background. The process on the host ends
    /// when the command here is ended.
    fn tied_command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = self.command(host, argv);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `argv` once on each machine. The hosts of a lab share one machine.
    fn run_on_machines(&self, argv: &[&str]) -> anyhow::Result<()>;

    /// Returns the properties of the path from the first host to the second.
    fn path(&self) -> anyhow::Result<PathFacts>;

    /// Returns the network on which collectives are planned and which gives their cut bounds.
    fn network(&self) -> anyhow::Result<Network>;

    /// Returns the command by which the hosts call this `kumi`.
    fn kumi(&self) -> &str;

    /// Returns the program with which mpirun starts its daemon on another host (`plm_rsh_agent`).
    fn mpi_agent(&self) -> anyhow::Result<String>;

    /// Returns the names of the devices of `host` that plans may use, in the order of the links.
    fn devices(&self, host: &str) -> Vec<String>;

    /// Returns the rate of each link in bit/s, in the order of the links; infinite without a limit.
    /// In a lab, the rate of a single link counts the links between the switches.
    fn rates_bps(&self) -> Vec<f64>;

    /// Changes the link that ends in `end` (`h2:eth2`: second host, second device).
    fn change(&self, end: &str, change: &LinkChange) -> anyhow::Result<()>;

    /// Returns the total number of frames lost to port overflow; `None` if the switches do not
    /// report it.
    fn port_drops(&self) -> Option<u64> {
        None
    }

    /// Returns the reasons why the measurements since the last call do not count. Empty if the back
    /// end was punctual.
    fn void_reasons(&mut self) -> Vec<String>;

    /// Returns a folder that all hosts share and that is removed with them, even after a SIGKILL.
    /// `None` stands for the temporary folder.
    fn scratch(&self) -> Option<PathBuf> {
        None
    }

    /// Returns the kind of hosts, as one word for the manifest.
    fn kind(&self) -> &'static str;
}

/// Operations on hosts that all back ends share.
impl dyn Hosts + '_ {
    /// Runs `argv` on `host` and returns its standard output. If the command fails, the error
    /// contains its standard error.
    pub fn run(&self, host: &str, argv: &[&str]) -> anyhow::Result<String> {
        self.feed(host, argv, b"")
    }

    /// Does the same as [`Self::run`], with `input` on the command's standard input.
    pub fn feed(&self, host: &str, argv: &[&str], input: &[u8]) -> anyhow::Result<String> {
        let description = || format!("on {host}: {}", argv.join(" "));
        interrupt::check()?;
        let mut child = self
            .bounded_command(host, argv, COMMAND_SECONDS_MAX)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(description)?;
        let _tie = interrupt::tie(child.id());
        // A command that does not read its input closes the pipe. That is not an error.
        let _ = child.stdin.take().expect("stdin is piped").write_all(input);
        let output = child.wait_with_output().with_context(description)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let (status, stderr) = (output.status, String::from_utf8_lossy(&output.stderr));
            let mut text = format!("{}: {status}", description());
            for output in [stderr.trim(), stdout.trim()] {
                if !output.is_empty() {
                    text += &format!(": {output}");
                }
            }
            bail!(text);
        }
        Ok(stdout)
    }

    /// Returns a command that `timeout` ends on the host itself. A killed ssh leaves its command
    /// running.
    pub fn bounded_command(&self, host: &str, argv: &[&str], seconds_max: u32) -> Command {
        let seconds = seconds_max.to_string();
        self.command(host, &[&TIMEOUT[..], &[&seconds], argv].concat())
    }

    /// Returns the command of [`Self::bounded_command`] for a process in the background.
    pub fn bounded_tied_command(&self, host: &str, argv: &[&str], seconds_max: u32) -> Command {
        let seconds = seconds_max.to_string();
        self.tied_command(host, &[&TIMEOUT[..], &[&seconds], argv].concat())
    }

    /// Writes `content` to a new file on `host` and returns its path. Only the user can read the
    /// file, because it may hold a key.
    pub fn put(&self, host: &str, name: &str, content: &[u8]) -> anyhow::Result<String> {
        let parent = self
            .scratch()
            .map_or("-t".into(), |folder| format!("-p '{}'", folder.display()));
        let script = format!(
            "umask 077; folder=$(mktemp -d {parent} kumi-bench.XXXXXX) && cat > $folder/{name} && echo $folder/{name}"
        );
        Ok(self
            .feed(host, &["sh", "-c", &script], content)?
            .trim()
            .to_string())
    }

    /// Removes a file that [`Self::put`] created, with its folder.
    pub fn remove(&self, host: &str, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            let _ = self.run(host, &["rm", "-r", folder]);
        }
    }

    /// Returns the first IPv4 address of `device` on `host`.
    pub fn address(&self, host: &str, device: &str) -> anyhow::Result<String> {
        let text = self.run(host, &["ip", "-j", "-4", "address", "show", "dev", device])?;
        let interfaces: Value = serde_json::from_str(&text)?;
        interfaces[0]["addr_info"][0]["local"]
            .as_str()
            .map(str::to_string)
            .with_context(|| format!("{host}: {device} has no IPv4 address; give it one"))
    }

    /// Returns the IPv6 link-local address of `device` on `host`.
    pub fn link_local(&self, host: &str, device: &str) -> anyhow::Result<String> {
        let argv = [
            "ip", "-j", "-6", "address", "show", "dev", device, "scope", "link",
        ];
        let interfaces: Value = serde_json::from_str(&self.run(host, &argv)?)?;
        interfaces[0]["addr_info"][0]["local"]
            .as_str()
            .map(str::to_string)
            .with_context(|| {
                format!("{host}: {device} has no IPv6 link-local address; enable IPv6")
            })
    }

    /// Returns the interface index of `device` on `host`.
    pub fn ifindex(&self, host: &str, device: &str) -> anyhow::Result<u64> {
        let text = self.run(host, &["ip", "-j", "link", "show", "dev", device])?;
        let interfaces: Value = serde_json::from_str(&text)?;
        interfaces[0]["ifindex"]
            .as_u64()
            .with_context(|| format!("{host}: no interface index of {device}"))
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    #[test]
    fn run__command_that_fails__is_shown_with_host_status_and_output() {
        for (script, message) in [
            ("exit 3", "on h1: ip link show eth9: exit status: 3"),
            (
                "echo one line; echo no such device >&2; exit 1",
                "on h1: ip link show eth9: exit status: 1: no such device: one line",
            ),
        ] {
            let fake = Fake::new(1, script);
            let hosts: &dyn Hosts = &fake;
            let error = hosts
                .run("h1", &["ip", "link", "show", "eth9"])
                .unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn address__device_without_one__is_named_with_its_host() {
        let fake = Fake::new(1, "echo '[]'");
        let hosts: &dyn Hosts = &fake;
        assert_eq!(
            hosts.address("h1", "eth1").unwrap_err().to_string(),
            "h1: eth1 has no IPv4 address; give it one"
        );
        assert_eq!(
            hosts.link_local("h1", "eth1").unwrap_err().to_string(),
            "h1: eth1 has no IPv6 link-local address; enable IPv6"
        );
    }
}
