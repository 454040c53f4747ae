//! `kumi topo plan`: prints a collective's plan on a network, and checks it.

use clap::ValueEnum;
use kumi_coll::{After, Operation, Plan, Progress, Transfer, bound_s, check, gather, uniform};
use kumi_command::BadInput;
use kumi_command::outln;
use kumi_simulate::simulate;
use kumi_topo::{Network, quantity::Bytes};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Version of the JSON format.
const SCHEMA: u32 = 2;

/// Collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OperationKind {
    /// The root receives every host's block.
    Gather,
    /// Every host receives its block from the root.
    Scatter,
    /// Every host receives the root's vector.
    Broadcast,
    /// The root receives the combined vectors of all hosts.
    Reduce,
    /// Every host receives every host's block.
    AllGather,
    /// Every host receives its block, combined from the blocks of all hosts.
    ReduceScatter,
    /// Every host receives the combined vectors of all hosts.
    AllReduce,
    /// Every host receives its block from each of the others.
    AllToAll,
}

impl OperationKind {
    fn operation(self, root: usize) -> Operation {
        match self {
            Self::Gather => Operation::Gather { root },
            Self::Scatter => Operation::Scatter { root },
            Self::Broadcast => Operation::Broadcast { root },
            Self::Reduce => Operation::Reduce { root },
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::AllReduce => Operation::AllReduce,
            Self::AllToAll => Operation::AllToAll,
        }
    }

    /// Returns the operation's name on the command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Planning algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Algorithm {
    /// The contention-free gather of Yoshitomi and Taura: chains, and turns where a relay would be
    /// slow.
    Paper,
    /// The plan closest to the bound: a gather by turns, straight to the root.
    Best,
}

/// Arguments of `kumi topo plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Network file.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// Operation of the hosts.
    #[arg(long, value_enum, default_value_t = OperationKind::Gather)]
    operation: OperationKind,
    /// Planning algorithm.
    #[arg(long, value_enum, default_value_t = Algorithm::Best)]
    algorithm: Algorithm,
    /// Name of the root host, for operations that have one. The default is the first host of the
    /// file.
    #[arg(long, value_name = "HOST")]
    root: Option<String>,
    /// Bytes of each block, or of the vector that is combined or broadcast, such as 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    bytes: Bytes,
    /// Proves that the plan does the operation, and that no two messages meet on a link.
    #[arg(long)]
    check: bool,
    /// Simulates the plan frame by frame, and prints its time and the most bytes in a switch port.
    #[arg(long)]
    simulate: bool,
    /// Depth of each port in the simulation.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "128KiB",
        requires = "simulate"
    )]
    port_queue: Bytes,
    /// Prints one JSON object.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi topo plan`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let network = super::read(&args.file)?;
    let root = root(&network, args.root.as_deref())?;
    let plan = match (args.operation, args.algorithm) {
        (OperationKind::Gather, Algorithm::Paper) => gather(&network, root, args.bytes.get())?,
        (kind, Algorithm::Paper) => {
            let name = kind.name();
            return Err(BadInput(format!(
                "the paper has no plan for {name}; --algorithm paper is for gather"
            ))
            .into());
        }
        (kind, Algorithm::Best) => uniform(&network, kind.operation(root), args.bytes.get())?,
    };
    if args.check {
        check(&network, &plan)?;
    }
    let bound_s = bound_s(&network, &plan);
    let simulated = match args.simulate {
        true => Some(simulate(&network, &plan, args.port_queue)?),
        false => None,
    };
    if args.json {
        let mut object = object(&network, &plan, args, bound_s);
        if let Some(simulated) = simulated {
            object["simulated"] = json!({
                "seconds": simulated.seconds,
                "port_bytes": simulated.port_bytes,
            });
        }
        outln!("{object}");
        return Ok(());
    }
    let root = plan.operation.root();
    outln!(
        "{}{} of {}, {} hosts: predicted {:.3} ms; the links alone take {:.3} ms",
        args.operation.name(),
        root.map_or(String::new(), |root| format!(
            ", root {}",
            network.hosts[root].name
        )),
        args.bytes,
        network.hosts.len(),
        plan.predicted_s * 1e3,
        bound_s * 1e3,
    );
    for transfer in &plan.transfers {
        let predecessors = transfer
            .after
            .iter()
            .map(|predecessor| &plan.transfers[predecessor.transfer]);
        let predecessors: Vec<String> = predecessors
            .map(|earlier| names(&network, earlier))
            .collect();
        let predecessors = match predecessors.is_empty() {
            true => String::new(),
            false => format!(", after {}", predecessors.join(", ")),
        };
        let blocks = transfer.blocks.len();
        let plural = if blocks == 1 { "" } else { "s" };
        outln!(
            "  {}  {blocks} block{plural}{predecessors}",
            names(&network, transfer)
        );
    }
    if args.check {
        outln!("checked: it does the operation, and no two messages meet on a link");
    }
    if let Some(simulated) = simulated {
        outln!(
            "simulated: {:.3} ms with TCP's headers; at most {} in a port of a switch",
            simulated.seconds * 1e3,
            Bytes::new(simulated.port_bytes)
        );
    }
    Ok(())
}

fn root(network: &Network, name: Option<&str>) -> Result<usize, BadInput> {
    name.map_or(Ok(0), |name| super::find_host(network, "--root", name))
}

fn names(network: &Network, transfer: &Transfer) -> String {
    let [from, to] = [transfer.from, transfer.to].map(|host| &network.hosts[host].name);
    format!("{from} → {to}")
}

fn object(network: &Network, plan: &Plan, args: &Args, bound_s: f64) -> Value {
    let predecessors = |transfer: &Transfer| -> Vec<Value> {
        let waits = transfer.after.iter();
        let as_json = |wait: &After| match wait.until {
            Progress::Received {
                missing_bytes,
                with_earlier,
            } => json!({
                "transfer": wait.transfer,
                "until": "received",
                "missing_bytes": missing_bytes,
                "with_earlier": with_earlier,
            }),
            Progress::Sent => json!({"transfer": wait.transfer, "until": "sent"}),
        };
        waits.map(as_json).collect()
    };
    let transfers = plan.transfers.iter().map(|transfer| {
        json!({
            "from": network.hosts[transfer.from].name,
            "to": network.hosts[transfer.to].name,
            "blocks": transfer.blocks.numbers().collect::<Vec<_>>(),
            "bytes": plan.bytes_of(transfer),
            "combines": transfer.combines,
            "after": predecessors(transfer),
        })
    });
    let name = |host: &usize| network.hosts[*host].name.as_str();
    json!({
        "schema": SCHEMA,
        "operation": args.operation.name(),
        "root": plan.operation.root().as_ref().map(name),
        "order": plan.order.iter().map(name).collect::<Vec<_>>(),
        "bytes": args.bytes.get(),
        "port_bytes": plan.port_bytes,
        "predicted_s": plan.predicted_s,
        "bound_s": bound_s,
        "transfers": transfers.collect::<Vec<_>>(),
        "is_checked": args.check,
    })
}
