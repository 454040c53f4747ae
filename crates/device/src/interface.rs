//! Sets up the host's side of the device: addresses, MTU, queue, neighbours and routes.
//!
//! Neighbours are set by sysctl files, everything else by netlink.

use crate::run_dir::RunDir;
use anyhow::Context;
use kumi_sys::netlink::{address, link};
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest GSO burst, in bytes. It leaves room for headers, so that one burst is one `UDP_SEGMENT`
/// send.
const GSO_BYTES_MAX: u32 = 61_440;
/// Most segments of a GSO burst: any number, which is the kernel's default. A daemon with another
/// data path may have set less.
const GSO_SEGMENTS_MAX: u32 = 65_535;
/// Floor of TCP's retransmission timeout on the device's routes, in ms.
#[derive(Debug, Clone, Copy)]
pub enum RtoFloor {
    /// The daemon carries the frames. A frame may be held for 20 ms, and a dead link may be
    /// noticed after 40 ms. Twice that sum is not yet a loss, even where the administrator has
    /// lowered the floor everywhere else.
    User = 120,
    /// The kernel carries them. It holds nothing, and a dead link is left after about 10 ms.
    Kernel = 20,
}

/// Returns the index of `device` in this network namespace.
pub fn index(device: &str) -> anyhow::Result<u32> {
    nix::net::if_::if_nametoindex(device).with_context(|| format!("no interface {device}"))
}

/// Parses an address with a prefix length, such as `10.77.0.1/24`; `None` for anything else.
pub fn parse_address(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = text.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= bits).then_some((ip, prefix))
}

/// Brings the device up with its MTU, a ring of `queue_frames`, and addresses. Addresses that it
/// already has stay.
pub fn configure(
    device: &str,
    mtu: u32,
    queue_frames: u32,
    addresses: &[String],
) -> anyhow::Result<()> {
    let index = index(device)?;
    link::set_sizes(index, mtu, queue_frames)
        .with_context(|| format!("cannot set {device} to an MTU of {mtu} bytes"))?;
    // A kernel may refuse it. Bursts are then up to 64 KB.
    let _ = link::set_gso_max_bytes(index, GSO_BYTES_MAX);
    let _ = link::set_gso_max_segments(index, GSO_SEGMENTS_MAX);
    link::set_up(index).with_context(|| format!("cannot set {device} up"))?;
    for text in addresses {
        let (ip, prefix) = parse_address(text).context("addresses are checked earlier")?;
        address::replace(index, ip, prefix)
            .with_context(|| format!("cannot add the address {text} to {device}"))?;
    }
    Ok(())
}

/// Time between two requests for a neighbour's address, in ms. The kernel's default is 1 s.
///
/// The kernel forgets the device's neighbours when the daemon restarts, or when no peer was reached
/// for a while. The first request for one is lost while no path is up, and a connection would wait
/// for the second (`docs/perf-log.md`, 2026-11-24).
const NEIGHBOUR_RETRY_MS: u32 = 100;
/// Requests before a neighbour counts as gone. They take 3 s, like the kernel's default of three.
const NEIGHBOUR_REQUESTS: u32 = 30;

/// Makes the kernel request neighbours on the device every [`NEIGHBOUR_RETRY_MS`]. A protocol that
/// the kernel lacks is skipped.
pub fn hasten_neighbours(device: &str) -> std::io::Result<()> {
    let settings = [
        ("retrans_time_ms", NEIGHBOUR_RETRY_MS),
        ("mcast_solicit", NEIGHBOUR_REQUESTS),
        ("ucast_solicit", NEIGHBOUR_REQUESTS),
    ];
    for protocol in ["ipv4", "ipv6"] {
        let folder = format!("/proc/sys/net/{protocol}/neigh/{device}");
        if std::path::Path::new(&folder).exists() {
            for (name, value) in settings {
                std::fs::write(format!("{folder}/{name}"), value.to_string())?;
            }
        }
    }
    Ok(())
}

