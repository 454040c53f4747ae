//! `kumi link metrics`: the counters as OpenMetrics text, for a node exporter's textfile folder.

use super::device::control::{self, Request};
use super::run_dir::{self, RunDir};
use serde_json::Value;
use std::fmt::Write;
use std::process::ExitCode;

/// A metric: where it stands in the device's state, and what it is called and means outside.
struct Metric {
    key: &'static str,
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

enum Kind {
    Counter,
    Gauge,
    /// A gauge whose state value is in microseconds and whose metric is in seconds.
    Microseconds,
}

const fn counter(key: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric {
        key,
        name,
        kind: Kind::Counter,
        help,
    }
}

/// Of each path to each peer.
const PATH: &[Metric] = &[
    counter("tx_packets", "kumi_path_tx_packets", "Datagrams sent."),
    counter(
        "tx_bytes",
        "kumi_path_tx_bytes",
        "Bytes sent, with IP and UDP headers.",
    ),
    counter("rx_packets", "kumi_path_rx_packets", "Datagrams accepted."),
    counter(
        "rx_bytes",
        "kumi_path_rx_bytes",
        "Bytes accepted, with IP and UDP headers.",
    ),
    counter(
        "lost",
        "kumi_path_lost_packets",
        "Datagrams the peer reported missing.",
    ),
    counter(
        "repaired",
        "kumi_path_repaired_units",
        "Units sent again on this path.",
    ),
    counter(
        "duplicate",
        "kumi_path_duplicate_units",
        "Units received twice.",
    ),
    counter(
        "late",
        "kumi_path_late_units",
        "Units received after they had been given up.",
    ),
    counter(
        "state_changes",
        "kumi_path_failures",
        "Times the path stopped being up.",
    ),
    Metric {
        key: "loss",
        name: "kumi_path_loss_ratio",
        kind: Kind::Gauge,
        help: "Share of packets lost lately.",
    },
    Metric {
        key: "rtt_us",
        name: "kumi_path_rtt_seconds",
        kind: Kind::Microseconds,
        help: "Smoothed round trip.",
    },
];

/// Of each peer's reorder buffer.
const REORDER: &[Metric] = &[
    counter(
        "held",
        "kumi_peer_held_frames",
        "Frames that waited for a unit or a predecessor.",
    ),
    counter(
        "given_up",
        "kumi_peer_given_up_frames",
        "Frames given up incomplete or out of order.",
    ),
    counter(
        "overruns",
        "kumi_peer_reorder_overruns",
        "Times the reorder buffer was full.",
    ),
];

/// Of the device.
const DEVICE: &[Metric] = &[
    counter(
        "wrong_key",
        "kumi_device_wrong_key_datagrams",
        "Datagrams made with another key.",
    ),
    counter(
        "forged",
        "kumi_device_forged_datagrams",
        "Datagrams whose tag did not fit.",
    ),
    counter(
        "replayed",
        "kumi_device_replayed_datagrams",
        "Datagrams received before.",
    ),
    counter(
        "malformed",
        "kumi_device_malformed_datagrams",
        "Datagrams not of the format.",
    ),
    counter(
        "unroutable",
        "kumi_device_unroutable_frames",
        "Frames for which there was no path.",
    ),
];

/// Prints the metrics of all devices of this namespace.
pub fn run() -> anyhow::Result<ExitCode> {
    kumi_sys::process::end_with_reader();
    let mut states = Vec::new();
    for name in run_dir::devices()? {
        states.extend(control::ask(&RunDir::of(&name)?.socket(), &Request::Show).ok());
    }
    print!("{}", render(&states));
    Ok(ExitCode::SUCCESS)
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn label(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_default()
        .replace(['\\', '"', '\n'], "_")
}

fn render(states: &[Value]) -> String {
    let mut out = String::new();
    family(&mut out, DEVICE, || {
        let of = |state: &Value| {
            (
                format!("device=\"{}\"", label(&state["device"])),
                state["counters"].clone(),
            )
        };
        states.iter().map(of).collect()
    });
    let peers = || {
        states.iter().flat_map(|state| {
            items(state, "peers").map(move |peer| {
                let (device, name) = (label(&state["device"]), label(&peer["name"]));
                (format!("device=\"{device}\",peer=\"{name}\""), peer)
            })
        })
    };
    family(&mut out, REORDER, || {
        peers()
            .map(|(labels, peer)| (labels, peer["reorder"].clone()))
            .collect()
    });
    family(&mut out, PATH, || {
        let paths = peers().flat_map(|(labels, peer)| {
            let named = move |path: &Value| format!("{labels},link=\"{}\"", label(&path["link"]));
            items(peer, "paths").map(move |path| (named(path), path.clone()))
        });
        paths.collect()
    });
    out.push_str("# EOF\n");
    out
}

fn family(out: &mut String, metrics: &[Metric], values: impl Fn() -> Vec<(String, Value)>) {
    let values = values();
    for metric in metrics {
        let (kind, suffix) = match metric.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge | Kind::Microseconds => ("gauge", ""),
        };
        let Metric {
            name, help, key, ..
        } = metric;
        let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}");
        for (labels, value) in &values {
            let number = value[key].as_f64().unwrap_or(0.0);
            let number = if matches!(metric.kind, Kind::Microseconds) {
                number / 1e6
            } else {
                number
            };
            let _ = writeln!(out, "{name}{suffix}{{{labels}}} {number}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics__of_one_device__are_openmetrics_text() {
        let state = serde_json::json!({
            "device": "kumi0",
            "counters": {"forged": 3},
            "peers": [{"name": "h2", "reorder": {"held": 4},
                       "paths": [{"link": "eth1", "tx_bytes": 99, "rtt_us": 250}]}],
        });
        let text = render(&[state]);
        assert!(text.contains("kumi_device_forged_datagrams_total{device=\"kumi0\"} 3\n"));
        assert!(
            text.contains(
                "kumi_path_tx_bytes_total{device=\"kumi0\",peer=\"h2\",link=\"eth1\"} 99\n"
            )
        );
        assert!(text.contains(
            "kumi_path_rtt_seconds{device=\"kumi0\",peer=\"h2\",link=\"eth1\"} 0.00025\n"
        ));
        assert!(text.ends_with("# EOF\n"));
    }
}
