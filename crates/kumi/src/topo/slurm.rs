//! `kumi topo import` and `export`: Slurm's `topology.conf`.

use crate::BadInput;
use anyhow::Context;
use kumi_topo::{Rate, slurm};
use std::path::PathBuf;

/// Arguments of `kumi topo import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The topology.conf; it knows no rates.
    file: PathBuf,
    /// What every link carries, as 1Gbit.
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
}

/// Runs `kumi topo import`.
pub fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let file = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file).with_context(|| file.clone())?;
    let network =
        slurm::read(&file, &text, args.rate).map_err(|error| BadInput(error.to_string()))?;
    print!("{}", network.to_toml()?);
    Ok(())
}

/// Arguments of `kumi topo export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The network file.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
}

/// Runs `kumi topo export`.
pub fn export(args: &ExportArgs) -> anyhow::Result<()> {
    print!("{}", slurm::write(&super::read(&args.file)?));
    Ok(())
}
