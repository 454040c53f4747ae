//! `kumi topo verify`: compares the network with a file.

use super::{kind, slurm};
use anyhow::Context;
use kumi_command::BadInput;
use kumi_command::{errln, outln};
use kumi_discover::{self as discover, How};
use kumi_topo::compare::{Difference, differences, named_like};
use kumi_topo::{Network, Rate};
use std::path::PathBuf;

/// Arguments of `kumi topo verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Network file, topology of a lab, or Slurm's topology.conf or topology.yaml.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// Rate of every link of Slurm's file, which contains no rates.
    #[arg(long, default_value = slurm::RATE)]
    rate: Rate,
    /// Largest difference of a link from the file, as a share of the file's value.
    #[arg(long, default_value_t = 0.15, value_name = "SHARE")]
    tolerance: f64,
    /// Writes the measured network into this file, with the switch names of the original file.
    #[arg(long, value_name = "FILE")]
    corrected: Option<PathBuf>,
    #[command(flatten)]
    probe_options: How,
}

/// Measurements that must all show a difference before it is reported. Other traffic sometimes
/// disturbs a measurement. A network without differences is measured once.
const MEASUREMENTS: u32 = 3;

/// Runs `kumi topo verify`. Returns true if the network is as the file says.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    if !(0.0..1.0).contains(&args.tolerance) {
        let problem = format!(
            "invalid --tolerance {}: expected a share from 0 to below 1, such as 0.15",
            args.tolerance
        );
        return Err(BadInput(problem).into());
    }
    let expected = kind::network(&args.file, args.rate)?;
    let hosts: Vec<String> = expected
        .hosts
        .iter()
        .map(|host| host.name.clone())
        .collect();
    let (measured, differences) = confirm(&expected, &hosts, args)?;
    for difference in &differences {
        outln!("{difference}");
    }
    if let Some(file) = &args.corrected {
        let text = named_like(&expected, &measured).to_toml()?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    let file = args.file.display();
    match differences.len() {
        0 => outln!("the network is as {file} says, as far as hosts can measure it"),
        count => outln!("{} from {file}", count_text(count)),
    }
    Ok(differences.is_empty())
}

/// Returns the last measurement, and the differences that every measurement showed.
fn confirm(
    expected: &Network,
    hosts: &[String],
    args: &Args,
) -> anyhow::Result<(Network, Vec<Difference>)> {
    let measure = || discover::measure(hosts, &expected.name, &args.probe_options);
    let mut measured = measure()?;
    let mut remaining = differences(expected, &measured, args.tolerance);
    for _ in 1..MEASUREMENTS {
        if remaining.is_empty() {
            break;
        }
        errln!("kumi: {} to be confirmed", count_text(remaining.len()));
        measured = measure()?;
        let mut repeated = differences(expected, &measured, args.tolerance);
        repeated.retain(|new| remaining.iter().any(|old| old.is_of_same(new)));
        remaining = repeated;
    }
    Ok((measured, remaining))
}

fn count_text(differences: usize) -> String {
    match differences {
        1 => "1 difference".to_owned(),
        count => format!("{count} differences"),
    }
}
