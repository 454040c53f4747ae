//! `kumi lab meter` and `kumi lab validity`.

use super::lab_error;
use kumi_command::outln;
use kumi_command::output::Output;
use kumi_lab::cluster::control::{Client, Request};
use kumi_lab::cluster::{MeterRow, Roster, Validity};
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `kumi lab meter`.
#[derive(Debug, clap::Args)]
pub struct MeterArgs {
    /// Name of the lab; may be left out when only one is up.
    #[arg(long, env = "KUMI_LAB")]
    lab: Option<String>,
    /// Prints CSV instead of one JSON object per line.
    #[arg(long)]
    csv: bool,
    /// Prints only this NIC, as `h1:eth1`.
    nic: Option<String>,
}

/// Arguments of `kumi lab validity`.
#[derive(Debug, clap::Args)]
pub struct ValidityArgs {
    /// Name of the lab; may be left out when only one is up.
    #[arg(long, env = "KUMI_LAB")]
    lab: Option<String>,
    /// Prints JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi lab meter` until it is interrupted or its output is closed.
pub fn meter(args: MeterArgs) -> anyhow::Result<ExitCode> {
    let roster = Roster::find(args.lab.as_deref()).map_err(lab_error)?;
    if let Some(nic) = &args.nic {
        if !roster.nics.iter().any(|known| known.name() == *nic) {
            let known = roster
                .nics
                .iter()
                .map(|nic| nic.name())
                .collect::<Vec<_>>()
                .join(", ");
            return Err(lab_error(kumi_lab::ClusterError::NoSuchNic {
                nic: nic.clone(),
                known,
            }));
        }
    }
    let mut client = Client::connect(&roster)?;
    client.send(&Request::Meter)?;
    let mut out = Output;
    if args.csv {
        writeln!(out, "start_us,span_us,nic,direction,bytes,frames")?;
    }
    while let Some(line) = client.next_line()? {
        let Ok(row) = serde_json::from_str::<MeterRow>(&line) else {
            continue;
        };
        if args.nic.as_ref().is_some_and(|nic| *nic != row.nic) {
            continue;
        }
        let MeterRow {
            start_us,
            span_us,
            nic,
            direction,
            bytes,
            frames,
        } = &row;
        let outcome = if args.csv {
            writeln!(
                out,
                "{start_us},{span_us},{nic},{direction},{bytes},{frames}"
            )
        } else {
            out.write_all(line.as_bytes())
        };
        outcome?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `kumi lab validity`. Fails if the run is void.
pub fn validity(args: ValidityArgs) -> anyhow::Result<ExitCode> {
    let roster = Roster::find(args.lab.as_deref()).map_err(lab_error)?;
    let value = Client::connect(&roster)?
        .request(&Request::Validity)?
        .map_err(anyhow::Error::msg)?;
    let validity: Validity = serde_json::from_value(value)?;
    if args.json {
        outln!("{}", serde_json::to_string(&validity)?);
    } else {
        if let Some(lateness) = validity.lateness {
            outln!(
                "emulator lateness: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us over {} frames",
                lateness.p50_us,
                lateness.p99_us,
                lateness.p999_us,
                lateness.max_us,
                lateness.events
            );
        }
        outln!(
            "steal: {:.2} %; programs outside the lab: {:.2} %; longest mean wait for a processor: {:.0} us",
            validity.steal * 100.0,
            validity.others * 100.0,
            validity.run_queue_wait_us
        );
        validity
            .void
            .iter()
            .for_each(|reason| outln!("void: {reason}"));
    }
    Ok(if validity.void.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
