//! The device's state as JSON. A key that the default device also has means the same here.

use super::{Device, Nic};
use crate::protocol::{EndpointState, Event, HEADER_BYTES, Mac, Node};
use kumi_device::control::SCHEMA;
use serde_json::{Value, json};

/// Bytes that a frame takes on the wire besides its payload: Ethernet header (14), preamble,
/// checksum and gap (24).
const ETHERNET_WIRE_BYTES: usize = 14 + 24;

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

const fn state_name(is_failed: bool) -> &'static str {
    if is_failed { "down" } else { "up" }
}

/// Returns the state of the whole device.
pub fn device(device: &Device) -> Value {
    let counters = device.core.counters();
    let nics = device.nics.iter().enumerate();
    let nodes = device.core.nodes();
    let unit_bytes = device.mtu as usize;
    json!({
        "schema": SCHEMA,
        "device": device.config.name,
        "preset": "ri2n",
        "seal": "plain",
        "facts": {
            "mtu": device.mtu,
            "tap_tso": false,
            "tap_uso": false,
            "busy_poll": device.config.busy_poll,
            "tap_write_errors": device.tap_write_errors,
        },
        "framing": {
            "unit_bytes": unit_bytes,
            "wire_bytes": unit_bytes + HEADER_BYTES + ETHERNET_WIRE_BYTES,
            "burst_header_bytes": 0,
        },
        "links": nics.map(|(number, nic)| link(number, nic)).collect::<Vec<_>>(),
        "peers": nodes.map(|node| peer(node, &device.nics)).collect::<Vec<_>>(),
        "counters": {
            "malformed": counters.malformed,
            "not_ours": counters.not_ours,
            "nodes_refused": counters.nodes_refused,
            "unroutable": counters.unroutable,
            "runts": counters.runts,
        },
    })
}

fn link(number: usize, nic: &Nic) -> Value {
    json!({
        "number": number,
        "name": nic.name,
        "carrier": nic.has_carrier,
        "gso": false,
        "gro": false,
        "send_errors": nic.refused,
        "receive_overruns": nic.overrun,
    })
}

fn peer(node: &Node, nics: &[Nic]) -> Value {
    let counts = node.reorder.counts();
    let paths = node.endpoints.iter().zip(nics);
    json!({
        // RI2N/DRV knows only the MAC addresses of its peers.
        "name": text(node.mac),
        "mac": text(node.mac),
        "up": node.is_up(),
        "paths": paths.map(|(endpoint, nic)| path(endpoint, nic)).collect::<Vec<_>>(),
        "reorder": {
            "held": counts.held,
            "held_max": counts.held_max,
            "given_up": counts.lost_early + counts.lost_timeout + counts.lost_overrun,
            "given_up_early": counts.lost_early,
            "given_up_timeout": counts.lost_timeout,
            "overruns": counts.overruns,
            "late": counts.late,
        },
    })
}

fn path(endpoint: &EndpointState, nic: &Nic) -> Value {
    json!({
        "link": nic.name,
        "state": state_name(endpoint.is_failed),
        "failures": endpoint.failures,
        "tx_packets": endpoint.tx.0,
        "tx_bytes": endpoint.tx.1,
        "rx_packets": endpoint.rx.0,
        "rx_bytes": endpoint.rx.1,
        "tx_heartbeats": endpoint.heartbeats.0,
        "rx_heartbeats": endpoint.heartbeats.1,
    })
}

/// Returns an event as a JSON object, which becomes one line of NDJSON.
pub fn event(event: &Event, nics: &[Nic], now_s: f64) -> Value {
    let (peer, link, is_failed) = match *event {
        Event::Failed { peer, link } => (peer, link, true),
        Event::Recovered { peer, link } => (peer, link, false),
    };
    json!({
        "at_s": now_s, "event": "path", "peer": text(peer), "link": nics[link].name,
        "from": state_name(!is_failed), "to": state_name(is_failed),
        "reason": if is_failed { "silent" } else { "heartbeat" },
    })
}
