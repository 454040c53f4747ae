//! Unmodified Open MPI programs, with one rank per host.
//!
//! The programs are in `bench/workloads/` and embedded in the binary. Each host compiles them with
//! `mpicc` when they are first needed. Ranks yield when idle. In a lab they may outnumber the
//! cores, and spinning ranks would then dominate the measurement.

use super::pingpong::measurement;
use super::pingpong_ends::RoundTrips;
use super::{Context, Measurement};
use crate::variant::{Running, Variant};
use anyhow::Context as _;
use kumi_command::programs::install;

/// A program of `bench/workloads/`.
pub struct Program {
    /// Name of the binary.
    pub name: &'static str,
    /// C source.
    pub source: &'static str,
}

/// Messages back and forth.
pub const PINGPONG: Program = Program {
    name: "mpi_pingpong",
    source: include_str!("../../../../bench/workloads/mpi_pingpong.c"),
};

/// Messages in one direction, with the times of their arrival.
pub const STREAM: Program = Program {
    name: "mpi_stream",
    source: include_str!("../../../../bench/workloads/mpi_stream.c"),
};

/// One-sided operations.
pub const ONE_SIDED: Program = Program {
    name: "mpi_onesided",
    source: include_str!("../../../../bench/workloads/mpi_onesided.c"),
};

/// Updates of all ranks between two fences.
pub const FENCE: Program = Program {
    name: "mpi_fence",
    source: include_str!("../../../../bench/workloads/mpi_fence.c"),
};

/// One-sided operations of OpenSHMEM.
pub const OSHMEM: Program = Program {
    name: "shmem_onesided",
    source: include_str!("../../../../bench/workloads/shmem_onesided.c"),
};

/// Operations and collectives of OpenSHMEM.
pub const SHMEM: Program = Program {
    name: "shmem",
    source: include_str!("../../../../bench/workloads/shmem.c"),
};

/// Runs the ping-pong, started on the first host.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let mut args = vec![if context.quick { "100" } else { "400" }.to_string()];
    args.extend(sizes_bytes.iter().map(u64::to_string));
    let argv = mpirun(running, &PINGPONG, &args)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let text = running.hosts.run(running.client(), &argv)?;
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| Ok(measurement(&serde_json::from_str::<RoundTrips>(line)?)))
        .collect()
}

/// Returns the command, for the first host, that runs `program` over the variant's device with a
/// rank on each of two hosts. Compiles the program where it is missing.
pub fn mpirun(
    running: &Running<'_>,
    program: &Program,
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    mpirun_on(running, program, &running.hosts.names()[..2], args)
}

/// Compiles a program on each host, where `file` is missing. `remedy` says how one gets the
/// compiler.
pub fn compile(
    running: &Running<'_>,
    (file, source): (&str, &str),
    rank_hosts: &[String],
    compiler: &str,
    remedy: &str,
) -> anyhow::Result<()> {
    let script = make_script(&running.programs_folder(), file, compiler);
    for host in rank_hosts {
        let fed = running
            .hosts
            .feed(host, &["sh", "-c", &script], source.as_bytes());
        fed.with_context(|| {
            format!("cannot compile {file}.c with {compiler} on {host}; if it is missing: {remedy}")
        })?;
    }
    Ok(())
}

/// Returns the options by which Open MPI's OpenSHMEM uses TCP. The hosts of a lab share one
/// machine, whose memory would be the transport.
pub fn over_ucx(running: &Running<'_>) -> [String; 4] {
    let device = format!("UCX_NET_DEVICES={}", running.device);
    ["-x", "UCX_TLS=tcp,self", "-x", &device].map(String::from)
}

/// Returns the command of [`mpirun`] with a rank on each host of `rank_hosts`, in that order.
pub fn mpirun_on(
    running: &Running<'_>,
    program: &Program,
    rank_hosts: &[String],
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    let folder = running.programs_folder();
    let compiler = match program.name {
        name if name == OSHMEM.name || name == SHMEM.name => "oshcc",
        _ => "mpicc",
    };
    let file = (program.name, program.source);
    compile(running, file, rank_hosts, compiler, install("mpicc"))?;
    launch(
        running,
        &format!("{folder}/{}", program.name),
        rank_hosts,
        args,
    )
}

/// Returns the same command for the program at `path`, which is on each host.
pub fn launch(
    running: &Running<'_>,
    path: &str,
    rank_hosts: &[String],
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    let hosts = running.hosts;
    let (list, count) = (rank_hosts.join(","), rank_hosts.len().to_string());
    // The prefix `kumi run` precedes each rank, because a launcher would not pass it on to the
    // ranks. The prefix `mptcpize` precedes the launcher, as in its manual.
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
    argv.extend(fabric(running));
    for (key, value) in [
        ("plm_rsh_agent", agent.as_str()),
        ("btl", "tcp,self"),
        ("btl_tcp_if_include", &running.device),
        ("oob_tcp_if_include", &running.device),
        ("mpi_yield_when_idle", "1"),
        // Each host of a lab takes the machine for its own. All ranks would bind to the same
        // processor, and their helper threads to any, including the emulator's.
        ("hwloc_base_binding_policy", "none"),
        // Send only. With the default, put, messages in both directions on one connection take
        // turns. Two ranks that exchange 1 MB took 178 ms at 100 Mb/s, and 92 ms with this setting
        // (`docs/perf-log.md`, 2026-11-22).
        ("btl_tcp_flags", "1"),
        // One-sided operations over messages. `rdma` refuses windows over TCP.
        ("osc", "pt2pt"),
    ] {
        argv.extend(["--mca", key, value].map(String::from));
    }
    argv.extend_from_slice(before_rank);
    argv.push(path.to_owned());
    argv.extend_from_slice(args);
    Ok(argv)
}

/// Returns the options of Open MPI by which its messages pass libfabric, if the variant has it.
fn fabric(running: &Running<'_>) -> Vec<String> {
    let provider = match running.variant {
        Variant::MpiFabricKumi => "kumi",
        Variant::MpiFabricTcp => "tcp;ofi_rxm",
        _ => return Vec::new(),
    };
    let mut options = Vec::new();
    for (key, value) in [
        ("pml", "cm"),
        ("mtl", "ofi"),
        ("mtl_ofi_provider_include", provider),
    ] {
        options.extend(["--mca", key, value].map(String::from));
    }
    let mut export = |name: &str, value: &str| {
        options.extend(["-x".to_owned(), format!("{name}={value}")]);
    };
    export("FI_TCP_IFACE", &running.device);
    export("FI_KUMI_IFACE", &running.device);
    if let Some(file) = &running.secret {
        export("FI_KUMI_KEY", file);
    }
    if let Some(folder) = &running.provider {
        export("FI_PROVIDER_PATH", folder);
    }
    options
}

/// Returns a script that compiles the program in `folder`, unless it exists there. The folder is
/// the same on every host, and the hosts of a lab share their files.
fn make_script(folder: &str, name: &str, compiler: &str) -> String {
    format!(
        "mkdir -p {folder} && cd {folder} && {{ [ -x {name} ] || \
         {{ cat > {name}.c && {compiler} -O2 -Wall -o {name} {name}.c; }}; }}"
    )
}
