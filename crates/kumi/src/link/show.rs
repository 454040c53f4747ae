//! `kumi link show`: prints the states of devices.

use kumi_command::{errln, outln};
use kumi_device::states::states;
use kumi_device::why;
use serde_json::Value;
use std::process::ExitCode;

/// Arguments of `kumi link show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the device; default: all devices of this namespace.
    device: Option<String>,
    /// Prints JSON.
    #[arg(short, long)]
    json: bool,
    /// Prints one line per device.
    #[arg(short, long, conflicts_with = "json")]
    brief: bool,
}

/// Runs `kumi link show`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (mut states, failures) = states(args.device.as_deref())?;
    for state in &mut states {
        state["reasons"] = why::reasons(state).into();
    }
    if args.json {
        outln!("{}", serde_json::json!({ "schema": 1, "devices": states }));
    } else if args.brief {
        states.iter().for_each(print_brief);
    } else {
        states.iter().for_each(print_full);
    }
    failures.iter().for_each(|error| errln!("kumi: {error:#}"));
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn print_brief(state: &Value) {
    let up = items(state, "peers")
        .filter(|peer| peer["up"] == true)
        .count();
    let links = items(state, "links").map(|link| {
        let mark = if link["carrier"] == true { "" } else { "!" };
        format!("{}{mark}", text(link, "name"))
    });
    let links: Vec<String> = links.collect();
    outln!(
        "{:<12} {:<24} {up} peers up",
        text(state, "device"),
        links.join(",")
    );
}

fn print_full(state: &Value) {
    let facts = &state["facts"];
    outln!(
        "{}:{} mtu {} seal {} queue {}",
        text(state, "device"),
        if facts["carrier"] == false {
            " no-carrier"
        } else {
            ""
        },
        facts["mtu"],
        text(state, "seal"),
        facts["shaper_rate_bps"]
            .as_f64()
            .map_or("open".into(), rate)
    );
    if state["preset"] == "ri2n" {
        return print_ri2n(state);
    }
    let queues = state["queues"].as_array().map_or(1, Vec::len);
    let core = rate(number(facts, "core_bps"));
    outln!("  queues {queues} (one core carries about {core})");
    for queue in items(state, "queues").filter(|_| queues > 1) {
        outln!(
            "    queue {} tx {} rx {} bytes",
            queue["number"],
            queue["tx_bytes"],
            queue["rx_bytes"]
        );
    }
    for link in items(state, "links") {
        outln!(
            "  link {:<10} {:<10} {} ({}){}",
            text(link, "name"),
            if link["carrier"] == true {
                "carrier"
            } else {
                "no-carrier"
            },
            rate(number(link, "rate_bps")),
            text(link, "rate_source"),
            if link["gso"] == true {
                ""
            } else {
                ", no UDP segmentation"
            },
        );
    }
    for peer in items(state, "peers") {
        outln!(
            "  peer {:<10} {} {}",
            text(peer, "name"),
            text(peer, "mac"),
            match (peer["up"] == true, peer["datapath"].as_str()) {
                (true, Some("kernel")) if peer["bulk_datapath"] == "user" =>
                    "up, carried by the kernel, long streams by the daemon",
                (true, Some("kernel")) => "up, carried by the kernel",
                (true, _) => "up",
                (false, _) => "down",
            }
        );
        for path in items(peer, "paths") {
            outln!(
                "    {:<10} {:<11} rtt {} us (min {}) tx {} rx {} lost {} ({:.3} %, lately {:.3} %) repaired {} dup {} late {}",
                text(path, "link"),
                text(path, "state"),
                path["rtt_now_us"],
                path["rtt_min_us"],
                path["tx_packets"],
                path["rx_packets"],
                path["lost"],
                number(path, "lost") / number(path, "tx_packets").max(1.0) * 100.0,
                number(path, "loss") * 100.0,
                path["repaired"],
                path["duplicate"],
                path["late"],
            );
        }
        for path in items(peer, "paths").filter(|path| path["kernel"]["tx_bytes"] != 0) {
            let (kernel, link) = (&path["kernel"], text(path, "link"));
            if let (Some(sent), Some(received)) =
                (kernel["tx_bytes"].as_u64(), kernel["rx_bytes"].as_u64())
            {
                let rate = rate(number(kernel, "rate_bps"));
                let note = if kernel["lossy"] == true {
                    let percent = number(kernel, "loss") * 100.0;
                    format!(", left to the daemon: it loses {percent:.1} %")
                } else if kernel["rests"] == true {
                    ", rests: too slow beside the others".to_owned()
                } else {
                    String::new()
                };
                outln!(
                    "    {link:<10} by the kernel: tx {sent} rx {received} bytes, rate {rate}{note}"
                );
            }
        }
        let reorder = &peer["reorder"];
        outln!(
            "    held {} frames, gave up {}, skew {} us",
            reorder["held"],
            reorder["given_up"],
            reorder["skew_us"]
        );
    }
    for reason in items(state, "reasons").filter_map(Value::as_str) {
        outln!("  ! {reason}");
    }
}

/// Prints the rest of a device that uses RI2N/DRV, which measures neither rates nor round-trip
/// times.
fn print_ri2n(state: &Value) {
    for link in items(state, "links") {
        let carrier = if link["carrier"] == true {
            "carrier"
        } else {
            "no-carrier"
        };
        let (name, refused) = (text(link, "name"), &link["send_errors"]);
        outln!("  link {name:<10} {carrier:<10} refused {refused}");
    }
    for peer in items(state, "peers") {
        let status = if peer["up"] == true { "up" } else { "down" };
        outln!("  peer {} {status}", text(peer, "mac"));
        for path in items(peer, "paths") {
            outln!(
                "    {:<10} {:<5} tx {} rx {} failures {}",
                text(path, "link"),
                text(path, "state"),
                path["tx_packets"],
                path["rx_packets"],
                path["failures"],
            );
        }
        let reorder = &peer["reorder"];
        outln!(
            "    held {} frames (at most {} at once), gave up {} early and {} after FAST_TOUT",
            reorder["held"],
            reorder["held_max"],
            reorder["given_up_early"],
            reorder["given_up_timeout"],
        );
    }
}

fn rate(bps: f64) -> String {
    if bps >= 1e9 {
        format!("{:.2} Gb/s", bps / 1e9)
    } else {
        format!("{:.1} Mb/s", bps / 1e6)
    }
}
