//! Real machines and real NICs, over ssh.
//!
//! For a user this is the back end that counts. It needs `kumi` on the machines' PATH, root (or sudo
//! rights for the ssh user's `kumi`, `ip` and `tc`), and the names of the NICs, the same on all.

use super::Hosts;
use anyhow::{Context, bail};
use kumi_lab::topology::LinkChange;
use std::process::Command;

/// Hosts reached by `ssh NAME`.
#[derive(Debug)]
pub struct Ssh {
    names: Vec<String>,
    devices: Vec<String>,
    rates_bps: Vec<f64>,
}

impl Ssh {
    /// Uses `devices` on every host of `names`; asks the first host for their speeds.
    pub fn new(names: Vec<String>, devices: Vec<String>) -> anyhow::Result<Self> {
        let mut this = Self {
            names,
            devices,
            rates_bps: Vec::new(),
        };
        let host = this
            .names
            .first()
            .context("--hosts needs two hosts")?
            .clone();
        for device in this.devices.clone() {
            let path = format!("/sys/class/net/{device}/speed");
            let text = (&this as &dyn Hosts)
                .run(&host, &["cat", &path])
                .with_context(|| {
                    format!(
                        "{host}: cannot read the speed of {device}; give the right NICs with --over"
                    )
                })?;
            let mbps: f64 = text
                .trim()
                .parse()
                .with_context(|| format!("speed of {device}"))?;
            anyhow::ensure!(mbps > 0.0, "{host}: {device} has no carrier");
            this.rates_bps.push(mbps * 1e6);
        }
        Ok(this)
    }

    /// `h2:eth2` of a plan, as host and device of these machines: by position.
    fn place(&self, end: &str) -> anyhow::Result<(&str, &str)> {
        let position = |text: &str, prefix: &str| -> Option<usize> {
            text.strip_prefix(prefix)?
                .parse::<usize>()
                .ok()?
                .checked_sub(1)
        };
        end.split_once(':')
            .and_then(|(host, device)| {
                let host = self.names.get(position(host, "h")?)?;
                let device = self.devices.get(position(device, "eth")?)?;
                Some((host.as_str(), device.as_str()))
            })
            .with_context(|| format!("no host and device for `{end}` among those given"))
    }
}

impl Hosts for Ssh {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        let remote: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
        command.args(["-o", "BatchMode=yes", host, "--", &remote.join(" ")]);
        command
    }

    fn kumi(&self) -> &str {
        "kumi"
    }

    fn mpi_agent(&self) -> anyhow::Result<String> {
        Ok("ssh".into())
    }

    fn devices(&self, _host: &str) -> Vec<String> {
        self.devices.clone()
    }

    fn rates_bps(&self) -> Vec<f64> {
        self.rates_bps.clone()
    }

    fn change(&self, end: &str, change: &LinkChange) -> anyhow::Result<()> {
        let (host, device) = self.place(end)?;
        let Some(up) = change.carrier else {
            bail!("on real machines a plan can only cut and heal a link, not {change:?}");
        };
        let state = if up { "up" } else { "down" };
        (self as &dyn Hosts).run(host, &["ip", "link", "set", "dev", device, state])?;
        Ok(())
    }

    fn void_reasons(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn kind(&self) -> &'static str {
        "ssh"
    }
}

/// One word for the remote shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted__quotes_and_spaces__survive_a_shell() {
        assert_eq!(quoted("it's so"), r"'it'\''s so'");
    }

    #[test]
    fn place__end_of_a_plan__is_found_by_position() {
        let ssh = Ssh {
            names: vec!["left".into(), "right".into()],
            devices: vec!["enp1s0".into(), "enp2s0".into()],
            rates_bps: vec![1e9, 1e9],
        };
        assert_eq!(ssh.place("h2:eth2").expect("is there"), ("right", "enp2s0"));
        assert!(ssh.place("h3:eth1").is_err());
    }
}
