//! Shared memory, and its rivals.

use super::wind::{self, Kind, Target, Traffic, measurement};
use super::{Context, Measurement, mpi, ranks};
use crate::variant::Variant;
use anyhow::Context as _;
use kumi_command::errln;
use serde::Deserialize;
use serde_json::Value;

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Time of a first access to a page, whose home is idle. A rival's get of as many bytes.
    Miss,
    /// The same, while programs of the home's host compute.
    MissComputing,
    /// Time of a barrier at which a node has written bytes, until all others have read them.
    Barrier,
    /// Cost of a write that is found, and bytes that travel for it.
    Write,
    /// Litmus tests of the memory model.
    Litmus,
    /// Jobs in which a node is killed.
    Crash,
    /// The same with replicas, where the others go on.
    CrashReplicas,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Miss | Self::MissComputing => "miss",
            Self::Barrier => "barrier",
            Self::Write => "write",
            Self::Litmus => "litmus",
            Self::Crash => "crash",
            Self::CrashReplicas => "crash-replicas",
        }
    }
}

/// Runs a measurement on the first `nodes` hosts. `count` is the number of tests or jobs.
pub fn measure(
    context: &Context<'_>,
    measure: Measure,
    nodes: Option<usize>,
    sizes_bytes: &[u64],
    count: u64,
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let is_dsm = matches!(
        running.variant,
        Variant::Dsm | Variant::DsmUpdated | Variant::DsmMessages
    );
    let target = match measure {
        Measure::MissComputing => Target::Computing,
        _ => Target::Idle,
    };
    if !is_dsm && measure.name() == "miss" {
        return rival_miss(context, sizes_bytes, target);
    }
    let nodes = nodes.unwrap_or(running.hosts.names().len());
    let is_mpi = matches!(running.variant, Variant::MpiOneSided | Variant::MpiFlush);
    if is_mpi && measure == Measure::Barrier {
        return rival_barrier(context, nodes, sizes_bytes);
    }
    anyhow::ensure!(
        is_dsm,
        "variant {} has no measurement `{}` of shared memory",
        running.variant,
        measure.name()
    );
    if matches!(measure, Measure::Crash | Measure::CrashReplicas) {
        return crashes(
            context,
            measure,
            nodes,
            if context.quick { 1 } else { count },
        );
    }
    let _steering = wind::Steering::start(running)?;
    let _load = match target {
        Target::Computing => Some(wind::compute(running)?),
        _ => None,
    };
    let sizes: Vec<String> = sizes_bytes.iter().map(u64::to_string).collect();
    let tests = if context.quick { count / 100 } else { count };
    let tests_of_a_job = tests.min(TESTS_PER_JOB).to_string();
    let mut program = vec![running.hosts.kumi(), "workload", "dsm", measure.name()];
    if context.quick {
        program.push("--quick");
    }
    if matches!(running.variant, Variant::DsmUpdated | Variant::DsmMessages) {
        program.push("--updated");
    }
    if running.variant == Variant::DsmMessages {
        program.push("--by-messages");
    }
    program.extend(["--device", &running.device, "--rounds", &tests_of_a_job]);
    program.extend(sizes.iter().map(String::as_str));
    let mut rows = Vec::new();
    for _ in 0..tests.div_ceil(TESTS_PER_JOB).max(1) {
        let text = ranks::run(context, nodes, &[], &program, false)?;
        for line in text.lines().filter(|line| line.starts_with('{')) {
            rows.push(measurement(line).with_context(|| line.to_owned())?);
        }
    }
    Ok(match measure {
        Measure::Litmus => vec![sum(&rows)],
        _ => rows,
    })
}

/// Litmus tests of a job: more take longer than a job may.
const TESTS_PER_JOB: u64 = 50_000;

