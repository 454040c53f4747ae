//! Tests the window and the pacing rate after silence and after a loss against bounds, by
//! tracepoints.

use super::{Control, KUMI, wan};
use kumi_lab::Cluster;
use serde_json::Value;
use std::time::Duration;

/// Packets that fill the path: 500 Mb/s on the wire, 20 ms, 1538 bytes each.
const PATH_PACKETS: f64 = 813.0;
/// Bottleneck rate, in bits per second of payload.
const PATH_BPS: f64 = 470e6;
/// Bound between round trips, which are shorter, and pauses between bursts, which are longer.
const SILENCE_NS: u64 = 400_000_000;

/// Returns the events of a connection that sends three bursts of 4 MB after pauses.
fn bursts(cluster: &Cluster) -> Vec<Value> {
    let mut sink = cluster.command("h2", KUMI).unwrap();
    let mut sink = sink
        .args(["run", "--", KUMI, "workload", "burst-sink", "7104"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let source = [
        "workload",
        "burst-source",
        "10.1.0.2",
        "7104",
        "--pauses-ms",
        "600,600,600",
        "4194304",
    ];
    let mut trace = cluster.command("h1", KUMI).unwrap();
    let trace = trace.args(["tcp", "trace", "--", KUMI, "run", "--require", "--", KUMI]);
    let output = trace.args(source).output().unwrap();
    sink.kill().unwrap();
    sink.wait().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let events = lines.lines().filter_map(|line| {
        let event: Value = serde_json::from_str(line).ok()?;
        let is_ours = event["remote"].as_str()?.ends_with(":7104");
        is_ours.then_some(event)
    });
    events.collect()
}

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().expect("every event has it")
}

/// Returns the first segment that arrives after each silence. Its window is that of the restart,
/// because nothing has changed it since.
fn first_after_silences(events: &[Value]) -> Vec<&Value> {
    let at_ns = |event: &Value| event["at_ns"].as_u64().unwrap_or_default();
    let mut first = Vec::new();
    let mut after_silence = false;
    for pair in events.windows(2) {
        after_silence |= at_ns(&pair[1]) - at_ns(&pair[0]) > SILENCE_NS;
        if after_silence && pair[1]["event"] == "segment" {
            first.push(&pair[1]);
            after_silence = false;
        }
    }
    first
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn window_and_pacing__after_idle_time_or_loss__match_the_path_or_keep_a_third() {
    let _control = Control::up();
    let cluster = wan("trajectory");
    let events = bursts(&cluster);
    let restarts = first_after_silences(&events);
    assert_eq!(restarts.len(), 3, "of {} events", events.len());
    // The last restart knows the rates that the earlier bursts have shown.
    let (cwnd, pacing_bps) = (
        number(restarts[2], "cwnd"),
        number(restarts[2], "pacing_bps"),
    );
    assert!(
        (0.8..1.5).contains(&(cwnd / PATH_PACKETS)),
        "{}",
        restarts[2]
    );
    assert!(
        (0.8..1.5).contains(&(pacing_bps / PATH_BPS)),
        "{}",
        restarts[2]
    );
    let states = events.iter().filter(|event| event["event"] == "state");
    let mut loss_cwnd = None;
    for state in states {
        match (state["to"].as_str(), loss_cwnd) {
            (Some("recovery"), None) => loss_cwnd = Some(number(state, "cwnd")),
            (Some("open"), Some(window)) => {
                // The kernel sets the window to the threshold when the recovery completes, just
                // after this event.
                let share = number(state, "ssthresh") / window;
                assert!(
                    (0.33..=1.0).contains(&share),
                    "{share} of the window: {state}"
                );
                loss_cwnd = None;
            }
            _ => {}
        }
    }
}
