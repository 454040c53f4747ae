//! `kumi doctor`: lists the features that this machine lacks, and the command that adds each.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `output` replaces both

mod probes;

use kumi_command::{out, outln};
use probes::{Finding, State};
use std::process::ExitCode;

/// Version of the JSON object's format.
const SCHEMA: u32 = 2;

/// Arguments of `kumi doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prints one JSON object.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi doctor`. Fails if a feature is missing without which no command works.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let findings = probes::all();
    if args.json {
        outln!(
            "{}",
            serde_json::json!({ "schema": SCHEMA, "features": findings })
        );
    } else {
        findings
            .iter()
            .for_each(|finding| out!("{}", render(finding)));
    }
    let vital_missing = findings
        .iter()
        .any(|finding| finding.vital && finding.state == State::Missing);
    Ok(if vital_missing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn render(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "OK",
        State::Degraded => "degraded",
        State::Missing => "missing",
    };
    let mut text = format!("{:<16} {state:<9} {}\n", finding.feature, finding.purpose);
    if let Some(remedy) = &finding.remedy {
        text.push_str(&format!("{:<26} fix: {remedy}\n", ""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor__every_finding__has_a_reason_and_each_fault_a_remedy() {
        for finding in probes::all() {
            assert!(
                !finding.purpose.is_empty(),
                "{} says nothing",
                finding.feature
            );
            let is_ok = finding.state == State::Ok;
            assert_eq!(
                finding.remedy.is_none(),
                is_ok,
                "{}: a mend where one is due",
                finding.feature
            );
        }
    }
}
