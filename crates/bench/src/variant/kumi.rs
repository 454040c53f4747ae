//! The multilink device, set up by its own command line, as a user would type it.

use super::{Running, Variant};
use anyhow::{Context, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Name of the device on every host.
const DEVICE: &str = "kumi0";

/// UDP port of the device's sockets. It is fixed, so that a stranger can send forged datagrams to
/// it.
pub const PORT: u16 = 24_870;

/// Headers of a super-frame, in bytes: Ethernet, IPv4, and TCP with timestamps.
const TCP_FRAME_HEADER_BYTES: f64 = 14.0 + 20.0 + 32.0;

/// Size of the super-frames that TCP passes down in a bulk transfer, in bytes, headers included.
const SUPER_FRAME_BYTES: f64 = 65_536.0;

/// Longest wait for peers. They find each other by multicast within a second, but a busy machine
/// may take longer.
const PEER_UP_MAX: Duration = Duration::from_secs(10);

/// Interval at which a host's peers are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Brings up the device on every host and waits until all hosts see each other.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    let hosts = running.hosts.names().to_vec();
    let kumi = running.hosts.kumi().to_string();
    let key = cluster_key(running, &kumi)?;
    for (position, host) in hosts.iter().enumerate() {
        let link_list = link_devices(running, host).join(",");
        let address = format!("10.77.0.{}/24", position + 1);
        let key = running.put(host, "cluster.key", &key)?;
        let mut argv = vec![
            &*kumi,
            "link",
            "up",
            DEVICE,
            "--over",
            &link_list,
            "--address",
            &address,
        ];
        let port = PORT.to_string();
        argv.extend(["--key", &key, "--port", &port]);
        argv.extend_from_slice(options(running.variant));
        running.act(host, &argv, &[&kumi, "link", "down", DEVICE])?;
    }
    if running.variant == Variant::Ri2n {
        ping_hosts(running, &hosts)?;
    }
    for host in &hosts {
        await_peers(running, &kumi, host, hosts.len() - 1)?;
    }
    running.server_address = "10.77.0.2".into();
    running.device = DEVICE.into();
    if running.variant != Variant::KumiKernel {
        running.framing = framing(&device_state(running, &kumi, &hosts[0])?);
    }
    Ok(())
}

/// Returns the device's state on `host`, as printed by `kumi link show -j`.
pub fn device_state(running: &Running<'_>, kumi: &str, host: &str) -> anyhow::Result<Value> {
    let text = running
        .hosts
        .run(host, &[kumi, "link", "show", DEVICE, "-j"])?;
    let state: Value =
        serde_json::from_str(&text).context("`kumi link show -j` printed no JSON")?;
    Ok(state["devices"][0].clone())
}

/// Returns the payload share of the wire for one TCP stream of super-frames. A super-frame is split
/// into wire units of equal size, and carries one set of inner headers.
fn framing(state: &Value) -> Option<f64> {
    let figure = |key: &str| state["framing"][key].as_f64();
    let header_bytes = figure("burst_header_bytes")? + TCP_FRAME_HEADER_BYTES;
    let payload_share = 1.0 - header_bytes / SUPER_FRAME_BYTES;
    Some(figure("unit_bytes")? / figure("wire_bytes")? * payload_share)
}

/// Returns the resident memory of the receiving host's daemon, in bytes. The daemon is the process
/// that runs `kumi link up` in the host's network namespace.
pub fn memory_bytes(running: &Running<'_>) -> Option<f64> {
    let script = "here=$(readlink /proc/self/ns/net); for process in /proc/[0-9]*; do \
        [ \"$(readlink $process/ns/net)\" = \"$here\" ] && tr '\\0' ' ' < $process/cmdline | \
        grep -q 'link up' && grep VmRSS $process/status; done 2>/dev/null; :";
    let text = running
        .hosts
        .run(running.server(), &["sh", "-c", script])
        .ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024.0)
}

fn link_devices(running: &Running<'_>, host: &str) -> Vec<String> {
    let count = if running.variant == Variant::KumiOneLink {
        1
    } else {
        usize::MAX
    };
    running
        .hosts
        .devices(host)
        .into_iter()
        .take(count)
        .collect()
}

fn options(variant: Variant) -> &'static [&'static str] {
    match variant {
        Variant::Ri2n => &["--preset", "ri2n"],
        Variant::KumiPlain => &["--plain"],
        Variant::KumiKernel => &["--plain", "--datapath", "kernel"],
        Variant::KumiBusyPoll => &["--busy-poll"],
        _ => &[],
    }
}

/// Makes a new key on the first host and returns it.
fn cluster_key(running: &mut Running<'_>, kumi: &str) -> anyhow::Result<Vec<u8>> {
    let host = running.client().to_string();
    // `keygen` does not overwrite a file, so it gets a new name in a folder that exists.
    let file = running.put(&host, "place", b"")?;
    let path = format!("{file}.key");
    running.hosts.run(&host, &[kumi, "link", "keygen", &path])?;
    Ok(running.hosts.run(&host, &["cat", &path])?.into_bytes())
}

/// Sends pings between the hosts. Nodes of RI2N/DRV know each other only by earlier traffic (§4.4).
fn ping_hosts(running: &Running<'_>, hosts: &[String]) -> anyhow::Result<()> {
    for position in 1..hosts.len() {
        let address = format!("10.77.0.{}", position + 1);
        let ping = ["ping", "-c", "3", "-i", "0.2", "-W", "1", &address];
        running.hosts.run(&hosts[0], &ping)?;
    }
    Ok(())
}

fn await_peers(running: &Running<'_>, kumi: &str, host: &str, peers: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + PEER_UP_MAX;
    loop {
        let state = device_state(running, kumi, host)?;
        let entries = state["peers"].as_array().map_or(&[][..], Vec::as_slice);
        let is_ready = |peer: &&Value| match running.variant {
            Variant::KumiKernel => peer["datapath"] == "kernel",
            _ => peer["up"] == true,
        };
        let up_count = entries.iter().filter(is_ready).count();
        if up_count >= peers {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "{host}: {up_count} of {peers} peers up after {} s: {state}",
                PEER_UP_MAX.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
