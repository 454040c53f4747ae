//! `kumi wind show`: nodes, their peers, and the daemon.

use super::up;
use kumi_command::outln;
use kumi_wind::kernel::{Reply, Request};
use kumi_wind::node::show::nodes;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Runs `kumi wind show`.
pub fn show(as_json: bool) -> anyhow::Result<ExitCode> {
    let nodes = nodes()?;
    // Without a daemon, programs execute the operations of their peers.
    let daemon = up::request(&Request::List).ok();
    if as_json {
        print_json(&nodes, daemon.as_ref());
        return Ok(ExitCode::SUCCESS);
    }
    match &daemon {
        Some(reply) => {
            let [programs, sessions, regions] = reply.counts.unwrap_or_default();
            outln!(
                "kernel at {}: programs {programs}, sessions {sessions}, regions {regions}",
                reply.devices.join(", ")
            );
        }
        None => outln!("no daemon: programs execute the operations of their peers"),
    }
    if nodes.is_empty() {
        outln!("no node in this network namespace");
    }
    for node in &nodes {
        match node {
            Ok(node) => print_node(node),
            Err(name) => {
                outln!("\nnode {name} (process/port): no answer; it is stopped, or of another user")
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(nodes: &[Result<Value, String>], daemon: Option<&Reply>) {
    let silent: Vec<&String> = nodes
        .iter()
        .filter_map(|node| node.as_ref().err())
        .collect();
    let nodes: Vec<&Value> = nodes.iter().filter_map(|node| node.as_ref().ok()).collect();
    let daemon = daemon.map(|reply| {
        let [programs, sessions, regions] = reply.counts.unwrap_or_default();
        json!({"devices": reply.devices, "programs": programs, "sessions": sessions,
               "regions": regions})
    });
    outln!(
        "{}",
        json!({"schema": 1, "kernel": daemon, "nodes": nodes, "silent": silent})
    );
}

fn print_node(node: &Value) {
    outln!(
        "\nnode {} process {}: the {} executes operations, regions {}",
        text(&node["address"]),
        node["pid"],
        text(&node["executor"]),
        node["regions"]
    );
    let peers = node["peers"].as_array().map_or(&[][..], Vec::as_slice);
    if peers.is_empty() {
        return;
    }
    outln!(
        "  {:<26} {:>9} {:>9} {:>10} {:>8} {:>7} {:>7} {:>10} {:>10}",
        "peer",
        "rtt µs",
        "window",
        "packets",
        "lost",
        "probes",
        "tier",
        "waiting",
        "executed"
    );
    for peer in peers {
        let messages = &peer["messages"];
        if messages.is_null() {
            outln!("  {:<26} {}", text(&peer["address"]), text(&peer["state"]));
            continue;
        }
        let of_requests = &peer["requests"];
        let is_kernel = !of_requests.is_null();
        let path = if is_kernel { of_requests } else { messages };
        let total = |key: &str| number(&messages[key]) + number(&of_requests[key]);
        let executed = ["puts", "gets", "atomics"].map(|key| number(&peer["executed"][key]));
        outln!(
            "  {:<26} {:>9.1} {:>9} {:>10} {:>8} {:>7} {:>7} {:>10} {:>10}",
            text(&peer["address"]),
            path["rtt_us"].as_f64().unwrap_or_default(),
            number(&path["window_bytes"]),
            total("packets"),
            total("lost"),
            total("probes"),
            if is_kernel { "kernel" } else { "program" },
            number(&peer["waiting_bytes"]),
            executed.iter().sum::<u64>()
        );
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
