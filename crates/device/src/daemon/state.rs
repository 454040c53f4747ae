//! The device's state as JSON, for `kumi link show`, and its events.

use super::port::Port;
use crate::control::SCHEMA;
use kumi_multilink::endpoint::{Endpoint, Event, LocalLink, OVERHEAD_BYTES};
use kumi_multilink::frame::VNET_BYTES;
use kumi_multilink::view::{PathView, PeerView};
use serde_json::{Value, json};

/// Bytes that a frame takes on the wire besides its own: preamble, checksum and gap.
const WIRE_GAP_BYTES: usize = 24;

/// Returns the state of a device, or of one of its queues.
pub fn device(
    name: &str,
    seal: &str,
    core: &Endpoint,
    (ports, now_ns): (&[Port], u64),
    facts: &Value,
) -> Value {
    let links: Vec<Value> = ports.iter().map(|port| link(port, core, now_ns)).collect();
    let peers: Vec<Value> = core.peers().map(|peer| peer_state(&peer, ports)).collect();
    let counters = core.counters();
    json!({
        "schema": SCHEMA,
        "device": name,
        "seal": seal,
        "facts": facts,
        "framing": framing(core),
        "links": links,
        "peers": peers,
        "counters": {
            "wrong_key": counters.wrong_key,
            "malformed": counters.malformed,
            "forged": counters.forged,
            "replayed": counters.replayed,
            "unknown_session": counters.unknown_session,
            "handshakes_refused": counters.handshakes_refused,
            "handshakes_challenged": counters.handshakes_challenged,
            "unroutable": counters.unroutable,
        },
    })
}

/// Returns the cost of the framing, from which the payload's share of the wire in a long burst
/// follows.
fn framing(core: &Endpoint) -> Value {
    let unit_bytes = core.unit_bytes_max();
    let datagram = core.peers().next().map_or(32, |peer| peer.framing().1);
    let wire_bytes = unit_bytes + datagram + OVERHEAD_BYTES + WIRE_GAP_BYTES;
    json!({
        "unit_bytes": unit_bytes,
        "wire_bytes": wire_bytes,
        "burst_header_bytes": VNET_BYTES,
    })
}

/// Returns the source of a link's rate: set by the user, measured, or claimed by the NIC.
fn rate_source(link: &LocalLink) -> &'static str {
    if link.config.is_rate_fixed {
        "fixed"
    } else if link.capacity.is_measured() {
        "measured"
    } else {
        "claimed"
    }
}

fn link(port: &Port, core: &Endpoint, now_ns: u64) -> Value {
    let link = core.link(port.number);
    let source = link.map_or("claimed", rate_source);
    json!({
        "number": port.number,
        "name": port.name,
        "carrier": link.is_some_and(|link| link.has_carrier),
        "rate_bps": link.map_or(0.0, |link| link.capacity.rate_bps().round()),
        "rate_measured": source == "measured",
        "rate_source": source,
        "gso": link.is_some_and(|link| link.queue.segmentation),
        "gro": port.may_coalesce,
        "send_errors": port.refused_sends,
        "gone": port.is_gone,
        "received": port.reception.state(now_ns),
    })
}

fn name_of(link: u8, ports: &[Port]) -> String {
    let port = ports.iter().find(|port| port.number == link);
    port.map_or_else(|| format!("#{link}"), |port| port.name.clone())
}

fn peer_state(peer: &PeerView<'_>, ports: &[Port]) -> Value {
    let (counts, histogram, skew_ns) = peer.reorder();
    let mac = peer.mac().map(|byte| format!("{byte:02x}")).join(":");
    let paths: Vec<Value> = peer.paths().map(|path| path_state(&path, ports)).collect();
    json!({
        "node": format!("{:016x}", peer.node()),
        "name": peer.name(),
        "mac": mac,
        "lane": {"number": peer.lane().number, "count": peer.lane().count},
        "up": peer.is_up(),
        "session": peer.has_session(),
        "paths": paths,
        "reorder": {
            "held": counts.held,
            "given_up": counts.given_up,
            "overruns": counts.overruns,
            "skew_us": skew_ns / 1000,
            "hold_histogram_64us_log2": histogram,
        },
    })
}

fn path_state(path: &PathView, ports: &[Port]) -> Value {
    json!({
        "link": name_of(path.link, ports),
        "to": path.to.map(|to| to.to_string()),
        "state": path.state.name(),
        "failures": path.failures,
        "rtt_us": path.rtt_ns.0 / 1000,
        "rtt_now_us": path.rtt_latest_ns / 1000,
        "rtt_min_us": path.rtt_ns.1 / 1000,
        "loss": path.loss,
        "tx_packets": path.counters.tx_packets,
        "tx_bytes": path.counters.tx_bytes,
        "rx_packets": path.counters.rx_packets,
        "rx_bytes": path.counters.rx_bytes,
        "lost": path.counters.lost,
        "repaired": path.counters.repaired,
        "duplicate": path.counters.duplicate,
        "late": path.counters.late,
        "state_changes": path.counters.failures,
    })
}

/// Returns an event as a JSON object, which becomes one line of NDJSON.
pub fn event(event: &Event, ports: &[Port], at_s: f64) -> Value {
    let node = |node: u64| format!("{node:016x}");
    match event {
        Event::Peer {
            node: id,
            name,
            is_up,
        } => {
            json!({"at_s": at_s, "event": "peer", "peer": name, "node": node(*id), "up": is_up})
        }
        Event::Path {
            node: id,
            name,
            link,
            change,
            loss,
        } => json!({
            "at_s": at_s, "event": "path", "peer": name, "node": node(*id),
            "link": name_of(*link, ports), "from": change.from.name(), "to": change.to.name(),
            "reason": change.reason.name(), "loss": loss,
        }),
        Event::Lossy {
            node: id,
            name,
            link,
            share,
            is_lossy,
        } => json!({
            "at_s": at_s, "event": if *is_lossy { "lossy" } else { "clean" }, "peer": name,
            "node": node(*id), "link": name_of(*link, ports), "loss": share,
        }),
        Event::SealMismatch { name, theirs } => json!({
            "at_s": at_s, "event": "seal-mismatch", "peer": name, "theirs": theirs.name(),
        }),
    }
}
