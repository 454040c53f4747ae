//! `kumi link metrics`: counters and gauges as OpenMetrics text, for a node exporter's textfile
//! folder.
//!
//! Labels identify a series by values that are unique on one host: the device, the peer's identity
//! and the link. Host names may be equal, so the peer's name is only an additional label for
//! readers.

use crate::states::states;
use crate::why;
use kumi_command::{errln, out};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// A metric: its place in the state, and its name, type and help text in the output.
struct Metric {
    /// JSON pointer to the value in the object that the metric family describes.
    pointer: &'static str,
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

enum Kind {
    Counter,
    /// A number; a boolean becomes 0 or 1.
    Gauge,
    /// A gauge that is in microseconds in the state and in seconds in the output.
    Microseconds,
    /// A gauge that is in milliseconds in the state and in seconds in the output.
    Milliseconds,
    /// A histogram of hold times. Bucket *k*, from 0, ends at [`HOLD_FIRST_S`] × (2^(k+1) − 1).
    HoldTimes,
}

/// Upper bound of the first bucket of hold times, in seconds (`Reorder::hold_histogram`).
const HOLD_FIRST_S: f64 = 64e-6;

const fn metric(
    kind: Kind,
    pointer: &'static str,
    name: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        pointer,
        name,
        kind,
        help,
    }
}

const fn counter(pointer: &'static str, name: &'static str, help: &'static str) -> Metric {
    metric(Kind::Counter, pointer, name, help)
}

const fn gauge(pointer: &'static str, name: &'static str, help: &'static str) -> Metric {
    metric(Kind::Gauge, pointer, name, help)
}

/// Metrics of a device.
const DEVICE: &[Metric] = &[
    gauge(
        "/facts/carrier",
        "kumi_device_carrier",
        "Whether any peer is reached.",
    ),
    gauge(
        "/peers_known",
        "kumi_device_peers_known",
        "Peers that the device knows.",
    ),
    gauge(
        "/peers_up",
        "kumi_device_peers_up",
        "Peers that are reached.",
    ),
    gauge("/facts/mtu", "kumi_device_mtu_bytes", "MTU of the device."),
    gauge(
        "/facts/shaper_rate_bps",
        "kumi_device_rate_bits_per_second",
        "Rate at which the host may send, once measured.",
    ),
    gauge(
        "/facts/waiting_bytes",
        "kumi_device_waiting_bytes",
        "Bytes that wait for the links.",
    ),
    gauge(
        "/facts/up_s",
        "kumi_device_uptime_seconds",
        "Time since the daemon started.",
    ),
    counter(
        "/facts/tap_write_errors",
        "kumi_device_write_errors",
        "Frames that the kernel did not accept from the device.",
    ),
    counter(
        "/counters/wrong_key",
        "kumi_device_wrong_key_datagrams",
        "Datagrams signed with another cluster key.",
    ),
    counter(
        "/counters/forged",
        "kumi_device_forged_datagrams",
        "Datagrams with a wrong authentication tag.",
    ),
    counter(
        "/counters/replayed",
        "kumi_device_replayed_datagrams",
        "Datagrams received again.",
    ),
    counter(
        "/counters/malformed",
        "kumi_device_malformed_datagrams",
        "Datagrams with an invalid format.",
    ),
    counter(
        "/counters/handshakes_refused",
        "kumi_device_refused_handshakes",
        "Handshakes refused because too many arrived.",
    ),
    counter(
        "/counters/unroutable",
        "kumi_device_unroutable_frames",
        "Frames for which there was no path.",
    ),
];

/// Metrics of a link.
const LINK: &[Metric] = &[
    gauge(
        "/carrier",
        "kumi_link_carrier",
        "Whether the NIC has carrier.",
    ),
    gauge(
        "/rate_bps",
        "kumi_link_rate_bits_per_second",
        "Rate of the link: fixed, measured or reported by the NIC.",
    ),
    gauge(
        "/rate_measured",
        "kumi_link_rate_measured",
        "Whether the rate was measured.",
    ),
    metric(
        Kind::Milliseconds,
        "/heard/ms_ago",
        "kumi_link_silence_seconds",
        "Time since a datagram was received on the link.",
    ),
    counter(
        "/send_errors",
        "kumi_link_send_errors",
        "Sends that the kernel refused.",
    ),
];

