//! `kumi link`.

use std::process::ExitCode;

/// Arguments of `kumi link`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `kumi link`.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("kumi link is not built yet")
}
