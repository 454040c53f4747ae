//! `kumi lab ls` and `kumi lab down`.

use super::lab_error;
use kumi_command::outln;
use kumi_lab::cluster::control::{Client, Request};
use kumi_lab::cluster::{self, Roster, SCHEMA};
use std::process::ExitCode;

/// Arguments of `kumi lab ls`.
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Prints JSON.
    #[arg(short, long)]
    json: bool,
}

/// Arguments of `kumi lab down`.
#[derive(Debug, clap::Args)]
pub struct DownArgs {
    /// Name of the lab; may be left out when only one is up.
    name: Option<String>,
}

/// Runs `kumi lab ls`.
pub fn ls(args: LsArgs) -> anyhow::Result<ExitCode> {
    let names = cluster::running_labs().map_err(lab_error)?;
    // A lab that goes down between the two calls is left out.
    let rosters: Vec<Roster> = names
        .iter()
        .filter_map(|name| Roster::find(Some(name)).ok())
        .collect();
    if args.json {
        outln!(
            "{}",
            serde_json::json!({ "schema": SCHEMA, "labs": rosters })
        );
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{:<24} {:<9} {:>8} hosts", "lab", "fabric", "pid");
    for roster in rosters {
        let hosts: Vec<&str> = roster.hosts.iter().map(|host| host.name.as_str()).collect();
        outln!(
            "{:<24} {:<9} {:>8} {}",
            roster.name,
            roster.fabric,
            roster.pid,
            hosts.join(" ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `kumi lab down`.
pub fn down(args: DownArgs) -> anyhow::Result<ExitCode> {
    let roster = Roster::find(args.name.as_deref()).map_err(lab_error)?;
    Client::connect(&roster)?
        .request(&Request::Down)?
        .map_err(anyhow::Error::msg)?;
    outln!("lab {} is down", roster.name);
    Ok(ExitCode::SUCCESS)
}
