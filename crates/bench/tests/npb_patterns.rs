//! Compares the patterns of the NAS benchmarks (`bench/workloads/npb_patterns.h`) with traces of
//! the benchmarks themselves (`bench/workloads/npb_traces.json`).

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Deviation that is allowed: the keys of IS are not quite balanced, and the benchmarks also reduce
/// their times and norms.
const TOLERANCE: f64 = 0.02;

/// Traffic of the timed part of a benchmark, as `npb_trace.c` counts it.
#[derive(Deserialize)]
struct Trace {
    benchmark: String,
    class: String,
    /// Iterations in the counted part.
    iterations: u32,
    /// Messages per rank.
    messages: f64,
    /// Bytes per rank.
    bytes: f64,
    /// Bytes of all ranks from the first half of the ranks to the others.
    across_bytes: f64,
}

/// An iteration of a pattern and its start and end, as `mpi_npb --describe 1` prints them.
#[derive(Deserialize)]
struct Pattern {
    messages_per_iteration: f64,
    bytes_per_iteration: f64,
    across_bytes_per_iteration: f64,
    messages_outside: f64,
    bytes_outside: f64,
    across_bytes_outside: f64,
}

fn workloads() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/workloads")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs mpi"]
fn npb_patterns__each_traced_benchmark__sends_the_same() {
    let text = std::fs::read_to_string(workloads().join("npb_traces.json")).unwrap();
    let traces: Vec<Trace> = serde_json::from_str(&text).unwrap();
    let program = std::env::temp_dir().join(format!("kumi-npb-{}", std::process::id()));
    run(Command::new("mpicc")
        .arg(workloads().join("mpi_npb.c"))
        .arg("-o")
        .arg(&program));
    let mut differences = Vec::new();
    for trace in &traces {
        let arguments = [&trace.benchmark, &trace.class, "--describe", "1"];
        let pattern: Pattern =
            serde_json::from_str(&run(Command::new(&program).args(arguments))).unwrap();
        let iterations = f64::from(trace.iterations);
        for (name, per_iteration, outside, traced) in [
            (
                "messages",
                pattern.messages_per_iteration,
                pattern.messages_outside,
                trace.messages,
            ),
            (
                "bytes",
                pattern.bytes_per_iteration,
                pattern.bytes_outside,
                trace.bytes,
            ),
            (
                "bytes across",
                pattern.across_bytes_per_iteration,
                pattern.across_bytes_outside,
                trace.across_bytes,
            ),
        ] {
            let sent = per_iteration * iterations + outside;
            if (sent - traced).abs() > TOLERANCE * traced {
                let (benchmark, class) = (&trace.benchmark, &trace.class);
                differences.push(format!(
                    "{benchmark}.{class}: {name} {sent}, traced {traced}"
                ));
            }
        }
    }
    std::fs::remove_file(&program).unwrap();
    assert!(differences.is_empty(), "{}", differences.join("; "));
}
