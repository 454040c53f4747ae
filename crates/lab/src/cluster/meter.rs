//! Traffic meter of a running lab: bytes per millisecond, port and direction.
//!
//! The papers' figures are drawn from such data (GNET-1 and GtrcNET-1 measured 1 ms averages in
//! hardware). On the emulator, every frame counts in the bin in which its transmission ended. On
//! the kernel fabric, the devices' counters are sampled once per millisecond, and a row contains
//! the measured length of its bin.

use super::error::ClusterError;
use crate::emulator::Emulator;
use crate::model::BIN_NS;
use crate::topology::address::NicAddress;
use kumi_sys::netns::Namespaces;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most rows that are kept for a reader: a minute of two NICs at full traffic. The oldest rows are
/// dropped first.
const ROWS_MAX: usize = 250_000;

/// Traffic of one direction of a NIC's link in one bin. Bins without traffic have no row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterRow {
    /// Name of the NIC, such as `h1:eth1`.
    pub nic: String,
    /// `tx` from the host into the network, `rx` towards the host.
    pub direction: String,
    /// Start of the bin, in microseconds. It counts from the start of the meter on the kernel
    /// fabric, and from the first bin with traffic on the emulator.
    pub start_us: u64,
    /// Length of the bin, in microseconds: 1000 on the emulator, the measured interval on the
    /// kernel fabric.
    pub span_us: u64,
    /// Bytes with Ethernet headers, without framing.
    pub bytes: u64,
    /// Number of frames.
    pub frames: u64,
}

/// A running traffic meter. Dropping it stops the meter.
#[derive(Debug)]
pub struct Meter {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Emulator {
        emulator: Arc<Emulator>,
        names: Vec<(usize, String, &'static str)>,
        base: Mutex<Option<u64>>,
    },
    Sampler {
        rows: Arc<Mutex<Vec<MeterRow>>>,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Meter {
    /// Starts a meter inside the emulator.
    pub(super) fn from_emulator(emulator: Arc<Emulator>, plan: &[NicAddress]) -> Self {
        emulator.set_metering(true);
        let names = plan
            .iter()
            .flat_map(|nic| {
                [
                    (2 * nic.link + nic.side, nic.name(), "tx"),
                    (2 * nic.link + 1 - nic.side, nic.name(), "rx"),
                ]
            })
            .collect();
        Self {
            source: Source::Emulator {
                emulator,
                names,
                base: Mutex::new(None),
            },
        }
    }

    /// Starts a meter that samples the counters of `ports`, the fabric's devices.
    pub(super) fn from_counters(
        fabric: &Namespaces,
        ports: &[String],
        plan: &[NicAddress],
    ) -> Result<Self, ClusterError> {
        let rows = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let names: Vec<(String, String)> = ports
            .iter()
            .cloned()
            .zip(plan.iter().map(NicAddress::name))
            .collect();
        let (fabric, thread_rows, thread_stop) =
            (fabric.clone(), Arc::clone(&rows), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("kumi-meter".into())
            .spawn(move || {
                // Without the namespace there is nothing to count, and the rows stay empty.
                if fabric.enter_net_on_thread().is_ok() {
                    sample(&names, &thread_rows, &thread_stop);
                }
            })
            .map_err(ClusterError::io("starting the meter"))?;
        Ok(Self {
            source: Source::Sampler {
                rows,
                stop,
                thread: Some(thread),
            },
        })
    }

    /// Returns the rows since the last call, in order of time.
    pub fn take(&self) -> Vec<MeterRow> {
        match &self.source {
            Source::Sampler { rows, .. } => std::mem::take(
                &mut *rows
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner),
            ),
            Source::Emulator {
                emulator,
                names,
                base,
            } => {
                let mut base = base
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                let mut rows = Vec::new();
                for bin in emulator.take_bins() {
                    let base_ns = *base.get_or_insert(bin.start_ns);
                    for (_, nic, direction) in names.iter().filter(|(line, ..)| *line == bin.line) {
                        rows.push(MeterRow {
                            nic: nic.clone(),
                            direction: (*direction).to_owned(),
                            start_us: bin.start_ns.saturating_sub(base_ns) / 1000,
                            span_us: BIN_NS / 1000,
                            bytes: bin.bytes,
                            frames: bin.frames,
                        });
                    }
                }
                rows
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        match &mut self.source {
            Source::Emulator { emulator, .. } => emulator.set_metering(false),
            Source::Sampler { stop, thread, .. } => {
                stop.store(true, Ordering::Relaxed);
                if let Some(thread) = thread.take() {
                    // A panic in the thread was reported when it happened.
                    let _ = thread.join();
                }
            }
        }
    }
}

/// Parses `text` (`/proc/net/dev`). Returns received bytes and frames, then sent bytes and frames,
/// of every device.
fn counters(text: &str) -> impl Iterator<Item = (&str, [u64; 4])> {
    text.lines().skip(2).filter_map(|line| {
        let (device, numbers) = line.split_once(':')?;
        let mut n = numbers
            .split_ascii_whitespace()
            .map(|n| n.parse::<u64>().unwrap_or(0));
        let (rx_bytes, rx_frames) = (n.next()?, n.next()?);
        let (tx_bytes, tx_frames) = (n.nth(6)?, n.next()?);
        Some((device.trim(), [rx_bytes, rx_frames, tx_bytes, tx_frames]))
    })
}

/// Samples the counters until `stop`. A port receives the frames that its NIC sent.
fn sample(names: &[(String, String)], rows: &Mutex<Vec<MeterRow>>, stop: &AtomicBool) {
    kumi_sys::punctual::forgo_timer_slack();
    let start = Instant::now();
    let mut due = start;
    let mut last: Option<(Instant, Vec<[u64; 4]>)> = None;
    while !stop.load(Ordering::Relaxed) {
        let Ok(text) = read_counters() else { return };
        let now = Instant::now();
        let devices: Vec<(&str, [u64; 4])> = counters(&text).collect();
        let current: Vec<[u64; 4]> = names
            .iter()
            .map(|(port, _)| {
                devices
                    .iter()
                    .find(|(device, _)| device == port)
                    .map_or([0; 4], |(_, c)| *c)
            })
            .collect();
        if let Some((last_time, last_counts)) = last.replace((now, current.clone())) {
            let mut rows = rows
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let start_us = last_time.duration_since(start).as_micros() as u64;
            let span_us = now.duration_since(last_time).as_micros() as u64;
            for (((_, nic), count), last_count) in names.iter().zip(&current).zip(&last_counts) {
                for (direction, index) in [("tx", 0), ("rx", 2)] {
                    let bytes = count[index].saturating_sub(last_count[index]);
                    let frames = count[index + 1].saturating_sub(last_count[index + 1]);
                    if frames > 0 {
                        let direction = direction.to_owned();
                        rows.push(MeterRow {
                            nic: nic.clone(),
                            direction,
                            start_us,
                            span_us,
                            bytes,
                            frames,
                        });
                    }
                }
            }
            let excess = rows.len().saturating_sub(ROWS_MAX);
            rows.drain(..excess);
        }
        due += Duration::from_nanos(BIN_NS);
        // After a pause, the sampler does not catch up.
        due = due.max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn read_counters() -> io::Result<String> {
    std::fs::read_to_string("/proc/thread-self/net/dev")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters__proc_net_dev__are_parsed_by_column() {
        let text = "Inter-|   Receive\n face |bytes\n  l0a: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n";
        assert_eq!(
            counters(text).collect::<Vec<_>>(),
            [("l0a", [10, 2, 30, 4])]
        );
    }
}
