//! Real machines and real NICs, over ssh.
//!
//! For a user, the results of this back end are the ones that count. It needs:
//!
//! - `kumi` on the machines' `PATH`,
//! - root, or sudo rights of the ssh user for `kumi`, `ip` and `tc`,
//! - the names of the NICs, the same on all machines.
//!
//! ssh does not prompt. Keys and host keys must be in order before; `ssh HOST true` shows whether
//! they are.

use super::{Hosts, PathFacts};
use anyhow::{Context, bail};
use kumi_command::BadInput;
use kumi_lab::topology::LinkChange;
use kumi_topo::{Delay, Network, Rate};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Latency of a host's link to the switch, in nanoseconds. Chosen by judgement.
const LATENCY_NS: u64 = 25_000;

/// Shell script that runs its arguments and ends them when its input ends. A killed ssh closes the
/// input of its command, but leaves it running. The command's traffic would then load later runs.
const TIE_SCRIPT: &str = "exec 3<&0; \"$@\" </dev/null 3<&- & child=$!; \
    { cat <&3; kill $child; } >/dev/null 2>&1 & watch=$!; exec 3<&-; \
    wait $child; status=$?; kill $watch 2>/dev/null; exit $status";

/// Hosts reached by `ssh NAME`.
#[derive(Debug)]
pub struct Ssh {
    names: Vec<String>,
    devices: Vec<String>,
    rates_bps: Vec<f64>,
    /// Configuration file of ssh, if it is not the user's own.
    config: Option<PathBuf>,
}

impl Ssh {
    /// Uses `devices` on every host of `names`. Queries the first host for their speeds.
    pub fn new(
        names: Vec<String>,
        devices: Vec<String>,
        config: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        if names.len() < 2 {
            let message = format!("--hosts {}: expected two hosts or more", names.join(","));
            return Err(BadInput(message).into());
        }
        let host = names[0].clone();
        let mut ssh = Self {
            names,
            devices,
            rates_bps: Vec::new(),
            config,
        };
        for device in ssh.devices.clone() {
            let text = (&ssh as &dyn Hosts)
                .run(&host, &["ethtool", &device])
                .with_context(|| {
                    format!(
                        "{host}: cannot read the speed of {device}; name the right NICs with --over"
                    )
                })?;
            check_carrier(&host, &device, &text)?;
            ssh.rates_bps.push(rate_bps(&text));
        }
        Ok(ssh)
    }

    /// Translates `h2:eth2` of a plan to a host and a device of these machines, by position.
    fn locate(&self, end: &str) -> anyhow::Result<(&str, &str)> {
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
            .with_context(|| {
                format!(
                    "no link end `{end}`: expected h1 to h{} and eth1 to eth{}, which stand for \
                     --hosts {} and --over {}",
                    self.names.len(),
                    self.devices.len(),
                    self.names.join(","),
                    self.devices.join(",")
                )
            })
    }
}

impl Hosts for Ssh {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        if let Some(config) = &self.config {
            command.arg("-F").arg(config);
        }
        let remote: Vec<String> = argv.iter().map(|argument| quote(argument)).collect();
        command.args(["-o", "BatchMode=yes", host, "--", &remote.join(" ")]);
        command
    }

    fn tied_command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = self.command(host, &[&["sh", "-c", TIE_SCRIPT, "sh"], argv].concat());
        command.stdin(Stdio::piped());
        command
    }

    fn run_on_machines(&self, argv: &[&str]) -> anyhow::Result<()> {
        for host in &self.names {
            (self as &dyn Hosts).run(host, argv)?;
        }
        Ok(())
    }

    /// Returns the rate of the first NIC and the shortest round trip of ten pings.
    fn path(&self) -> anyhow::Result<PathFacts> {
        let hosts = self as &dyn Hosts;
        let device = self.devices.first().context("no NIC in --over")?;
        let address = hosts.address(&self.names[1], device)?;
        let ping = ["ping", "-q", "-c", "10", "-i", "0.2", &address];
        let text = hosts.run(&self.names[0], &ping)?;
        let shortest = text
            .rsplit_once("= ")
            .and_then(|(_, numbers)| numbers.split('/').next());
        let ms: f64 = shortest
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("unexpected output of ping: {text}"))?;
        Ok(PathFacts {
            bottleneck_bps: self.rates_bps.first().copied().unwrap_or(f64::INFINITY),
            round_trip_s: ms / 1e3,
        })
    }

    /// Returns the network that would result from one switch of unlimited capacity between the
    /// hosts.
    fn network(&self) -> anyhow::Result<Network> {
        let rate_bps = self.rates_bps.first().filter(|bps| bps.is_finite());
        let rate = rate_bps.and_then(|bps| Rate::from_bps(*bps as u64));
        let rate = rate.with_context(|| {
            let device = self.devices.first().map_or("", String::as_str);
            format!(
                "{}: ethtool shows no speed of {device}, which plans of collectives need; name \
                 another NIC with --over",
                self.names[0]
            )
        })?;
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        Ok(Network::star(&names, rate, Delay::from_ns(LATENCY_NS)))
    }

    fn kumi(&self) -> &str {
        "kumi"
    }

    fn mpi_agent(&self) -> anyhow::Result<String> {
        let Some(config) = &self.config else {
            return Ok("ssh".into());
        };
        let file = config.canonicalize()?;
        Ok(format!("ssh -F {}", file.display()))
    }

    fn devices(&self, _host: &str) -> Vec<String> {
        self.devices.clone()
    }

    fn rates_bps(&self) -> Vec<f64> {
        self.rates_bps.clone()
    }

    fn change(&self, end: &str, change: &LinkChange) -> anyhow::Result<()> {
        let (host, device) = self.locate(end)?;
        let Some(is_up) = change.carrier else {
            bail!(
                "`{end}`: cannot make the change {} on real machines; expected `carrier`, or omit \
                 --hosts to use the lab",
                serde_json::to_string(change)?
            );
        };
        let state = if is_up { "up" } else { "down" };
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

/// Returns an error if `text`, the output of `ethtool`, shows that `device` has no carrier.
fn check_carrier(host: &str, device: &str, text: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        text.contains("Link detected: yes"),
        "{host}: {device} has no carrier; plug in its cable, or name other NICs with --over"
    );
    Ok(())
}

