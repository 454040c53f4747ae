//! `kumi tcp`: the congestion control, put in place and looked at.

use anyhow::Context;
use clap::Subcommand;
use kumi_tcp::Settings;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// The number of the format; it grows when a key changes its meaning.
const SCHEMA: u32 = 1;

/// Arguments of `kumi tcp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Installs the congestion control `kumi`; it stays until `kumi tcp down` or a reboot.
    Up(UpArgs),
    /// Removes it; connections that chose it keep it until they end.
    Down,
    /// Shows what it did.
    Show(ShowArgs),
}

/// A mechanism that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mechanism {
    /// After idle time, sending at the rate of before from a timer instead of slow start.
    PacedRestart,
    /// Not taking a full queue of this host for congestion.
    StallForgiveness,
}

/// Arguments of `kumi tcp up`.
#[derive(Debug, clap::Args)]
struct UpArgs {
    /// Mechanisms to leave out.
    #[arg(long, value_name = "MECHANISM", value_delimiter = ',')]
    without: Vec<Mechanism>,
    /// Seconds for which a connection believes what it remembers of the path.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    memory: u64,
}

/// Arguments of `kumi tcp show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// One JSON object.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi tcp`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Up(args) => up(&args),
        Verb::Down => kumi_tcp::remove().context("kumi tcp down"),
        Verb::Show(args) => show(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn up(args: &UpArgs) -> anyhow::Result<()> {
    let has = |mechanism| !args.without.contains(&mechanism);
    kumi_tcp::install(Settings {
        memory_max: Duration::from_secs(args.memory),
        paces_restart: has(Mechanism::PacedRestart),
        forgives_stall: has(Mechanism::StallForgiveness),
    })?;
    println!("congestion control `kumi` is in place; a program chooses it with TCP_CONGESTION,");
    println!("a route with `ip route change … congctl kumi`, every new connection with");
    println!("`sysctl -w net.ipv4.tcp_congestion_control=kumi`");
    Ok(())
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let totals = kumi_tcp::totals()?;
    if args.json {
        let object = json!({
            "schema": SCHEMA,
            "congestion_control": "kumi",
            "connections": totals.connections,
            "paced_restarts": totals.paced,
            "forgiven_stalls": totals.stalls,
            "losses": totals.losses,
        });
        println!("{object}");
        return Ok(());
    }
    println!("kumi: {} connections so far", totals.connections);
    println!("  restarts paced          {}", totals.paced);
    println!("  local stalls forgiven   {}", totals.stalls);
    println!("  windows cut for losses  {}", totals.losses);
    Ok(())
}