/// Metrics of a peer.
const PEER: &[Metric] = &[
    gauge("/up", "kumi_peer_up", "Whether the peer is reached."),
    gauge(
        "/session",
        "kumi_peer_session",
        "Whether there is a session with keys.",
    ),
    counter(
        "/reorder/held",
        "kumi_peer_held_frames",
        "Frames that waited for a unit or a predecessor.",
    ),
    counter(
        "/reorder/given_up",
        "kumi_peer_given_up_frames",
        "Frames given up incomplete or out of order.",
    ),
    counter(
        "/reorder/overruns",
        "kumi_peer_reorder_overruns",
        "Times the reorder buffer was full.",
    ),
    metric(
        Kind::Microseconds,
        "/reorder/skew_us",
        "kumi_peer_skew_seconds",
        "Delay of the slowest link relative to the fastest.",
    ),
    metric(
        Kind::HoldTimes,
        "/reorder/hold_histogram_64us_log2",
        "kumi_peer_hold_seconds",
        "Time that frames waited for a unit or a predecessor.",
    ),
];

/// Metrics of a path to a peer.
const PATH: &[Metric] = &[
    gauge("/is_up", "kumi_path_up", "Whether the path is in use."),
    counter("/tx_packets", "kumi_path_tx_packets", "Datagrams sent."),
    counter(
        "/tx_bytes",
        "kumi_path_tx_bytes",
        "Bytes sent, with IP and UDP headers.",
    ),
    counter("/rx_packets", "kumi_path_rx_packets", "Datagrams accepted."),
    counter(
        "/rx_bytes",
        "kumi_path_rx_bytes",
        "Bytes accepted, with IP and UDP headers.",
    ),
    counter(
        "/kernel/tx_bytes",
        "kumi_path_kernel_tx_bytes",
        "Bytes that the kernel sent without the daemon, as on the wire.",
    ),
    counter(
        "/kernel/rx_bytes",
        "kumi_path_kernel_rx_bytes",
        "Bytes that the kernel received without the daemon, as on the wire.",
    ),
    gauge(
        "/kernel/rate_bps",
        "kumi_path_kernel_rate_bits_per_second",
        "Rate of the path by which the kernel chooses links.",
    ),
    counter(
        "/lost",
        "kumi_path_lost_packets",
        "Datagrams the peer reported missing.",
    ),
    counter(
        "/repaired",
        "kumi_path_repaired_units",
        "Units sent again on this path.",
    ),
    counter(
        "/duplicate",
        "kumi_path_duplicate_units",
        "Units received twice.",
    ),
    counter(
        "/late",
        "kumi_path_late_units",
        "Units received after they had been given up.",
    ),
    counter(
        "/state_changes",
        "kumi_path_failures",
        "Times the path went down.",
    ),
    gauge(
        "/kernel/loss",
        "kumi_path_kernel_loss_ratio",
        "Fraction of the kernel's bytes lost recently while the path was not full.",
    ),
    gauge(
        "/loss",
        "kumi_path_loss_ratio",
        "Fraction of packets lost recently.",
    ),
    metric(
        Kind::Microseconds,
        "/rtt_now_us",
        "kumi_path_rtt_seconds",
        "Round-trip time that was measured last.",
    ),
];

