//! `kumi bench`.

pub mod outcome;

use std::process::ExitCode;

/// Arguments of `kumi bench`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `kumi bench`.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("kumi bench is not built yet")
}
