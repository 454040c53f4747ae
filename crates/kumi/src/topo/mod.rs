//! `kumi topo`: describes the network as a tree of switches, and plans on it.

mod export;
mod kind;
mod learn;
mod plan;
mod show;
mod slurm;
mod verify;

pub use kind::{lab, network_file};

use clap::Subcommand;
use kumi_command::BadInput;
use kumi_discover as discover;
use kumi_topo::{Network, nearest};
use std::path::Path;
use std::process::ExitCode;

/// Default path of a machine's network file.
pub const FILE: &str = "/etc/kumi/network.toml";

/// Most hosts that an error message lists, so that it fits a terminal.
const HOSTS_LISTED_MAX: usize = 16;

/// Arguments of `kumi topo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measures the network between hosts and prints its file: switches, links and rates.
    Discover(discover::Args),
    /// Answers probes on a host; started by `kumi topo discover`.
    #[command(hide = true)]
    Probe(discover::ProbeArgs),
    /// Measures whether the network is as a file says, and names the differences.
    Verify(verify::Args),
    /// Names links that are slower than a file says, from goodput that jobs recorded.
    Learn(learn::Args),
    /// Draws a network.
    Show(show::Args),
    /// Prints a plan: the transfers and their order, so that no two messages meet on a link.
    Plan(plan::Args),
    /// Converts Slurm's topology.conf or topology.yaml into a network file.
    Import(slurm::ImportArgs),
    /// Prints a network in the format of Slurm or MPICH.
    Export(export::Args),
}

/// Runs `kumi topo`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Verb::Discover(_) | Verb::Verify(_) = &args.verb {
        kumi_command::interrupt::watch()?;
    }
    match &args.verb {
        Verb::Discover(args) => discover::run(args)?,
        Verb::Probe(args) => discover::probe(args)?,
        Verb::Show(args) => show::run(args)?,
        Verb::Plan(args) => plan::run(args)?,
        Verb::Import(args) => slurm::import(args)?,
        Verb::Export(args) => export::run(args)?,
        Verb::Verify(args) => return Ok(exit_code(verify::run(args)?)),
        Verb::Learn(args) => return Ok(exit_code(learn::run(args)?)),
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(is_success: bool) -> ExitCode {
    match is_success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns the number of host `name`. The error names `option`, and the nearest host or the first
/// hosts of the network.
fn find_host(network: &Network, option: &str, name: &str) -> Result<usize, BadInput> {
    network.host(name).ok_or_else(|| {
        let known = network.hosts.iter().map(|host| host.name.as_str());
        let hint = match nearest(name, known.clone()) {
            Some(best) => format!("; did you mean `{best}`?"),
            None => {
                let listed: Vec<&str> = known.clone().take(HOSTS_LISTED_MAX).collect();
                let more = if listed.len() < known.len() {
                    ", …"
                } else {
                    ""
                };
                format!(" (known: {}{more})", listed.join(", "))
            }
        };
        BadInput(format!("{option}: no host `{name}`{hint}"))
    })
}

/// Reads a network from a file of any kind.
fn read(file: &Path) -> anyhow::Result<Network> {
    kind::network(file, slurm::RATE.parse().expect("a rate"))
}
