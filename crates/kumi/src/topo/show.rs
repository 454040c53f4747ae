//! `kumi topo show`: draws a network.

use kumi_command::{out, outln};
use kumi_topo::{draw, svg};
use serde_json::json;
use std::path::PathBuf;

/// Version of the JSON format.
const SCHEMA: u32 = 1;

/// Arguments of `kumi topo show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Network file, topology of a lab, or Slurm's topology.conf or topology.yaml.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// Prints one JSON object.
    #[arg(short, long)]
    json: bool,
    /// Prints an SVG picture.
    #[arg(long, conflicts_with = "json")]
    svg: bool,
}

/// Runs `kumi topo show`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = super::read(&args.file)?;
    if args.svg {
        out!("{}", svg::tree(&network));
        return Ok(());
    }
    if !args.json {
        out!("{}", draw::tree(&network));
        return Ok(());
    }
    let hosts = network.hosts.iter().map(|host| {
        json!({"name": host.name, "both_ways_bps": host.both_ways.map(kumi_topo::Rate::bps)})
    });
    let links = network.links.iter().map(|link| {
        json!({
            "between": link.ends.map(|end| network.name_of(end)),
            "rates_bps": link.rates.map(kumi_topo::Rate::bps),
            "latency_ns": link.latency.ns(),
        })
    });
    let switches = network.switches.iter().map(|switch| switch.name.as_str());
    let object = json!({
        "schema": SCHEMA,
        "name": network.name,
        "hosts": hosts.collect::<Vec<_>>(),
        "switches": switches.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    });
    outln!("{object}");
    Ok(())
}
