//! Hosts of tests. A shell script takes the place of every command, so that a test can provoke the
//! errors of commands without a lab.

use super::{Hosts, PathFacts};
use kumi_lab::topology::LinkChange;
use kumi_topo::{Delay, Network, Rate};
use std::process::Command;

/// Script that prints the address of a device, and 1 for any other command.
pub const SOUND: &str = r#"case "$*" in
    *" address "*) echo '[{"addr_info":[{"local":"10.1.0.1"}]}]' ;;
    *) echo 1 ;;
esac"#;

/// Hosts h1, h2 and so on, each with the device eth1, on one switch.
#[derive(Debug)]
pub struct Fake {
    names: Vec<String>,
    /// Script that runs for every command. Its arguments are the command's.
    script: String,
}

impl Fake {
    /// Creates `count` hosts.
    pub fn new(count: usize, script: &str) -> Self {
        Self {
            names: (1..=count).map(|number| format!("h{number}")).collect(),
            script: script.to_owned(),
        }
    }
}

impl Hosts for Fake {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn command(&self, _host: &str, argv: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.script, "sh"]).args(argv);
        command
    }

    fn run_on_machines(&self, argv: &[&str]) -> anyhow::Result<()> {
        (self as &dyn Hosts).run(&self.names[0], argv).map(drop)
    }

    fn path(&self) -> anyhow::Result<PathFacts> {
        Ok(PathFacts {
            bottleneck_bps: 1e9,
            round_trip_s: 1e-4,
        })
    }

    fn network(&self) -> anyhow::Result<Network> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let rate = Rate::from_bps(1_000_000_000).expect("is positive");
        Ok(Network::star(&names, rate, Delay::ZERO))
    }

    fn kumi(&self) -> &str {
        "kumi"
    }

    fn mpi_agent(&self) -> anyhow::Result<String> {
        Ok("ssh".into())
    }

    fn devices(&self, _host: &str) -> Vec<String> {
        vec!["eth1".into()]
    }

    fn rates_bps(&self) -> Vec<f64> {
        vec![1e9]
    }

    fn change(&self, _end: &str, _change: &LinkChange) -> anyhow::Result<()> {
        Ok(())
    }

    fn void_reasons(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn kind(&self) -> &'static str {
        "fake"
    }
}
