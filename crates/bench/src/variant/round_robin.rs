//! Per-packet round robin in tc-BPF, a baseline in place of bonding's balance-rr.
//!
//! Not every kernel has bonding, and the lab's kernel does not. Bonding also has no variant that is
//! tuned for a fair comparison of TCP. The program is `bpf/baseline/round_robin.bpf.c`. It is
//! compiled for each host with that host's device indices, so that no map has to be filled.

use super::Running;
use anyhow::{Context, ensure};
use kumi_command::programs;
use std::process::Command;

/// Source of the BPF program, embedded in the binary.
const SOURCE: &str = include_str!("../../../../bpf/baseline/round_robin.bpf.c");

/// Preference of the filters, chosen to be apart from the host's other filters.
const FILTER_PREF: &str = "4077";

/// Stripes every packet that leaves by the first link. `is_tuned` adds the settings that help.
pub fn start(running: &mut Running<'_>, is_tuned: bool) -> anyhow::Result<()> {
    if is_tuned {
        // RACK takes a packet as lost after min_rtt/4. With a minimum of microseconds, every
        // reordering is a loss. With 0, the minimum follows the present RTT: 1900 of 1913 Mb/s were
        // reached.
        running.set_sysctl("net.ipv4.tcp_min_rtt_wlen", "0")?;
    }
    for host in running.hosts.names().to_vec() {
        stripe(running, &host, is_tuned).with_context(|| format!("round robin on {host}"))?;
    }
    Ok(())
}

fn stripe(running: &mut Running<'_>, host: &str, is_tuned: bool) -> anyhow::Result<()> {
    let devices = running.hosts.devices(host);
    let mut indices = Vec::new();
    for device in &devices {
        indices.push(running.hosts.ifindex(host, device)?.to_string());
    }
    let object = running.put(host, "round_robin.o", &compile(&indices, is_tuned)?)?;
    for (position, device) in devices.iter().enumerate() {
        // A host's fault injection may have its own clsact. The command then fails, and that clsact
        // is not deleted afterwards.
        let add = ["tc", "qdisc", "add", "dev", device, "clsact"];
        let _ = running.act(host, &add, &["tc", "qdisc", "del", "dev", device, "clsact"]);
        let hook = if position == 0 { "egress" } else { "ingress" };
        let add = [
            "tc",
            "filter",
            "add",
            "dev",
            device,
            hook,
            "pref",
            FILTER_PREF,
            "bpf",
            "da",
        ];
        let object = ["obj", object.as_str(), "sec", hook];
        let del = [
            "tc",
            "filter",
            "del",
            "dev",
            device,
            hook,
            "pref",
            FILTER_PREF,
        ];
        running.act(host, &[&add[..], &object].concat(), &del)?;
        if is_tuned {
            steer(running, host, device)?;
        }
    }
    Ok(())
}

/// Steers received packets to one CPU (RPS). Two CPUs that take packets from two links reorder
/// them.
fn steer(running: &mut Running<'_>, host: &str, device: &str) -> anyhow::Result<()> {
    let write = |mask: &str| {
        format!(
            "for queue in /sys/class/net/{device}/queues/rx-*/rps_cpus; do echo {mask} > $queue; done"
        )
    };
    running.act(host, &["sh", "-c", &write("1")], &["sh", "-c", &write("0")])
}

fn compile(indices: &[String], is_tuned: bool) -> anyhow::Result<Vec<u8>> {
    let folder = std::env::temp_dir().join(format!("kumi-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (source, object) = (
        folder.join("round_robin.bpf.c"),
        folder.join("round_robin.o"),
    );
    std::fs::write(&source, SOURCE)?;
    let output = Command::new("clang")
        .args([
            "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-c",
        ])
        // Debian and Ubuntu keep asm/types.h in a folder that the bpf target does not search.
        .arg(format!(
            "-I/usr/include/{}-linux-gnu",
            std::env::consts::ARCH
        ))
        .arg(format!("-DLINK_IFINDICES={}", indices.join(",")))
        .arg(format!("-DLINKS={}", indices.len()))
        .arg(format!("-DBALANCE_BYTES={}", u8::from(is_tuned)))
        .args([&source, std::path::Path::new("-o"), &object])
        .output()
        .with_context(|| format!("running clang; {}", programs::install("clang")))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "round_robin.bpf.c does not compile: {stderr}"
    );
    let bytes = std::fs::read(&object)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(bytes)
}