/// Returns the sums of the counts of litmus tests, and the mean of their ratio.
fn sum(jobs: &[Measurement]) -> Measurement {
    let mut row = Measurement::default();
    for (name, value) in jobs.iter().flat_map(|job| &job.figures) {
        let share = match name.ends_with("_ratio") {
            true => value / jobs.len() as f64,
            false => *value,
        };
        *row.figures.entry(name.clone()).or_default() += share;
    }
    row
}

/// Kills a node in each of `jobs` jobs.
fn crashes(
    context: &Context<'_>,
    measure: Measure,
    nodes: usize,
    jobs: u64,
) -> anyhow::Result<Vec<Measurement>> {
    let kumi = context.running.hosts.kumi();
    let mut row = Measurement::default();
    let figures = &mut row.figures;
    for seed in 1..=jobs {
        let seed = seed.to_string();
        let device = &context.running.device;
        let program = [
            kumi,
            "workload",
            "dsm",
            measure.name(),
            "--device",
            device,
            "--seed",
            &seed,
        ];
        let text = ranks::run(context, nodes, &[], &program, true)?;
        let mut noticed = 0;
        let mut add = |name: &str, count: f64| {
            *figures.entry(name.to_owned()).or_default() += count;
        };
        let mut longest_ms = 0.0_f64;
        let mut recovered_ms = 0.0_f64;
        for line in text.lines() {
            if line.starts_with('{') {
                let line: Value = serde_json::from_str(line).context("invalid line of a node")?;
                let number = |name: &str| line[name].as_f64().unwrap_or(f64::INFINITY);
                longest_ms = longest_ms.max(number("error_after_ms"));
                if measure == Measure::CrashReplicas {
                    recovered_ms = recovered_ms.max(number("recovered_after_ms"));
                }
                add("wrong", number("wrong"));
                add("misnamed", number("misnamed"));
                noticed += 1;
            } else if line.contains("cannot read page") {
                // Its home was the node that was killed.
                add("ended_by_a_page", 1.0);
                noticed += 1;
            }
        }
        add("jobs", 1.0);
        let silent = (nodes - 1) as f64 - f64::from(noticed);
        if silent > 0.0 {
            errln!("kumi: seed {seed}: {silent} nodes are silent\n{text}");
        }
        add("silent", silent);
        let longest = figures.entry("error_after_ms".to_owned()).or_default();
        *longest = longest.max(longest_ms);
        if measure == Measure::CrashReplicas {
            let longest = figures.entry("recovered_after_ms".to_owned()).or_default();
            *longest = longest.max(recovered_ms);
        }
    }
    for name in ["ended_by_a_page", "misnamed", "wrong"] {
        figures.entry(name.to_owned()).or_default();
    }
    Ok(vec![row])
}

/// Returns the times of MPI's fences, or of its flushes.
fn rival_barrier(
    context: &Context<'_>,
    nodes: usize,
    sizes_bytes: &[u64],
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let calls = match running.variant {
        Variant::MpiFlush => "flush",
        _ => "fence",
    };
    let mut args = vec![calls.to_owned(), u8::from(context.quick).to_string()];
    args.extend(sizes_bytes.iter().map(u64::to_string));
    let ranks = &running.hosts.names()[..nodes];
    let argv = mpi::mpirun_on(running, &mpi::FENCE, ranks, &args)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let text = running.hosts.run(running.client(), &argv)?;
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| measurement(line).with_context(|| line.to_owned()))
        .collect()
}

/// Returns the times of a rival's gets under the name of a miss.
fn rival_miss(
    context: &Context<'_>,
    sizes_bytes: &[u64],
    target: Target,
) -> anyhow::Result<Vec<Measurement>> {
    let traffic = Traffic {
        kind: Kind::Exchange,
        sizes_bytes,
        target,
    };
    let mut rows = wind::measure(context, traffic)?;
    for row in &mut rows {
        let time = ["get_median_us", "echo_median_us"]
            .into_iter()
            .find_map(|name| row.figures.get(name).copied());
        let time = time.with_context(|| format!("{} times no get", context.running.variant))?;
        row.figures = [("miss_median_us".to_owned(), time)].into();
    }
    Ok(rows)
}
