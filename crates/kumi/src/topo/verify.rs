//! `kumi topo verify`: whether the network is as a file says.

use super::discover::{self, How};
use super::slurm;
use crate::BadInput;
use anyhow::Context;
use kumi_topo::Rate;
use kumi_topo::compare::{differences, named_like};
use std::path::PathBuf;

/// Arguments of `kumi topo verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The network file, or Slurm's topology.conf or topology.yaml.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// What every link of Slurm's file carries, which does not say.
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
    /// How far a link may be from what the file says, as a share of that.
    #[arg(long, default_value_t = 0.15, value_name = "SHARE")]
    tolerance: f64,
    /// Writes what was measured, under the file's names for switches, into this file.
    #[arg(long, value_name = "FILE")]
    corrected: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Runs `kumi topo verify`. Whether all is as the file says.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    if !(0.0..1.0).contains(&args.tolerance) {
        let problem = format!(
            "--tolerance: {} is no share; 0.15 would be right",
            args.tolerance
        );
        return Err(BadInput(problem).into());
    }
    let written = match slurm::is_one(&args.file) {
        true => slurm::read(&args.file, args.rate)?,
        false => super::read(&args.file)?,
    };
    let hosts: Vec<String> = written.hosts.iter().map(|host| host.name.clone()).collect();
    let measured = discover::measure(&hosts, &written.name, &args.how)?;
    let differences = differences(&written, &measured, args.tolerance);
    for difference in &differences {
        println!("{difference}");
    }
    if let Some(file) = &args.corrected {
        let text = named_like(&written, &measured).to_toml()?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    let file = args.file.display();
    match differences.len() {
        0 => println!("the network is as {file} says, as far as hosts can tell"),
        1 => println!("1 difference from {file}"),
        many => println!("{many} differences from {file}"),
    }
    Ok(differences.is_empty())
}
