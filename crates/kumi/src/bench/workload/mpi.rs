//! Unmodified Open MPI programs, one rank on each of two hosts.
//!
//! The programs are in `bench/workloads/`, carried in the binary and compiled with `mpicc` on each
//! host when first needed. Ranks yield when idle: they may outnumber the cores of a lab, and a
//! spinning rank would then be what is measured.

use super::pingpong::measured;
use super::pingpong_ends::Timed;
use super::{Context, Measured};
use crate::bench::variant::Running;
use crate::programs::install;
use anyhow::Context as _;

/// A program of `bench/workloads/`.
pub struct Program {
    /// Name of the binary.
    pub name: &'static str,
    /// Its C source.
    pub source: &'static str,
}

/// Messages to and fro.
pub const PINGPONG: Program = Program {
    name: "mpi_pingpong",
    source: include_str!("../../../../../bench/workloads/mpi_pingpong.c"),
};

/// Messages one way, with what came when.
pub const STREAM: Program = Program {
    name: "mpi_stream",
    source: include_str!("../../../../../bench/workloads/mpi_stream.c"),
};

/// Runs the ping-pong, started on the first host.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measured>> {
    let running = context.running;
    let mut args = vec![if context.quick { "100" } else { "400" }.to_string()];
    args.extend(sizes_bytes.iter().map(u64::to_string));
    let argv = mpirun(running, &PINGPONG, &args)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let text = running.hosts.run(running.client(), &argv)?;
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| Ok(measured(&serde_json::from_str::<Timed>(line)?)))
        .collect()
}

/// The command, for the first host, that runs `program` with a rank on each of two hosts over the
/// variant's device.
pub fn mpirun(
    running: &Running<'_>,
    program: &Program,
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    mpirun_on(running, program, &running.hosts.names()[..2], args)
}

/// The same with a rank on each of `ranks_on`, in that order.
pub fn mpirun_on(
    running: &Running<'_>,
    program: &Program,
    ranks_on: &[String],
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    let hosts = running.hosts;
    let folder = format!("/tmp/kumi-bench-mpi-{}", std::process::id());
    for host in ranks_on {
        hosts
            .feed(
                host,
                &["sh", "-c", &make(&folder, program.name)],
                program.source.as_bytes(),
            )
            .with_context(|| {
                format!("compiling an MPI program with mpicc; {}", install("mpicc"))
            })?;
    }
    let (list, count) = (ranks_on.join(","), ranks_on.len().to_string());
    // What the variant wraps programs in stands before each rank if it is `kumi run`, which a launcher
    // would keep from the ranks, and before the launcher if it is `mptcpize`, as its manual has it.
    let (before_launcher, before_rank) = if running.wraps_ranks() {
        (&[][..], &running.prefix[..])
    } else {
        (&running.prefix[..], &[][..])
    };
    let mut argv: Vec<String> = before_launcher.to_vec();
    argv.extend(
        [
            "mpirun",
            "--allow-run-as-root",
            "--host",
            &list,
            "-np",
            &count,
        ]
        .map(String::from),
    );
    let agent = hosts.mpi_agent()?;
    for (key, value) in [
        ("plm_rsh_agent", agent.as_str()),
        ("btl", "tcp,self"),
        ("btl_tcp_if_include", &running.device),
        ("oob_tcp_if_include", &running.device),
        ("mpi_yield_when_idle", "1"),
        // Each of a lab's hosts believes the machine its own: all would bind to the same processor, and
        // their helpers to any, the emulator's included.
        ("hwloc_base_binding_policy", "none"),
        // Send only. With its default, put, messages both ways over one connection take turns: two
        // ranks that exchange 1 MB took 178 ms at 100 Mb/s, and 92 with this (docs/perf-log.md).
        ("btl_tcp_flags", "1"),
    ] {
        argv.extend(["--mca", key, value].map(String::from));
    }
    argv.extend_from_slice(before_rank);
    argv.push(format!("{folder}/{}", program.name));
    argv.extend_from_slice(args);
    Ok(argv)
}

/// Makes the program in `folder`, the same on every host, unless it is there: the hosts of a lab share
/// their files.
fn make(folder: &str, name: &str) -> String {
    format!(
        "mkdir -p {folder} && cd {folder} && {{ [ -x {name} ] || \
         {{ cat > {name}.c && mpicc -O2 -Wall -o {name} {name}.c; }}; }}"
    )
}

/// Removes the programs.
pub fn clean(running: &Running<'_>) {
    let folder = format!("/tmp/kumi-bench-mpi-{}", std::process::id());
    for host in running.hosts.names() {
        let _ = running.hosts.run(host, &["rm", "-rf", &folder]);
    }
}
