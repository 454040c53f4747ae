//! `kumi topo export`: prints a network in other formats.

use clap::ValueEnum;
use kumi_command::BadInput;
use kumi_command::out;
use kumi_topo::{Network, mpich, slurm};
use std::path::PathBuf;

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Slurm's topology.conf.
    Slurm,
    /// Slurm's topology.yaml.
    SlurmYaml,
    /// The network file of `kumi topo`, for example from a lab's topology or Slurm's file.
    Kumi,
    /// MPICH's coordinates, for MPIR_CVAR_COORDINATES_FILE: one line per rank.
    Mpich,
}

/// Arguments of `kumi topo export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Network file.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Slurm)]
    format: Format,
    /// For mpich: host of each rank, in the order of the ranks. By default, each host of the file
    /// once.
    #[arg(long, value_delimiter = ',', value_name = "HOSTS")]
    ranks: Vec<String>,
}

/// Runs `kumi topo export`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = super::read(&args.file)?;
    if !args.ranks.is_empty() && args.format != Format::Mpich {
        let format = args.format.to_possible_value();
        return Err(BadInput(format!(
            "--ranks with --format {}: expected --format mpich; other formats have no ranks",
            format.as_ref().map_or("", |format| format.get_name())
        ))
        .into());
    }
    let text = match args.format {
        Format::Kumi => network.to_toml()?,
        Format::Slurm => slurm::conf::write(&network),
        Format::SlurmYaml => slurm::yaml::write(&network),
        Format::Mpich => mpich::write(&network, &rank_hosts(&network, &args.ranks)?),
    };
    out!("{text}");
    Ok(())
}

fn rank_hosts(network: &Network, ranks: &[String]) -> Result<Vec<usize>, BadInput> {
    if ranks.is_empty() {
        return Ok((0..network.hosts.len()).collect());
    }
    let hosts = ranks.iter();
    hosts
        .map(|name| super::find_host(network, "--ranks", name))
        .collect()
}
