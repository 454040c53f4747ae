//! Setting up the host's side of the device: addresses, MTU, queue, routes. All by iproute2, the
//! tool an administrator would use and can check with.

use anyhow::{Context, bail};
use std::io::Write;
use std::process::{Command, Stdio};

/// A GSO burst that leaves room for headers, so that one burst is one `UDP_SEGMENT` send.
const GSO_BYTES_MAX: u32 = 61_440;
/// The floor of TCP's retransmission timeout on the device's routes. A frame may be held 20 ms and
/// a dead link be noticed after 40 ms; twice that sum is not yet a loss, even where the
/// administrator has lowered the floor everywhere else.
const RTO_MIN_MS: u32 = 120;

/// Runs `ip` or `tc`; the error carries what it said.
pub fn run(tool: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{tool}`; install iproute2"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{tool} {}: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Brings the device up with its MTU, a ring of `queue_frames`, and addresses. What it already has
/// stays.
pub fn configure(
    device: &str,
    mtu: u32,
    queue_frames: u32,
    addresses: &[String],
) -> anyhow::Result<()> {
    let (mtu, gso, queue) = (
        mtu.to_string(),
        GSO_BYTES_MAX.to_string(),
        queue_frames.to_string(),
    );
    run(
        "ip",
        &[
            "link",
            "set",
            "dev",
            device,
            "mtu",
            &mtu,
            "txqueuelen",
            &queue,
        ],
    )?;
    // Older iproute2 does not know gso_max_size of a device; bursts are then up to 64 KB.
    let _ = run("ip", &["link", "set", "dev", device, "gso_max_size", &gso]);
    run("ip", &["link", "set", "dev", device, "up"])?;
    for address in addresses {
        run("ip", &["address", "replace", address, "dev", device])?;
    }
    Ok(())
}

/// Gives every lasting route of the device an `rto_min` that fits its hold time. A route that
/// refuses is left with the system's floor: that is no reason not to serve.
pub fn set_rto_min(device: &str) -> std::io::Result<usize> {
    let index = nix::net::if_::if_nametoindex(device)?;
    kumi_sys::route::set_rto_min(index, RTO_MIN_MS)
}

/// Removes a device that persists without a daemon.
pub fn remove(device: &str) -> anyhow::Result<()> {
    run("ip", &["link", "del", "dev", device]).map(drop)
}

/// Writes a line to standard error with the device's name, for the log.
pub fn log(device: &str, line: &str) {
    let _ = writeln!(std::io::stderr(), "{device}: {line}");
}
