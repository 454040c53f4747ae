//! Unmodified Open MPI programs, one rank on each of two hosts.
//!
//! The programs are in `bench/workloads/`, carried in the binary and compiled with `mpicc` on each
//! host when first needed. Ranks yield when idle: they may outnumber the cores of a lab, and a
//! spinning rank would then be what is measured.

use super::pingpong::measured;
use super::pingpong_ends::Timed;
use super::{Context, Measured};
use crate::bench::variant::Running;
use anyhow::Context as _;

/// A program of `bench/workloads/`.
pub struct Program {
    name: &'static str,
    source: &'static str,
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
    let hosts = running.hosts;
    let folder = format!("/tmp/kumi-bench-mpi-{}", std::process::id());
    for host in hosts.names() {
        hosts
            .feed(
                host,
                &["sh", "-c", &make(&folder, program.name)],
                program.source.as_bytes(),
            )
            .context("compiling an MPI program (packaging/setup.sh installs mpicc)")?;
    }
    let pair = format!("{},{}", running.client(), running.server());
    let mut argv: Vec<String> = running.prefix.clone();
    argv.extend(["mpirun", "--allow-run-as-root", "--host", &pair, "-np", "2"].map(String::from));
    let agent = hosts.mpi_agent()?;
    for (key, value) in [
        ("plm_rsh_agent", agent.as_str()),
        ("btl", "tcp,self"),
        ("btl_tcp_if_include", &running.device),
        ("oob_tcp_if_include", &running.device),
        ("mpi_yield_when_idle", "1"),
    ] {
        argv.extend(["--mca", key, value].map(String::from));
    }
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
