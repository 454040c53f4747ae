//! Probes of `kumi doctor`, one per feature. A probe changes nothing.

use kumi_command::programs::{install, is_on_path};
use kumi_device::why;
use kumi_sys::netlink::link::Interface;
use kumi_sys::tap::{Tap, TapOffloads};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

/// Bit of `CAP_NET_ADMIN` in `CapEff` of /proc/self/status (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;

/// State of a feature on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The feature works.
    Ok,
    /// A lower capability tier is used.
    Degraded,
    /// The feature does not work.
    Missing,
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the feature; for a device, `link` and the device's name.
    pub feature: String,
    /// State of the feature.
    pub state: State,
    /// Purpose of the feature, or the loss without it.
    pub why: String,
    /// Command that repairs the feature, if a repair is needed.
    pub mend: Option<String>,
    /// True if no command works without the feature.
    pub vital: bool,
}

/// Answer of a probe: success, or the command that repairs the feature.
type Answer = Result<(), &'static str>;

/// Returns the findings of every probe, the vital ones first.
pub fn all() -> Vec<Finding> {
    use State::{Degraded, Missing};
    let on_path = |program: &str| found(is_on_path(program), install(program));
    let tap = tap_offloads();
    let mut findings = vec![
        vital("tun", "the device and the emulated links", tun()),
        vital(
            "CAP_NET_ADMIN",
            "devices, addresses and queues",
            net_admin(),
        ),
        other("namespaces", Missing, "the lab's hosts", namespaces()),
        other(
            "iproute2",
            Missing,
            "the lab's links and queues (ip, tc)",
            on_path("tc"),
        ),
        other(
            "ipv6",
            Degraded,
            "peers find each other; without it, name them with --peer",
            ipv6(),
        ),
        other(
            "udp-segmentation",
            Degraded,
            "fewer system calls per byte",
            udp_segmentation(),
        ),
        other(
            "tap-tso",
            Degraded,
            "TCP crosses the device in bursts of 64 KB; without it, segment by segment, with complete checksums",
            tap_offload(
                tap,
                |tap| tap.checksum && tap.tcp_segmentation,
                "use Linux 5.0 or later",
            ),
        ),
        other(
            "tap-uso",
            Degraded,
            "UDP bursts cross the device whole; without it, datagram by datagram",
            tap_offload(tap, |tap| tap.udp_segmentation, "use Linux 6.2 or later"),
        ),
        other(
            "btf",
            Missing,
            "BPF programs",
            exists(
                "/sys/kernel/btf/vmlinux",
                "use a kernel built with CONFIG_DEBUG_INFO_BTF",
            ),
        ),
        other(
            "cgroup2",
            Degraded,
            "kumi run; without it, only socket options are set",
            found(
                kumi_tcp::cgroup_folder(std::process::id()).is_ok(),
                "boot with systemd.unified_cgroup_hierarchy=1",
            ),
        ),
        tcp(),
        other("mptcp", Missing, "MPTCP as a rival in kumi bench", mptcp()),
        other(
            "cubic",
            Missing,
            "the congestion control of every bench plan",
            congestion_control("cubic"),
        ),
        other(
            "clang",
            Missing,
            "round robin as a rival in kumi bench",
            on_path("clang"),
        ),
        other(
            "ethtool",
            Degraded,
            "link speeds of kumi bench --hosts, offloads in a result's manifest",
            on_path("ethtool"),
        ),
        other(
            "iperf3",
            Missing,
            "streams of kumi bench and kumi demo",
            on_path("iperf3"),
        ),
        other(
            "mptcpize",
            Missing,
            "MPTCP as a rival in kumi bench",
            on_path("mptcpize"),
        ),
        other(
            "mpirun",
            Missing,
            "MPI bench plans and kumi demo",
            on_path("mpirun"),
        ),
        other(
            "mpicc",
            Missing,
            "MPI bench plans and kumi demo",
            on_path("mpicc"),
        ),
        other("ssh", Missing, "kumi bench --hosts", on_path("ssh")),
        other(
            "libkumi.so",
            Missing,
            "planned collectives of kumi run, kumi demo and MPI bench plans",
            found(
                kumi_command::library::planning_library().is_ok(),
                "copy libkumi.so of the same build next to kumi, or into ../lib",
            ),
        ),
    ];
    findings.extend(ipv6_of_nics());
    findings.extend(devices());
    findings
}

/// Returns a finding with the NICs on which no peer can be found because IPv6 is off on them,
/// although the system has it.
fn ipv6_of_nics() -> Option<Finding> {
    if ipv6().is_err() {
        return None; // has a finding of its own
    }
    let nics = kumi_sys::netlink::link::interfaces().ok()?;
    let candidates = nics
        .iter()
        .filter(|nic| !nic.is_loopback && nic.mac.is_some() && nic.master.is_none());
    let disabled = |nic: &&Interface| kumi_device::check::is_ipv6_disabled(&nic.name);
    let names: Vec<&str> = candidates
        .filter(disabled)
        .map(|nic| nic.name.as_str())
        .collect();
    let first = names.first()?;
    Some(Finding {
        feature: "ipv6-nics".into(),
        state: State::Degraded,
        why: format!(
            "IPv6 is disabled on {}: peers are not found there",
            names.join(", ")
        ),
        mend: Some(format!("sysctl -w net.ipv6.conf.{first}.disable_ipv6=0")),
        vital: false,
    })
}

