//! `kumi topo plan`: a collective's plan on a network, and the proof that it is right.

use crate::BadInput;
use clap::ValueEnum;
use kumi_coll::{Operation, Plan, Transfer, bound_s, check, gather};
use kumi_topo::{Network, quantity::Bytes};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Version of what `-j` prints.
const SCHEMA: u32 = 1;

/// What the hosts do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Asked {
    /// The root comes to have every host's block.
    Gather,
}

/// How it is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Algorithm {
    /// As Yoshitomi and Taura do it: chains, and turns where a relay would be slow.
    Paper,
}

/// Arguments of `kumi topo plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The network file.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// What the hosts do together.
    #[arg(long, value_enum, default_value_t = Asked::Gather)]
    operation: Asked,
    /// How it is planned.
    #[arg(long, value_enum, default_value_t = Algorithm::Paper)]
    algorithm: Algorithm,
    /// Name of the host that receives; the first of the file if not given.
    #[arg(long, value_name = "HOST")]
    root: Option<String>,
    /// Bytes of each host's block, as 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    bytes: Bytes,
    /// Proves that the plan does the operation, and that no two messages meet on a link.
    #[arg(long)]
    check: bool,
    /// One JSON object.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi topo plan`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = super::read(&args.file)?;
    let root = root(&network, args.root.as_deref())?;
    let plan = match (args.operation, args.algorithm) {
        (Asked::Gather, Algorithm::Paper) => gather(&network, root, args.bytes.get())?,
    };
    if args.check {
        check(&network, &plan)?;
    }
    let bound_s = bound_s(&network, plan.operation, args.bytes.get());
    if args.json {
        println!("{}", object(&network, &plan, args, bound_s));
        return Ok(());
    }
    let Operation::Gather { root } = plan.operation;
    println!(
        "gather to {} of {} a host, {} hosts: {:.3} ms by the plan's reckoning; the links alone take {:.3} ms",
        network.hosts[root].name,
        args.bytes,
        network.hosts.len(),
        plan.predicted_s * 1e3,
        bound_s * 1e3,
    );
    for transfer in &plan.transfers {
        let after = transfer.after.map(|after| &plan.transfers[after]);
        let after = after.map_or(String::new(), |after| {
            format!(", after {}", names(&network, after))
        });
        let blocks = transfer.blocks.len();
        let plural = if blocks == 1 { "" } else { "s" };
        println!(
            "  {}  {blocks} block{plural}{after}",
            names(&network, transfer)
        );
    }
    if args.check {
        println!("checked: it does the operation, and no two messages meet on a link");
    }
    Ok(())
}

fn root(network: &Network, name: Option<&str>) -> Result<usize, BadInput> {
    let Some(name) = name else { return Ok(0) };
    network.host(name).ok_or_else(|| {
        let known = network.hosts.iter().map(|host| host.name.as_str());
        let hint = kumi_topo::nearest(name, known)
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        BadInput(format!("no host `{name}`{hint}"))
    })
}

fn names(network: &Network, transfer: &Transfer) -> String {
    let [from, to] = [transfer.from, transfer.to].map(|host| &network.hosts[host].name);
    format!("{from} → {to}")
}

fn object(network: &Network, plan: &Plan, args: &Args, bound_s: f64) -> Value {
    let Operation::Gather { root } = plan.operation;
    let transfers = plan.transfers.iter().map(|transfer| {
        let places = transfer.blocks.places();
        let of = places.map(|place| network.hosts[plan.order[place]].name.as_str());
        json!({
            "from": network.hosts[transfer.from].name,
            "to": network.hosts[transfer.to].name,
            "blocks_of": of.collect::<Vec<_>>(),
            "after": transfer.after,
        })
    });
    json!({
        "schema": SCHEMA,
        "operation": "gather",
        "root": network.hosts[root].name,
        "block_bytes": args.bytes.get(),
        "predicted_s": plan.predicted_s,
        "bound_s": bound_s,
        "transfers": transfers.collect::<Vec<_>>(),
        "is_checked": args.check,
    })
}
