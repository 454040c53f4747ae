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
    pub purpose: String,
    /// Command that repairs the feature, if a repair is needed.
    pub remedy: Option<String>,
    /// True if no command works without the feature.
    pub vital: bool,
}

/// Answer of a probe: success, or the command that repairs the feature.
type Answer = Result<(), &'static str>;

/// Returns the findings of every probe, the vital ones first.
pub fn all() -> Vec<Finding> {
    use State::{Degraded, Missing};
    let on_path = |program: &str| check(is_on_path(program), install(program));
    let tap = tap_offloads();
    let mut findings = vec![
        vital("tun", "the device and the emulated links", tun()),
        vital(
            "CAP_NET_ADMIN",
            "devices, addresses and queues",
            net_admin(),
        ),
        optional("namespaces", Missing, "the lab's hosts", namespaces()),
        optional(
            "iproute2",
            Missing,
            "the lab's links and queues (ip, tc)",
            on_path("tc"),
        ),
        optional(
            "ipv6",
            Degraded,
            "peers find each other; without it, name them with --peer",
            ipv6(),
        ),
        optional(
            "udp-segmentation",
            Degraded,
            "fewer system calls per byte",
            udp_segmentation(),
        ),
        optional(
            "tap-tso",
            Degraded,
            "TCP crosses the device in bursts of 64 KB; without it, segment by segment, with complete checksums",
            tap_offload(
                tap,
                |tap| tap.checksum && tap.tcp_segmentation,
                "use Linux 5.0 or later",
            ),
        ),
        optional(
            "tap-uso",
            Degraded,
            "UDP bursts cross the device whole; without it, datagram by datagram",
            tap_offload(tap, |tap| tap.udp_segmentation, "use Linux 6.2 or later"),
        ),
        optional(
            "btf",
            Missing,
            "BPF programs",
            exists(
                "/sys/kernel/btf/vmlinux",
                "use a kernel built with CONFIG_DEBUG_INFO_BTF",
            ),
        ),
        optional(
            "cgroup2",
            Degraded,
            "kumi run; without it, only socket options are set",
            check(
                kumi_tcp::cgroup_folder(std::process::id()).is_ok(),
                "boot with systemd.unified_cgroup_hierarchy=1",
            ),
        ),
        tcp(),
        wind(),
        kernel_datapath(),
        optional("mptcp", Missing, "MPTCP as a rival in kumi bench", mptcp()),
        optional(
            "cubic",
            Missing,
            "the congestion control of every bench plan",
            congestion_control("cubic"),
        ),
        optional(
            "clang",
            Missing,
            "round robin as a rival in kumi bench",
            on_path("clang"),
        ),
        optional(
            "ethtool",
            Degraded,
            "link speeds of kumi bench --hosts, offloads in a result's manifest",
            on_path("ethtool"),
        ),
        optional(
            "iperf3",
            Missing,
            "streams of kumi bench and kumi demo",
            on_path("iperf3"),
        ),
        optional(
            "mptcpize",
            Missing,
            "MPTCP as a rival in kumi bench",
            on_path("mptcpize"),
        ),
        optional(
            "mpirun",
            Missing,
            "MPI bench plans and kumi demo",
            on_path("mpirun"),
        ),
        optional(
            "mpicc",
            Missing,
            "MPI bench plans and kumi demo",
            on_path("mpicc"),
        ),
        optional("ssh", Missing, "kumi bench --hosts", on_path("ssh")),
        optional(
            "libkumi.so",
            Missing,
            "planned collectives of kumi run, kumi demo and MPI bench plans",
            check(
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
    let is_disabled = |nic: &&Interface| kumi_device::check::is_ipv6_disabled(&nic.name);
    let names: Vec<&str> = candidates
        .filter(is_disabled)
        .map(|nic| nic.name.as_str())
        .collect();
    let first = names.first()?;
    Some(Finding {
        feature: "ipv6-nics".into(),
        state: State::Degraded,
        purpose: format!(
            "IPv6 is disabled on {}: peers are not found there",
            names.join(", ")
        ),
        remedy: Some(format!("sysctl -w net.ipv6.conf.{first}.disable_ipv6=0")),
        vital: false,
    })
}

/// Returns a finding for each device that runs here: whether it reaches its peers, and the reasons
/// if not.
fn devices() -> Vec<Finding> {
    let finding = |name: &str, state: State, reason: String, remedy: Option<String>| Finding {
        feature: format!("link {name}"),
        state,
        purpose: reason,
        remedy,
        vital: false,
    };
    let (states, failures) = match kumi_device::states::states(None) {
        Ok(states) => states,
        Err(error) => (Vec::new(), vec![error]),
    };
    let state_findings = states.iter().map(|state| {
        let name = state["device"].as_str().unwrap_or("-");
        let (up, reasons) = (why::peers_up(state), why::reasons(state));
        let peers = format!("{up} peers are reached");
        match (up, reasons.is_empty()) {
            (1.., true) => finding(name, State::Ok, peers, None),
            _ => {
                let reason = [&[peers], &reasons[..]].concat().join("; ");
                let remedy = format!("see `kumi link show {name}`");
                let state = if up == 0 {
                    State::Missing
                } else {
                    State::Degraded
                };
                finding(name, state, reason, Some(remedy))
            }
        }
    });
    let failure_findings = failures.iter().map(|error| {
        let remedy = "run kumi as root".to_owned();
        finding("", State::Degraded, format!("{error:#}"), Some(remedy))
    });
    state_findings.chain(failure_findings).collect()
}

/// Returns the capability tier that `kumi tcp up` would have here. The programs are loaded and
/// released.
fn tcp() -> Finding {
    let (state, reason, remedy) = match kumi_tcp::probe() {
        Ok(tier) if tier.lost().is_none() => {
            (State::Ok, format!("capability tier {}", tier.name()), None)
        }
        Ok(tier) => {
            let limits = tier.lost().unwrap_or_default();
            let reason = format!("capability tier {}: {limits}", tier.name());
            (
                State::Degraded,
                reason,
                Some("use a newer kernel; see docs/kernels.md"),
            )
        }
        Err(error) => {
            let reason = format!("{error}; `kumi run` then sets only socket options");
            (
                State::Degraded,
                reason,
                Some("run kumi as root, on a kernel listed in docs/kernels.md"),
            )
        }
    };
    Finding {
        feature: "tcp".into(),
        state,
        purpose: format!("kumi tcp and kumi run: {reason}"),
        remedy: remedy.map(String::from),
        vital: false,
    }
}

/// Returns whether `kumi wind up` works here. The program is loaded and released.
fn wind() -> Finding {
    let (state, reason, remedy) = match kumi_placement::Program::load() {
        Ok(_) => (
            State::Ok,
            "the kernel can execute operations".to_owned(),
            None,
        ),
        Err(error) => (
            State::Degraded,
            format!("programs execute the operations of their peers: {error}"),
            Some("run kumi as root, on Linux 5.17 or later".to_owned()),
        ),
    };
    Finding {
        feature: "wind".into(),
        state,
        purpose: format!("kumi wind up: {reason}"),
        remedy,
        vital: false,
    }
}

/// Returns whether `kumi link up --datapath kernel` works here. The programs are loaded and
/// released.
fn kernel_datapath() -> Finding {
    let (state, reason, remedy) = match kumi_device::datapath::check() {
        Ok(()) => (
            State::Ok,
            "the kernel can carry frames on trusted links".to_owned(),
            None,
        ),
        Err(error) => (
            State::Degraded,
            format!("the daemon carries all frames: {error}"),
            Some("run kumi as root, on Linux 5.12 or later".to_owned()),
        ),
    };
    Finding {
        feature: "kernel-datapath".into(),
        state,
        purpose: format!("kumi link up --datapath kernel: {reason}"),
        remedy,
        vital: false,
    }
}

fn vital(feature: &'static str, purpose: &str, answer: Answer) -> Finding {
    Finding {
        vital: true,
        ..optional(feature, State::Missing, purpose, answer)
    }
}

fn optional(feature: &'static str, fallback: State, purpose: &str, answer: Answer) -> Finding {
    let state = if answer.is_ok() { State::Ok } else { fallback };
    let remedy = answer.err().map(String::from);
    Finding {
        feature: feature.into(),
        state,
        purpose: purpose.into(),
        remedy,
        vital: false,
    }
}

fn check(is_met: bool, remedy: &'static str) -> Answer {
    if is_met { Ok(()) } else { Err(remedy) }
}

fn exists(path: &str, remedy: &'static str) -> Answer {
    check(Path::new(path).exists(), remedy)
}

fn tun() -> Answer {
    if !Path::new("/dev/net/tun").exists() {
        return Err("modprobe tun");
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    check(
        file.is_ok(),
        "run kumi as root, or: setcap cap_net_admin+ep $(command -v kumi)",
    )
}

fn net_admin() -> Answer {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let remedy = "run kumi as root, or: setcap cap_net_admin+ep $(command -v kumi)";
    check(
        effective_capabilities(&status) >> CAP_NET_ADMIN & 1 == 1,
        remedy,
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
    let status = Command::new("unshare")
        .args(["--net", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    check(
        status.is_ok_and(|status| status.success()),
        "run kumi as root, or inside: unshare -Urn",
    )
}

fn ipv6() -> Answer {
    let setting = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let is_enabled = setting.is_ok_and(|text| text.trim() == "0");
    check(is_enabled, "sysctl -w net.ipv6.conf.all.disable_ipv6=0")
}

fn udp_segmentation() -> Answer {
    let is_supported = UdpSocket::bind("127.0.0.1:0")
        .is_ok_and(|socket| setsockopt(&socket, sockopt::UdpGsoSegment, &1200).is_ok());
    check(is_supported, "use Linux 5.0 or later")
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
    is_supported: impl Fn(TapOffloads) -> bool,
    remedy: &'static str,
) -> Answer {
    match tap {
        Some(offloads) => check(is_supported(offloads), remedy),
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
    check(
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
    fn tap_offload__no_tap_or_old_kernel__has_a_remedy() {
        let offload = |tap| tap_offload(tap, |tap| tap.udp_segmentation, "use Linux 6.2 or later");
        assert_eq!(offload(Some(TapOffloads::ALL)), Ok(()));
        let old = TapOffloads {
            udp_segmentation: false,
            ..TapOffloads::ALL
        };
        assert_eq!(offload(Some(old)), Err("use Linux 6.2 or later"));
        let message = "unknown without a TAP device: fix tun and CAP_NET_ADMIN first";
        assert_eq!(offload(None), Err(message));
    }

    #[test]
    fn capabilities__status_of_root__has_net_admin() {
        let root = effective_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(root >> CAP_NET_ADMIN & 1, 1);
        assert_eq!(effective_capabilities("CapEff:\t0000000000000000\n"), 0);
    }
}