/// Returns a finding for each device that runs here: whether it reaches its peers, and the reasons
/// if not.
fn devices() -> Vec<Finding> {
    let finding = |name: &str, state: State, why: String, mend: Option<String>| Finding {
        feature: format!("link {name}"),
        state,
        why,
        mend,
        vital: false,
    };
    let (states, failures) = match kumi_device::states::states(None) {
        Ok(found) => found,
        Err(error) => (Vec::new(), vec![error]),
    };
    let asked = states.iter().map(|state| {
        let name = state["device"].as_str().unwrap_or("-");
        let (up, reasons) = (why::peers_up(state), why::reasons(state));
        let peers = format!("{up} peers are reached");
        match (up, reasons.is_empty()) {
            (1.., true) => finding(name, State::Ok, peers, None),
            _ => {
                let why = [&[peers], &reasons[..]].concat().join("; ");
                let mend = format!("see `kumi link show {name}`");
                let state = if up == 0 {
                    State::Missing
                } else {
                    State::Degraded
                };
                finding(name, state, why, Some(mend))
            }
        }
    });
    let unasked = failures.iter().map(|error| {
        let mend = "run kumi as root".to_owned();
        finding("", State::Degraded, format!("{error:#}"), Some(mend))
    });
    asked.chain(unasked).collect()
}

/// Returns the capability tier that `kumi tcp up` would have here. The programs are loaded and
/// released.
fn tcp() -> Finding {
    let (state, why, mend) = match kumi_tcp::probe() {
        Ok(tier) if tier.lost().is_none() => {
            (State::Ok, format!("capability tier {}", tier.name()), None)
        }
        Ok(tier) => {
            let lost = tier.lost().unwrap_or_default();
            let why = format!("capability tier {}: {lost}", tier.name());
            (
                State::Degraded,
                why,
                Some("use a newer kernel; see docs/kernels.md"),
            )
        }
        Err(error) => {
            let why = format!("{error}; `kumi run` then sets only socket options");
            (
                State::Degraded,
                why,
                Some("run kumi as root, on a kernel listed in docs/kernels.md"),
            )
        }
    };
    Finding {
        feature: "tcp".into(),
        state,
        why: format!("kumi tcp and kumi run: {why}"),
        mend: mend.map(String::from),
        vital: false,
    }
}

fn vital(feature: &'static str, why: &str, answer: Answer) -> Finding {
    Finding {
        vital: true,
        ..other(feature, State::Missing, why, answer)
    }
}

fn other(feature: &'static str, without: State, why: &str, answer: Answer) -> Finding {
    let state = if answer.is_ok() { State::Ok } else { without };
    let mend = answer.err().map(String::from);
    Finding {
        feature: feature.into(),
        state,
        why: why.into(),
        mend,
        vital: false,
    }
}

fn found(met: bool, mend: &'static str) -> Answer {
    if met { Ok(()) } else { Err(mend) }
}

fn exists(path: &str, mend: &'static str) -> Answer {
    found(Path::new(path).exists(), mend)
}

fn tun() -> Answer {
    if !Path::new("/dev/net/tun").exists() {
        return Err("modprobe tun");
    }
    let opened = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    found(
        opened.is_ok(),
        "run kumi as root, or: setcap cap_net_admin+ep $(command -v kumi)",
    )
}

fn net_admin() -> Answer {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mend = "run kumi as root, or: setcap cap_net_admin+ep $(command -v kumi)";
    found(
        effective_capabilities(&status) >> CAP_NET_ADMIN & 1 == 1,
        mend,
    )
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

fn namespaces() -> Answer {
    let unshared = Command::new("unshare")
        .args(["--net", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found(
        unshared.is_ok_and(|status| status.success()),
        "run kumi as root, or inside: unshare -Urn",
    )
}

fn ipv6() -> Answer {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let works = disabled.is_ok_and(|text| text.trim() == "0");
    found(works, "sysctl -w net.ipv6.conf.all.disable_ipv6=0")
}

fn udp_segmentation() -> Answer {
    let works = UdpSocket::bind("127.0.0.1:0")
        .is_ok_and(|socket| setsockopt(&socket, sockopt::UdpGsoSegment, &1200).is_ok());
    found(works, "use Linux 5.0 or later")
}

/// Returns the offloads that a TAP has here; `None` if no TAP can be opened.
///
/// The probe's TAP lives no longer than the thread that opens it. Where permitted, it has a network
/// namespace of its own, so that programs that follow the machine's interfaces do not see it.
fn tap_offloads() -> Option<TapOffloads> {
    let probe = || {
        let _ = unshare(CloneFlags::CLONE_NEWNET);
        let tap = Tap::open("kumi-probe%d", false).ok()?;
        tap.set_offloads(TapOffloads::ALL).ok()
    };
    std::thread::spawn(probe).join().ok()?
}

fn tap_offload(
    tap: Option<TapOffloads>,
    has: impl Fn(TapOffloads) -> bool,
    mend: &'static str,
) -> Answer {
    match tap {
        Some(offloads) => found(has(offloads), mend),
        None => Err("unknown without a TAP device: fix tun and CAP_NET_ADMIN first"),
    }
}

fn mptcp() -> Answer {
    exists(
        "/proc/sys/net/mptcp/enabled",
        "use a kernel built with CONFIG_MPTCP",
    )
}

fn congestion_control(name: &str) -> Answer {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = fs::read_to_string(path).unwrap_or_default();
    found(
        available.split_whitespace().any(|known| known == name),
        "modprobe tcp_cubic",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_offloads__probe__leaves_no_device_behind() {
        tap_offloads();
        let devices = fs::read_to_string("/proc/net/dev").expect("is readable");
        assert!(!devices.contains("kumi-probe"), "{devices}");
    }

    #[test]
    fn capabilities__status_of_root__has_net_admin() {
        let root = effective_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(root >> CAP_NET_ADMIN & 1, 1);
        assert_eq!(effective_capabilities("CapEff:\t0000000000000000\n"), 0);
    }
}
