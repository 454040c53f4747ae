//! `kumi lab`: a cluster of emulated hosts on one machine.

#[cfg(feature = "bench")]
mod check;
mod exec;
pub mod link;
mod list;
mod meter;
mod up;

use clap::Subcommand;
use kumi_command::BadInput;
use kumi_lab::ClusterError;
use std::process::ExitCode;

/// Arguments of `kumi lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Builds the lab that a topology file describes and keeps it in the background.
    Up(up::Args),
    /// Takes a lab down and removes everything that it created.
    Down(list::DownArgs),
    /// Lists the labs that are up.
    Ls(list::LsArgs),
    /// Runs a command in a host and exits with its status.
    Exec(exec::Args),
    /// Opens a shell in a host.
    Shell(exec::ShellArgs),
    /// Changes a link while it runs.
    Link(link::Args),
    /// Prints the bytes of each NIC and direction in bins of 1 ms, while they pass.
    Meter(meter::MeterArgs),
    /// Reports whether the runs since the last call are valid.
    Validity(meter::ValidityArgs),
    /// Checks the lab itself: rates, delays, queues, and its agreement with the simulation.
    #[cfg(feature = "bench")]
    Check(check::Args),
    /// Starts a program in a host as rsh would; for mpirun's `plm_rsh_agent`.
    #[command(hide = true)]
    Rsh(exec::RshArgs),
    /// Owns a lab; started by `up`.
    #[command(hide = true)]
    Supervise(up::Args),
}

/// Runs `kumi lab`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Up(args) => up::run(args),
        Verb::Down(args) => list::down(args),
        Verb::Ls(args) => list::ls(args),
        Verb::Exec(args) => exec::exec(args),
        Verb::Shell(args) => exec::shell(args),
        Verb::Link(args) => link::run(args),
        Verb::Meter(args) => meter::meter(args),
        Verb::Validity(args) => meter::validity(args),
        #[cfg(feature = "bench")]
        Verb::Check(args) => check::run(args),
        Verb::Rsh(args) => exec::rsh(args),
        Verb::Supervise(args) => up::supervise(args),
    }
}

/// Converts an error of the lab. A wrong name exits as bad input, and any other error as a failure.
fn lab_error(error: ClusterError) -> anyhow::Error {
    match error {
        ClusterError::NoSuchHost { .. }
        | ClusterError::NoSuchLink { .. }
        | ClusterError::NoSuchNic { .. }
        | ClusterError::NoSuchLab { .. }
        | ClusterError::NoneUp
        | ClusterError::SeveralUp { .. }
        | ClusterError::NameTaken { .. } => BadInput(error.to_string()).into(),
        _ => error.into(),
    }
}
