//! OpenSHMEM: that over Wind, and Open MPI's over UCX and TCP, by the same program.

use super::wind::{self, measurement};
use super::{Context, Measurement, mpi, ranks};
use crate::variant::{Running, Variant};
use anyhow::Context as _;
use serde::Deserialize;

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Puts, gets and atomic operations on the memory of a PE that waits in a barrier.
    OneSided,
    /// The same, while programs of that PE's host compute.
    OneSidedComputing,
    /// Barriers and all-to-alls.
    Collective,
}

/// Runs a measurement on the first `pes` hosts, with a PE on each.
pub fn measure(
    context: &Context<'_>,
    measure: Measure,
    pes: usize,
    sizes_bytes: &[u64],
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let is_one_sided = measure != Measure::Collective;
    let kind = match is_one_sided {
        true => "one-sided",
        false => "collective",
    };
    let mut args = vec![kind.to_owned(), u8::from(context.quick).to_string()];
    args.extend(sizes_bytes.iter().map(u64::to_string));
    let _steering = match is_one_sided {
        true => wind::Steering::start(running)?,
        false => None,
    };
    let _load = match measure {
        Measure::OneSidedComputing => Some(wind::compute(running)?),
        _ => None,
    };
    let text = match running.variant {
        Variant::Oshmem => rival(running, pes, &args, is_one_sided)?,
        Variant::Shmem | Variant::ShmemKernel => own(context, pes, &args, is_one_sided)?,
        variant => anyhow::bail!("variant {variant} is no OpenSHMEM library"),
    };
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let rows: Vec<Measurement> = lines
        .map(|line| measurement(line).with_context(|| line.to_owned()))
        .collect::<anyhow::Result<_>>()?;
    anyhow::ensure!(rows.len() == sizes_bytes.len(), "{text}");
    Ok(rows)
}

/// Returns words before a program that give it the processor of its end, in a lab.
fn on_processor(running: &Running<'_>, rank: &str, is_bound: bool) -> Vec<String> {
    if !is_bound || running.hosts.kind() != "lab" {
        return Vec::new();
    }
    let script = format!("exec taskset -c ${rank} \"$@\"");
    ["sh", "-c", &script, "sh"].map(String::from).to_vec()
}

/// Runs the program with the library over Wind.
fn own(
    context: &Context<'_>,
    pes: usize,
    args: &[String],
    is_bound: bool,
) -> anyhow::Result<String> {
    let running = context.running;
    let compiler = std::path::Path::new(running.hosts.kumi()).with_file_name("kumi-oshcc");
    let compiler = compiler.display().to_string();
    let folder = running.programs_folder();
    let hosts = &running.hosts.names()[..pes];
    let file = format!("kumi_{}", mpi::SHMEM.name);
    let program = (file.as_str(), mpi::SHMEM.source);
    mpi::compile(running, program, hosts, &compiler, "`make build` makes it")?;
    let mut variables = vec![format!("KUMI_SHMEM_INTERFACE={}", running.device)];
    if running.variant == Variant::ShmemKernel {
        variables.push("KUMI_SHMEM_TRUSTED=1".to_owned());
    }
    let mut program = on_processor(running, "RANK", is_bound);
    program.push(format!("{folder}/{file}"));
    program.extend_from_slice(args);
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    ranks::run(context, pes, &variables, &program, false)
}

/// Runs the program with Open MPI's library.
fn rival(
    running: &Running<'_>,
    pes: usize,
    args: &[String],
    is_bound: bool,
) -> anyhow::Result<String> {
    let mut argv = mpi::mpirun_on(running, &mpi::SHMEM, &running.hosts.names()[..pes], args)?;
    let at = argv.len() - args.len() - 1;
    argv.splice(
        at..at,
        on_processor(running, "OMPI_COMM_WORLD_RANK", is_bound),
    );
    argv.splice(1..1, mpi::over_ucx(running));
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    // Open MPI 4.1.4 with UCX 1.13 crashes at its end, after the last figure.
    let script = ["sh", "-c", "\"$@\" 2>&1 || true", "sh"];
    running
        .hosts
        .run(running.client(), &[&script[..], &argv].concat())
}
