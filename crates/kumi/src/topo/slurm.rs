//! `kumi topo import`: reads Slurm's `topology.conf` or `topology.yaml`.

use kumi_command::BadInput;
use kumi_command::out;
use kumi_topo::{Network, Rate, slurm, source};
use std::path::{Path, PathBuf};

/// Default rate of the links of Slurm's file, which contains no rates. Chosen by judgement.
pub const RATE: &str = "1Gbit";

/// Arguments of `kumi topo import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// Slurm's topology.conf or topology.yaml, which contains no rates.
    file: PathBuf,
    /// Rate of every link, such as 1Gbit.
    #[arg(long, default_value = RATE)]
    rate: Rate,
}

/// Runs `kumi topo import`.
pub fn import(args: &ImportArgs) -> anyhow::Result<()> {
    out!("{}", read(&args.file, args.rate)?.to_toml()?);
    Ok(())
}

/// Returns whether the name of a file is that of a Slurm file.
pub fn is_slurm_file(file: &Path) -> bool {
    is_yaml(file) || has_extension(file, "conf")
}

fn is_yaml(file: &Path) -> bool {
    has_extension(file, "yaml") || has_extension(file, "yml")
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|suffix| suffix == extension)
}

/// Reads Slurm's file. The name decides whether it is a `topology.yaml`.
pub fn read(path: &Path, rate: Rate) -> Result<Network, BadInput> {
    let (file, text) = source::read(path).map_err(|error| BadInput(error.to_string()))?;
    let network = match is_yaml(path) {
        true => slurm::yaml::read(&file, &text, rate),
        false => slurm::conf::read(&file, &text, rate),
    };
    network.map_err(|error| BadInput(error.to_string()))
}
