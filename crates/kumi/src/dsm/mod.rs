//! `kumi dsm`: shared memory of processes on different machines.

mod heat_map;

use anyhow::Context;
use clap::Subcommand;
use kumi_command::outln;
use kumi_dsm::runtime::show::MEMBER;
use kumi_wind::node::show::nodes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `kumi dsm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows the shared memory of the processes on this host: pages, misses, bytes, and pages that
    /// two nodes write without sharing a byte.
    Show {
        /// Prints JSON.
        #[arg(short, long)]
        json: bool,
        /// Writes a page with a heat map of each region.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
}

/// Runs `kumi dsm`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Verb::Show {
        json: as_json,
        report,
    } = &args.verb;
    let processes = nodes()?
        .into_iter()
        .filter_map(Result::ok)
        .filter_map(|node| {
            let mut memory = node.get(MEMBER)?.clone();
            memory["pid"] = node["pid"].clone();
            Some(memory)
        });
    let processes: Vec<Value> = processes.collect();
    if let Some(file) = report {
        std::fs::write(file, heat_map::page(&processes))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if *as_json {
        outln!("{}", json!({"schema": 1, "processes": processes}));
    } else if processes.is_empty() {
        outln!("no process in this network namespace has shared memory");
    } else {
        processes.iter().for_each(print);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(process: &Value) {
    let number = |name: &str| process[name].as_u64().unwrap_or_default();
    let left = list(&process["left"]).len() as u64;
    outln!(
        "node {} of {}{}{}, process {}: barriers {}, locks {}",
        number("node"),
        number("nodes"),
        match left {
            all if all == number("nodes") => String::new(),
            left => format!(" ({left} left)"),
        },
        match number("replicas") {
            0 => "",
            _ => ", a replica of each page",
        },
        process["pid"],
        number("barriers"),
        number("locks")
    );
    outln!(
        "  misses {} (pages {}), refreshed pages {}, changed pages {} ({} bytes, sent {}), closed pages {}, sent to all {} bytes",
        number("misses"),
        number("fetched_pages"),
        number("refreshed_pages"),
        number("diffed_pages"),
        number("changed_bytes"),
        number("diff_bytes"),
        number("invalidated_pages"),
        number("pushed_bytes")
    );
    for region in list(&process["regions"]) {
        let is_updated = region["updated_at_barriers"] == true;
        outln!(
            "  region {} of {} bytes: valid pages {}, home of {}, writes found by {}{}",
            text(&region["address"]),
            region["bytes"],
            region["valid_pages"],
            region["home_pages"],
            text(&region["writes_found_by"]),
            if is_updated {
                ", updated at barriers"
            } else {
                ""
            }
        );
        for page in list(&region["most_missed"]) {
            let (at, count) = (text(&page["address"]), &page["count"]);
            outln!("    page {at} missed {count} times");
        }
        for page in list(&region["false_sharing"]) {
            let (at, count) = (text(&page["address"]), &page["count"]);
            outln!(
                "    page {at} false sharing {count} times: node {} writes other bytes of it; give each node pages of its own",
                page["with_node"]
            );
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