/// Keeps the device's neighbours while no daemon runs, so that the kernel's data path can go on.
/// The device has no carrier then. Before Linux 5.16 the kernel forgets them.
pub fn keep_neighbours(device: &str) {
    for setting in [
        "ipv4/conf/{}/arp_evict_nocarrier",
        "ipv6/conf/{}/ndisc_evict_nocarrier",
    ] {
        let path = format!("/proc/sys/net/{}", setting.replace("{}", device));
        let _ = std::fs::write(path, "0");
    }
}

/// Sets an `rto_min` that fits the device's data path on its lasting routes. Returns the number of
/// changed routes, or the first error. A route that refuses keeps the system's floor, which is no
/// reason to stop.
pub fn set_rto_min(device: &str, floor: RtoFloor) -> std::io::Result<usize> {
    let index = nix::net::if_::if_nametoindex(device)?;
    kumi_sys::netlink::route::set_rto_min(index, floor as u32)
}

/// Removes a device that persists without a daemon.
pub fn remove(device: &str) -> anyhow::Result<()> {
    Ok(link::remove(index(device)?)?)
}

/// Size of a background daemon's log above which a new one begins, in bytes. The earlier part is
/// kept beside it as `.1`. A link that flaps every second fills the log in some hours.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// Bytes that may be written between two checks of the log's size.
const LOG_CHECK_BYTES: u64 = 64 << 10;

static UNCHECKED_BYTES: AtomicU64 = AtomicU64::new(LOG_CHECK_BYTES);

/// Writes a line with the device's name to standard error, for the log.
pub fn log(device: &str, line: &str) {
    let text = format!("{device}: {line}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
    let bytes = text.len() as u64;
    if UNCHECKED_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes >= LOG_CHECK_BYTES {
        UNCHECKED_BYTES.store(0, Ordering::Relaxed);
        let log = RunDir::of(device).map(|dir| dir.log());
        let _ = log.and_then(|path| Ok(rotate(&std::io::stderr(), &path, LOG_BYTES_MAX)?));
    }
}

/// Moves the contents of `output` aside if it is the file at `path` and has more than `bytes_max`.
/// The file itself stays, because the daemon and the programs that it starts have it open.
fn rotate(output: &impl AsFd, path: &Path, bytes_max: u64) -> std::io::Result<()> {
    let file = File::from(output.as_fd().try_clone_to_owned()?);
    let (open_file, named_file) = (file.metadata()?, std::fs::metadata(path)?);
    let is_the_log = (open_file.dev(), open_file.ino()) == (named_file.dev(), named_file.ino());
    if is_the_log && open_file.is_file() && open_file.len() > bytes_max {
        let mut old_path = path.as_os_str().to_owned();
        old_path.push(".1");
        std::fs::copy(path, old_path)?;
        file.set_len(0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface__absent__is_named() {
        for outcome in [
            index("kumi-absent").map(drop),
            configure("kumi-absent", 1400, 100, &[]),
            remove("kumi-absent"),
        ] {
            let error = format!("{:#}", outcome.unwrap_err());
            assert!(error.starts_with("no interface kumi-absent: "), "{error}");
        }
    }

    #[test]
    fn log__grown_beyond_the_limit__is_rotated_and_keeps_the_previous_one() {
        let path = std::env::temp_dir().join(format!("kumi-log-{}", std::process::id()));
        let old_path = path.with_extension("1");
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        file.write_all(b"0123456789").unwrap();
        rotate(&file, &path, 10).unwrap();
        assert!(!old_path.exists(), "it may have ten bytes");
        file.write_all(b"a").unwrap();
        rotate(&file, Path::new("/dev/null"), 10).unwrap();
        assert_eq!(
            file.metadata().unwrap().len(),
            11,
            "another file is left alone"
        );
        rotate(&file, &path, 10).unwrap();
        file.write_all(b"b").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"b");
        assert_eq!(std::fs::read(&old_path).unwrap(), b"0123456789a");
        for path in [path, old_path] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
