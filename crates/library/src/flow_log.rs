//! Flow log: rates at which data was received, in a folder that `kumi topo learn` reads (ADR 023).
//!
//! Samples only data that the peer originates; a relay is no faster than its input.

use kumi_topo::{Network, Paths};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Environment variable that names the folder of the flow log on every host. Without it no log is
/// kept.
pub const FOLDER_VARIABLE: &str = "KUMI_LEARN";

/// Shortest expected duration of a logged flow (ADR 023). The times at which single chunks are
/// noticed would dominate a shorter one.
const DURATION_MIN: Duration = Duration::from_millis(2);

/// Shortest expected duration of a logged flow, in round trips (ADR 023). A connection fills a path
/// in fewer.
const ROUND_TRIPS_MIN: f64 = 8.0;

/// Number of first flows of a pair of ranks that are all logged (ADR 023). Of the later ones, only
/// the 32nd, the 64th and so on are logged.
const FIRST_FLOWS: u64 = 16;

/// Flow log of a process.
#[derive(Debug)]
pub struct FlowLog {
    folder: PathBuf,
    paths: Paths,
    /// Host name of each rank.
    hosts: Vec<String>,
    counts: Mutex<HashMap<(usize, usize), u64>>,
}

impl FlowLog {
    /// Opens the flow log if the environment names a folder.
    pub fn from_environment(network: &Network, hosts: &[&str]) -> Option<Self> {
        let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty())?;
        Some(Self::new(folder.into(), network, hosts))
    }

    fn new(folder: PathBuf, network: &Network, hosts: &[&str]) -> Self {
        Self {
            folder,
            paths: Paths::new(network),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            counts: Mutex::default(),
        }
    }

    /// Logs the flows that one rank received in a collective.
    pub fn append(&self, rank: usize, flows: &[Flow]) {
        let paths = &self.paths;
        for flow in flows {
            let (from, to) = (&self.hosts[flow.peer], &self.hosts[rank]);
            let round_trip_s = paths.latency_s(flow.peer, rank) + paths.latency_s(rank, flow.peer);
            let min_s = DURATION_MIN
                .as_secs_f64()
                .max(ROUND_TRIPS_MIN * round_trip_s);
            let expected_s = flow.bytes as f64 / paths.bytes_per_s(flow.peer, rank);
            if from == to || expected_s < min_s || flow.elapsed.is_zero() {
                continue;
            }
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry((flow.peer, rank)).or_default();
            *count += 1;
            if *count > FIRST_FLOWS && !count.is_power_of_two() {
                continue;
            }
            drop(counts);
            let bps = flow.bytes as f64 * 8.0 / flow.elapsed.as_secs_f64();
            let line = format!("{{\"from\":\"{from}\",\"to\":\"{to}\",\"bps\":{bps:.0}}}\n");
            // A full disk costs the log entry but does not fail the job.
            let file = self.folder.join(format!("{to}.ndjson"));
            let result = OpenOptions::new().create(true).append(true).open(file);
            let _ = result.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
}

/// Consecutive bytes received from one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Rank that sent the bytes.
    pub peer: usize,
    /// Bytes received after the first chunk.
    pub bytes: u64,
    /// Time from the first chunk to the last.
    pub elapsed: Duration,
}

/// Recorder of the chunks of one collective.
#[derive(Debug, Default)]
pub struct FlowRecorder {
    flows: Vec<Flow>,
    started_at: Option<Instant>,
}

impl FlowRecorder {
    /// Records the receipt of a chunk that the peer originated.
    pub fn record(&mut self, peer: usize, bytes: u64) {
        let now = Instant::now();
        if let (Some(flow), Some(started_at)) = (self.flows.last_mut(), self.started_at) {
            if flow.peer == peer {
                flow.bytes += bytes;
                flow.elapsed = now - started_at;
                return;
            }
        }
        self.flows.push(Flow {
            peer,
            bytes: 0,
            elapsed: Duration::ZERO,
        });
        self.started_at = Some(now);
    }

    /// Returns the recorded flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kumi_topo::{Delay, Rate};

    #[test]
    fn flow_log__many_long_flows__are_all_logged_at_first_and_then_sampled() {
        let folder = std::env::temp_dir().join(format!("kumi-seen-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        let network = Network::star(&["a", "b"], rate, Delay::from_ns(10_000));
        let flow_log = FlowLog::new(folder.clone(), &network, &["a", "b"]);
        let flow = Flow {
            peer: 0,
            bytes: 1 << 20,
            elapsed: Duration::from_millis(10),
        };
        let short = Flow {
            bytes: 9000,
            ..flow
        };
        for _ in 0..40 {
            flow_log.append(1, &[flow, short]);
        }
        let text = std::fs::read_to_string(folder.join("b.ndjson")).unwrap();
        assert_eq!(text.lines().count() as u64, FIRST_FLOWS + 1);
        assert_eq!(
            text.lines().next(),
            Some("{\"from\":\"a\",\"to\":\"b\",\"bps\":838860800}")
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn watch__chunks_from_alternating_peers__are_separate_flows() {
        let mut recorder = FlowRecorder::default();
        for (peer, bytes) in [(1, 10), (1, 20), (2, 5), (2, 6), (1, 7)] {
            recorder.record(peer, bytes);
        }
        let flows: Vec<_> = recorder
            .flows()
            .iter()
            .map(|flow| (flow.peer, flow.bytes))
            .collect();
        assert_eq!(flows, [(1, 20), (2, 6), (1, 0)]);
    }
}
