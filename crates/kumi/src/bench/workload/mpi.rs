//! Messages to and fro between two ranks of an unmodified Open MPI program.
//!
//! The program is `bench/workloads/mpi_pingpong.c`, compiled with `mpicc` on
//! each host when it is first needed.
//! Ranks yield when idle: they may outnumber the cores of a lab, and a spinning rank would then be
//! what is measured.

use super::pingpong::measured;
use super::pingpong_ends::Timed;
use super::{Context, Measured};
use anyhow::Context as _;

/// The program's source, carried in the binary.
const SOURCE: &str = include_str!("../../../../../bench/workloads/mpi_pingpong.c");

/// Runs the ping-pong under mpirun, started on the first host.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measured>> {
    let running = context.running;
    let hosts = running.hosts;
    let folder = format!("/tmp/kumi-bench-mpi-{}", std::process::id());
    for host in hosts.names() {
        let made = hosts.feed(host, &["sh", "-c", &make(&folder)], SOURCE.as_bytes());
        made.context("compiling mpi_pingpong.c (packaging/setup.sh installs mpicc)")?;
    }
    let program = format!("{folder}/mpi_pingpong");
    let agent = hosts.mpi_agent()?;
    let pair = format!("{},{}", running.client(), running.server());
    let interface = running.device.as_str();
    let mut argv = vec!["mpirun", "--allow-run-as-root", "--host", &pair, "-np", "2"];
    for (key, value) in [
        ("plm_rsh_agent", agent.as_str()),
        ("btl", "tcp,self"),
        ("btl_tcp_if_include", interface),
        ("oob_tcp_if_include", interface),
        ("mpi_yield_when_idle", "1"),
    ] {
        argv.extend(["--mca", key, value]);
    }
    argv.push(&program);
    argv.push(if context.quick { "100" } else { "400" });
    let sizes: Vec<String> = sizes_bytes.iter().map(u64::to_string).collect();
    argv.extend(sizes.iter().map(String::as_str));
    let text = hosts.run(running.client(), &running.wrapped(&argv))?;
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| Ok(measured(&serde_json::from_str::<Timed>(line)?)))
        .collect()
}

/// Makes the program in `folder`, the same on every host, unless it is there: the hosts of a lab share
/// their files.
fn make(folder: &str) -> String {
    format!(
        "cd {folder} 2>/dev/null || {{ mkdir -p {folder} && cd {folder}; }} && [ -x mpi_pingpong ] || \
         {{ cat > mpi_pingpong.c && mpicc -O2 -Wall -o mpi_pingpong mpi_pingpong.c; }}"
    )
}
