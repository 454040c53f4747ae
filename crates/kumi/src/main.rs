//! `kumi`: ordinary Ethernet as a cluster interconnect.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `output` replaces both

#[cfg(test)]
mod documents;
mod dsm;
mod lab;
mod link;
mod manual;
mod run;
mod tcp;
mod topo;

use clap::{Parser, Subcommand};
use kumi_command::errln;
use kumi_command::{BadInput, EXIT_BAD_INPUT, interrupt, output};
use std::process::ExitCode;

/// Turns ordinary Ethernet into a cluster interconnect, on an unmodified Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "kumi", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Combines several physical links into one virtual Ethernet device.
    Link(link::Args),
    /// Runs the devices of a configuration file, as a service.
    Up(link::service::Args),
    /// Runs TCP with the congestion control `kumi`, which knows the program's phases.
    Tcp(tcp::Args),
    /// Handles the network: its tree of switches, and plans of collectives on it.
    Topo(topo::Args),
    /// Checks and measures Wind, the transport for messages and remote memory.
    Wind(kumi_placement::command::Args),
    /// Shows memory that processes on different machines share.
    Dsm(dsm::Args),
    /// Runs an OpenSHMEM program over Wind, on this host or on several.
    Oshrun(kumi_launch::Args),
    /// Runs a program, as one rank or alone, with the TCP of `kumi tcp up`.
    Run(run::Args),
    /// Runs a cluster on one machine: hosts as namespaces, emulated switches and WANs.
    Lab(lab::Args),
    /// Runs a bench plan and checks its targets.
    #[cfg(feature = "bench")]
    Bench(kumi_bench::Args),
    /// Demonstrates the main use: MPI and iperf3 over two links, one of which is cut and healed.
    #[cfg(feature = "bench")]
    Demo(kumi_bench::demo::Args),
    /// Reports the missing requirements of each feature, and the commands that provide them.
    Doctor(kumi_doctor::Args),
    /// Prints completions for a shell.
    Completions(manual::CompletionsArgs),
    /// Prints the manual page, or writes all of them.
    Man(manual::ManArgs),
    /// Runs the end points of the bench's workloads.
    #[command(hide = true)]
    #[cfg(feature = "bench")]
    Workload(kumi_bench::workload::Args),
}

/// Base of the exit status after a signal, as shells report it: 128 plus the signal's number.
const EXIT_SIGNAL: u8 = 128;

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    let outcome = match command {
        Command::Link(args) => link::run(args),
        Command::Up(args) => link::service::run(&args),
        Command::Tcp(args) => tcp::run(args),
        Command::Topo(args) => topo::run(&args),
        Command::Wind(args) => kumi_placement::command::run(&args),
        Command::Dsm(args) => dsm::run(&args),
        Command::Oshrun(args) => kumi_launch::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Lab(args) => lab::run(args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => kumi_bench::run(args),
        #[cfg(feature = "bench")]
        Command::Demo(args) => kumi_bench::demo::run(args),
        Command::Doctor(args) => kumi_doctor::run(args),
        Command::Completions(args) => manual::completions::<Cli>(&args),
        Command::Man(args) => manual::man::<Cli>(&args),
        #[cfg(feature = "bench")]
        Command::Workload(args) => kumi_bench::workload::run(args),
    };
    let outcome = match (outcome, interrupt::noted()) {
        // The error only reports that the signal ended a child program, so it is not printed.
        (Err(_), Some(signal)) => {
            errln!("kumi: stopped by {signal}");
            Ok(ExitCode::from(EXIT_SIGNAL + signal as u8))
        }
        (outcome, _) => outcome,
    };
    output::end(outcome, |error| match error.downcast_ref::<BadInput>() {
        Some(_) => ExitCode::from(EXIT_BAD_INPUT),
        None => ExitCode::FAILURE,
    })
}

/// Prints a mistake in the command line, or the help that it requests.
fn usage(error: &clap::Error) -> ExitCode {
    let result = error.print();
    if !error.use_stderr() {
        let _ = output::note(result);
    }
    let code = u8::try_from(error.exit_code()).unwrap_or(EXIT_BAD_INPUT);
    output::end(Ok(ExitCode::from(code)), |_| ExitCode::FAILURE)
}
