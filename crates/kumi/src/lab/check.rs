//! `kumi lab check`: checks the emulated network itself.

use kumi_bench::fidelity::{self, Depth};
use kumi_command::outln;
use std::process::ExitCode;

/// Arguments of `kumi lab check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Takes under a minute instead of two and a half: one rate, one delay, one round.
    #[arg(long)]
    quick: bool,
    /// Prints the outcome as JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi lab check`. Succeeds if the run is valid and every target is met.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    kumi_command::interrupt::watch()?;
    let _latency = kumi_lab::CpuLatency::hold_on_virtual_machine();
    let outcome = fidelity::run(if args.quick {
        Depth::Quick
    } else {
        Depth::Full
    })?;
    if args.json {
        outln!("{}", serde_json::to_string(&outcome)?);
    } else {
        for check in &outcome.checks {
            let op = serde_json::to_string(&check.op)?;
            outln!(
                "{} {:<44} {:>12.4} {} {}",
                if check.pass { "pass" } else { "MISS" },
                check.name,
                check.value,
                op.trim_matches('"'),
                check.target
            );
        }
        outcome
            .void
            .iter()
            .for_each(|reason| outln!("void {reason}"));
    }
    let pass = outcome.checks.iter().all(|check| check.pass);
    Ok(if pass && outcome.void.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
