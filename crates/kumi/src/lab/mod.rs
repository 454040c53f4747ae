//! `kumi lab`.

use std::process::ExitCode;

/// Arguments of `kumi lab`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `kumi lab`.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("kumi lab is not built yet")
}
