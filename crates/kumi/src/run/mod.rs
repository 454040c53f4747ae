//! `kumi run -- CMD`: runs CMD, one rank or any program, with the TCP of `kumi tcp up`.
//!
//! The process joins the daemon and becomes CMD, so the exit status and the signals are CMD's own.
//! Without a daemon, a preloaded library applies the settings that need no privilege.

mod coll;
mod preload;

use anyhow::Context;
use kumi_command::errln;
use kumi_tcp::Settings;
use kumi_tcp::daemon::client::{Request, ask};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Exit statuses of the shell: the command is not found, or it cannot be run.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_RUNNABLE: u8 = 126;

/// Arguments of `kumi run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Fails, with exit status 3, unless the daemon accepts the program.
    #[arg(long)]
    require: bool,
    /// Prints the settings that the program received.
    #[arg(short, long)]
    verbose: bool,
    /// Does not mark phases of MPI programs.
    #[arg(long)]
    no_phases: bool,
    /// MPI collectives to plan: `auto` (those where a plan, or all blocks at once, is measured to
    /// win), `all`, `off`, or a list such as gather,alltoall. The default is auto with a network
    /// file, and off without one. All ranks must have the same setting, or nothing is planned.
    #[arg(long, value_name = "LIST", env = "KUMI_COLL")]
    coll: Option<String>,
    /// Network file (`kumi topo`) for which collectives are planned, and from which `kumi tcp`
    /// knows the fair share of each connection in an all-to-all; without one, a single switch is
    /// assumed for plans.
    #[arg(long, value_name = "FILE", env = "KUMI_TOPOLOGY")]
    topology: Option<PathBuf>,
    /// Leaves reductions to the MPI library, so that sums of floats do not depend on the network
    /// file.
    #[arg(long)]
    reproducible: bool,
    /// Folder in which planned collectives record the goodput between hosts, for `kumi topo learn`.
    #[arg(long, value_name = "FOLDER", env = "KUMI_LEARN")]
    learn: Option<PathBuf>,
    /// Command to run.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Environment variables with a process's rank: of Open MPI, PMIx, MPICH, Slurm and PyTorch.
const RANK_VARIABLES: [&str; 5] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "RANK",
];

/// Returns true if this is rank 0 or not a rank. Only one of a job's ranks prints a warning that
/// concerns all.
fn speaks_for_job() -> bool {
    let rank = |name: &&str| std::env::var(name).ok();
    RANK_VARIABLES
        .iter()
        .find_map(rank)
        .is_none_or(|rank| rank == "0")
}

/// Prints a warning about a setting that CMD lacks, once per job. One write keeps it whole on a
/// terminal that ranks share.
fn warn(message: &str) {
    if speaks_for_job() {
        let _ = io::stderr().write_all(format!("kumi: warning: {message}\n").as_bytes());
    }
}

/// Makes CMD load the library first. If that fails, CMD still runs.
fn add_preload(command: &mut Command) {
    if let Err(error) = preload::add(command) {
        warn(&format!(
            "{error:#}; the program runs without marked phases, planned collectives and socket options"
        ));
    }
}

/// Returns the socket options that the preloaded library sets without a daemon.
fn socket_options() -> String {
    let settings = Settings::default();
    format!(
        "rto_min_us={},delack_max_us={},notsent_lowat={}",
        settings.rto_min.as_micros(),
        settings.delack_max.as_micros(),
        settings.unsent_bytes_max
    )
}

/// Runs `kumi run`. Returns only if CMD cannot be started.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let choice = coll::Choice {
        list: args.coll.as_deref(),
        topology: args.topology.as_deref(),
        is_reproducible: args.reproducible,
    };
    coll::add(&mut command, choice)?;
    if let Some(folder) = &args.learn {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--learn {}: cannot create the folder", folder.display()))?;
        command.env("KUMI_LEARN", std::path::absolute(folder)?);
    }
    let outcome = ask(&Request::Join).and_then(|(reply, page)| {
        let page = page.ok_or_else(|| io::Error::other("the daemon sent no phase page"))?;
        Ok((reply, kumi_sys::process::keep_on_exec(page)?))
    });
    match outcome {
        Ok((reply, page)) => {
            command.env("KUMI_PHASE_FD", page.to_string());
            if args.no_phases {
                command.env("KUMI_PHASES", "off");
            }
            add_preload(&mut command);
            if args.verbose {
                let tier = reply.tier.unwrap_or_default();
                errln!("kumi: joined the daemon, capability tier {tier}");
            }
        }
        Err(error) => {
            let reason = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "no daemon is running (run `kumi tcp up` as root)".to_owned()
                }
                _ => error.to_string(),
            };
            if args.require {
                errln!("kumi: {reason}");
                return Ok(ExitCode::from(crate::tcp::EXIT_TIER));
            }
            warn(&format!(
                "{reason}; only socket options are set: short timeouts and a cap on unsent data"
            ));
            command.env("KUMI_SOCKET_OPTIONS", socket_options());
            add_preload(&mut command);
        }
    }
    if args.verbose {
        command.env("KUMI_VERBOSE", "1");
    }
    let error = command.exec();
    let name = args.command[0].to_string_lossy();
    errln!("kumi: {name}: {error}");
    Ok(ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_RUNNABLE,
    }))
}
