//! `kumi tcp`: installs the TCP programs and observes connections.

mod daemon;
mod enable;
mod explain;
mod show;
mod trace;
mod up;
mod watch;

use clap::Subcommand;
use std::process::ExitCode;

/// Exit status if `--require` is not met.
pub const EXIT_TIER: u8 = 3;

/// Arguments of `kumi tcp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Installs the congestion control `kumi` and serves `kumi run`, in the background.
    Up(up::Args),
    /// Removes it; live connections get their former control back, and keep short timers until they
    /// close.
    Down,
    /// Shows the connections of this network namespace, and totals.
    Show(show::Args),
    /// Explains why a program's connections were slow, and names remedies; works without `up`.
    Explain(explain::Args),
    /// Prints events of connections, one JSON object per event; works without `up`.
    Trace(trace::Args),
    /// Gives a systemd service's connections the congestion control, from its next start.
    Enable(enable::Args),
    /// Undoes `enable`.
    Disable(enable::Args),
}

/// Runs `kumi tcp`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Up(args) => return up::run(&args),
        Verb::Down => daemon::down()?,
        Verb::Show(args) => show::run(&args)?,
        Verb::Explain(args) => return explain::run(&args),
        Verb::Trace(args) => return trace::run(&args),
        Verb::Enable(args) => enable::enable(&args)?,
        Verb::Disable(args) => enable::disable(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
