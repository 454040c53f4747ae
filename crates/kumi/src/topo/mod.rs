//! `kumi topo`: the network as a tree of switches, and plans on it.

mod discover;
mod plan;
mod show;
pub mod simulate;
mod slurm;

use crate::BadInput;
use clap::Subcommand;
use kumi_topo::Network;
use std::path::Path;
use std::process::ExitCode;

/// Where a machine's network is written down.
pub const FILE: &str = "/etc/kumi/network.toml";

/// Arguments of `kumi topo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measures the network between hosts and prints its file: switches, links, what they carry.
    Discover(discover::Args),
    /// What `kumi topo discover` runs on each host.
    #[command(hide = true)]
    Probe(discover::end::Args),
    /// Draws a network.
    Show(show::Args),
    /// Prints who would send what to whom, and after what, so that no two messages meet on a link.
    Plan(plan::Args),
    /// Prints the network file of Slurm's topology.conf.
    Import(slurm::ImportArgs),
    /// Prints a network as Slurm's topology.conf.
    Export(slurm::ExportArgs),
}

/// Runs `kumi topo`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    kumi_sys::process::end_with_reader();
    match &args.verb {
        Verb::Discover(args) => discover::run(args)?,
        Verb::Probe(args) => discover::end::run(args)?,
        Verb::Show(args) => show::run(args)?,
        Verb::Plan(args) => plan::run(args)?,
        Verb::Import(args) => slurm::import(args)?,
        Verb::Export(args) => slurm::export(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub fn read(file: &Path) -> Result<Network, BadInput> {
    Network::read(file).map_err(|error| BadInput(error.to_string()))
}
