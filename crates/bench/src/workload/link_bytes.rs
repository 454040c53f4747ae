//! Bytes that each link has sent, read ten times per second: the share that each link carries.

use super::flow_ends::unix_ns;
use kumi_command::outln;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time between readings.
const PERIOD: Duration = Duration::from_millis(100);

/// Arguments of the reader.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Duration, in seconds.
    #[arg(value_parser = super::parse_duration_s)]
    seconds: f64,
    /// Devices of the links.
    #[arg(required = true)]
    devices: Vec<String>,
}

/// One reading of all devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Time of the reading, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Bytes that each device has sent since it was created.
    pub sent_bytes: Vec<u64>,
}

/// Prints one reading per line.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let readings = (args.seconds / PERIOD.as_secs_f64()) as u32;
    for _ in 0..readings {
        let text = std::fs::read_to_string("/proc/net/dev")?;
        let sent_bytes = args
            .devices
            .iter()
            .map(|device| sent_bytes(&text, device))
            .collect();
        outln!(
            "{}",
            serde_json::to_string(&Reading {
                unix_ns: unix_ns(),
                sent_bytes
            })?
        );
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

/// Returns the ninth number of a device's line in /proc/net/dev: bytes sent. 0 while the device
/// does not exist.
fn sent_bytes(text: &str, device: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))
        .find_map(|numbers| numbers.split_whitespace().nth(8)?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes__device_line__gives_the_transmitted_bytes() {
        let text = "Inter-|   Receive\n  eth1: 1 2 3 4 5 6 7 8 900 10 0 0 0 0 0 0\n eth10: 0 0 0 0 0 0 0 0 7 0\n";
        assert_eq!(sent_bytes(text, "eth1"), 900);
        assert_eq!(sent_bytes(text, "eth2"), 0);
    }
}