/// Returns the speed that `ethtool DEVICE` reports, in bits per second; infinite if the speed is
/// not known (virtual NICs).
fn rate_bps(text: &str) -> f64 {
    text.lines()
        .find_map(|line| line.trim().strip_prefix("Speed: ")?.strip_suffix("Mb/s"))
        .and_then(|mbps| mbps.parse::<f64>().ok())
        .map_or(f64::INFINITY, |mbps| mbps * 1e6)
}

/// Quotes one word for the remote shell.
fn quote(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tied__input_ended__ends_the_command() {
        let run = |argv: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", TIE_SCRIPT, "sh"]).args(argv);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("there is a shell")
        };
        let mut sleeping = run(&["sleep", "60"]);
        drop(sleeping.stdin.take());
        assert_eq!(sleeping.wait().expect("ends").code(), Some(128 + 15));
        let mut failing = run(&["sh", "-c", "exit 3"]);
        let input = failing.stdin.take();
        assert_eq!(failing.wait().expect("ends").code(), Some(3));
        drop(input);
    }

    #[test]
    fn rate__nic_without_a_known_speed__is_infinite() {
        let real = "Settings for eth1:\n\tSpeed: 1000Mb/s\n\tLink detected: yes\n";
        assert_eq!(rate_bps(real), 1e9);
        assert_eq!(rate_bps("\tSpeed: Unknown!\n"), f64::INFINITY);
    }

    #[test]
    fn quoted__quotes_and_spaces__survive_a_shell() {
        assert_eq!(quote("it's so"), r"'it'\''s so'");
    }

    fn ssh(rate_bps: f64) -> Ssh {
        Ssh {
            names: vec!["left".into(), "right".into()],
            devices: vec!["enp1s0".into(), "enp2s0".into()],
            rates_bps: vec![rate_bps; 2],
            config: None,
        }
    }

    #[test]
    fn place__nic_name_of_a_plan__maps_to_host_and_device_by_position() {
        let ssh = ssh(1e9);
        assert_eq!(
            ssh.locate("h2:eth2").expect("is there"),
            ("right", "enp2s0")
        );
        for end in ["h3:eth1", "h1:eth3", "h0:eth1", "s1:s2", "h1"] {
            let expected = format!(
                "no link end `{end}`: expected h1 to h2 and eth1 to eth2, which stand for \
                 --hosts left,right and --over enp1s0,enp2s0"
            );
            assert_eq!(ssh.locate(end).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn change__other_than_of_the_carrier__is_refused_on_real_machines() {
        let change = LinkChange {
            blackhole: Some(true),
            ..LinkChange::default()
        };
        let expected = "`h2:eth2`: cannot make the change \
                        {\"direction\":\"both\",\"blackhole\":true} on real machines; expected \
                        `carrier`, or omit --hosts to use the lab";
        let error = ssh(1e9).change("h2:eth2", &change).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn network__nic_of_unknown_speed__is_named() {
        assert!(ssh(1e9).network().is_ok());
        assert_eq!(
            ssh(f64::INFINITY).network().unwrap_err().to_string(),
            "left: ethtool shows no speed of enp1s0, which plans of collectives need; name another \
             NIC with --over"
        );
    }

    #[test]
    fn hosts__that_cannot_be_used__are_named_with_the_option() {
        let new = |names: &[&str], config: Option<&str>| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Ssh::new(names, vec!["eth7".into()], config.map(PathBuf::from)).unwrap_err()
        };
        let alone = new(&["left"], None);
        assert_eq!(
            alone.to_string(),
            "--hosts left: expected two hosts or more"
        );
        assert!(alone.is::<BadInput>());
        // ssh ends at once, because its configuration file is absent.
        let unread = new(&["left", "right"], Some("/nowhere/ssh.conf"));
        let expected = "left: cannot read the speed of eth7; name the right NICs with --over";
        assert_eq!(unread.to_string(), expected);
        let unplugged = check_carrier("left", "eth7", "\tLink detected: no\n").unwrap_err();
        let expected = "left: eth7 has no carrier; plug in its cable, or name other NICs with \
                        --over";
        assert_eq!(unplugged.to_string(), expected);
    }
}