/// Prints the metrics of all devices of this namespace.
pub fn run() -> anyhow::Result<ExitCode> {
    let (states, failures) = states(None)?;
    out!("{}", render(states));
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

/// Returns the value of a label, escaped because names come from the network.
fn label(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Labels of a series, and the object of the state that it describes.
type Series = (String, Value);

fn render(states: Vec<Value>) -> String {
    let (mut devices, mut links, mut peers, mut paths) = (vec![], vec![], vec![], vec![]);
    for mut state in states {
        let device = format!("device=\"{}\"", label(&state["device"]));
        for link in items(&state, "links") {
            links.push((
                format!("{device},link=\"{}\"", label(&link["name"])),
                link.clone(),
            ));
        }
        for peer in items(&state, "peers") {
            // RI2N/DRV identifies its peers by their MAC addresses.
            let node = if peer["node"].is_null() {
                &peer["mac"]
            } else {
                &peer["node"]
            };
            let labels = format!(
                "{device},peer=\"{}\",node=\"{}\"",
                label(&peer["name"]),
                label(node)
            );
            for path in items(peer, "paths") {
                let mut path = path.clone();
                path["is_up"] = (path["state"] == "up").into();
                let labels = format!("{labels},link=\"{}\"", label(&path["link"]));
                paths.push((labels, path));
            }
            peers.push((labels, peer.clone()));
        }
        state["peers_known"] = json!(items(&state, "peers").count());
        state["peers_up"] = json!(why::peers_up(&state));
        devices.push((device, state));
    }
    let mut text = String::new();
    for (metrics, series) in [
        (DEVICE, devices),
        (LINK, links),
        (PEER, peers),
        (PATH, paths),
    ] {
        metrics
            .iter()
            .for_each(|metric| family(&mut text, metric, &series));
    }
    text.push_str("# EOF\n");
    text
}

fn family(text: &mut String, metric: &Metric, series: &[Series]) {
    let Metric { name, help, .. } = metric;
    let (kind, suffix, factor) = match metric.kind {
        Kind::Counter => ("counter", "_total", 1.0),
        Kind::Gauge => ("gauge", "", 1.0),
        Kind::Microseconds => ("gauge", "", 1e-6),
        Kind::Milliseconds => ("gauge", "", 1e-3),
        Kind::HoldTimes => ("histogram", "_bucket", 1.0),
    };
    let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {help}");
    for (labels, object) in series {
        let value = object.pointer(metric.pointer).unwrap_or(&Value::Null);
        if matches!(metric.kind, Kind::HoldTimes) {
            buckets(text, name, labels, value);
            continue;
        }
        let number = value
            .as_f64()
            .or(value.as_bool().map(|flag| f64::from(u8::from(flag))));
        // An unknown value, such as a rate before the first measurement, has no sample.
        if let Some(number) = number {
            let _ = writeln!(text, "{name}{suffix}{{{labels}}} {}", number * factor);
        }
    }
}

/// Writes the cumulative samples of a histogram. They include no sum, because single times are not
/// kept.
fn buckets(text: &mut String, name: &str, labels: &str, counts: &Value) {
    let counts = counts.as_array().map_or(&[][..], Vec::as_slice);
    let mut sum = 0;
    for (bucket, count) in counts.iter().enumerate() {
        sum += count.as_u64().unwrap_or(0);
        let bound_s = HOLD_FIRST_S * (2f64.powi(bucket as i32 + 1) - 1.0);
        let bound = if bucket + 1 == counts.len() {
            "+Inf".to_owned()
        } else {
            format!("{bound_s:.6}")
        };
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn metrics__one_device__are_openmetrics_text() {
        let state = json!({
            "device": "kumi0",
            "facts": {"carrier": true, "shaper_rate_bps": null},
            "counters": {"forged": 3},
            "links": [{"name": "eth1", "carrier": false, "rate_bps": 1e9}],
            "peers": [{"name": "h2", "node": "2a", "up": true,
                       "reorder": {"held": 4, "hold_histogram_64us_log2": [3, 0, 1]},
                       "paths": [{"link": "eth1", "tx_bytes": 99, "rtt_now_us": 250, "state": "up",
                                  "kernel": {"tx_bytes": 5, "rate_bps": 1e9}}]}],
        });
        let text = render(vec![state]);
        let peer = "device=\"kumi0\",peer=\"h2\",node=\"2a\"";
        for sample in [
            "kumi_device_forged_datagrams_total{device=\"kumi0\"} 3",
            "kumi_device_carrier{device=\"kumi0\"} 1",
            "kumi_device_peers_up{device=\"kumi0\"} 1",
            "kumi_link_carrier{device=\"kumi0\",link=\"eth1\"} 0",
            "kumi_link_rate_bits_per_second{device=\"kumi0\",link=\"eth1\"} 1000000000",
            &format!("kumi_peer_up{{{peer}}} 1"),
            &format!("kumi_peer_hold_seconds_bucket{{{peer},le=\"0.000064\"}} 3"),
            &format!("kumi_peer_hold_seconds_bucket{{{peer},le=\"+Inf\"}} 4"),
            &format!("kumi_path_tx_bytes_total{{{peer},link=\"eth1\"}} 99"),
            &format!("kumi_path_rtt_seconds{{{peer},link=\"eth1\"}} 0.00025"),
            &format!("kumi_path_kernel_tx_bytes_total{{{peer},link=\"eth1\"}} 5"),
        ] {
            assert!(
                text.lines().any(|line| line == sample),
                "{sample} in:\n{text}"
            );
        }
        assert!(
            !text.contains("kumi_device_rate_bits_per_second{"),
            "not measured: {text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn metrics__two_peers_with_the_same_name__are_separate_series() {
        let peer = |node: &str| json!({"name": "node", "node": node, "up": true, "paths": [{"link": "eth1", "lost": 1}]});
        let state = json!({"device": "kumi0", "peers": [peer("1"), peer("2")]});
        let text = render(vec![state]);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let names: Vec<&str> = samples
            .filter_map(|line| line.rsplit_once(' '))
            .map(|pair| pair.0)
            .collect();
        let different: HashSet<&&str> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{text}");
    }

    #[test]
    fn metrics__label_from_the_network__is_escaped() {
        assert_eq!(label(&json!("a\"b\\c\nd")), "a\\\"b\\\\c\\nd");
    }
}
