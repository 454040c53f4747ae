//! Explains why a device has no peers. The sentences are derived from its state, for `kumi link
//! show`, `--wait-peers` and `kumi doctor`.

use crate::check;
use serde_json::Value;

/// Age above which a received datagram or a refused send is ignored as out of date, in ms: five
/// intervals between hellos.
const RECENT_MS: u64 = 5_000;
/// Shortest uptime before silence on a link is reported, in seconds: two intervals between hellos
/// and a handshake.
const PATIENCE_S: f64 = 2.5;

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

fn is_recent(record: &Value) -> bool {
    record["ms_ago"].as_u64().is_some_and(|ms| ms < RECENT_MS)
}

/// Returns the number of peers that are reached.
pub fn peers_up(state: &Value) -> usize {
    items(state, "peers")
        .filter(|peer| peer["up"] == true)
        .count()
}

/// Returns the reasons why fewer peers are reached than possible: one sentence for each link and
/// peer at fault. Empty if no fault is known.
pub fn reasons(state: &Value) -> Vec<String> {
    if state["preset"] == "ri2n" {
        return Vec::new(); // RI2N/DRV keeps no record of its receptions
    }
    let mut reasons: Vec<String> = items(state, "links")
        .filter_map(|link| link_reason(link, state))
        .collect();
    reasons.extend(state["facts"]["seal_mismatch"].as_str().map(|peer| {
        let own = text(state, "seal");
        format!("peer {peer} has another `seal` than this device ({own}); use the same on both")
    }));
    let refusal = state["facts"]["datapath_refusal"].as_str();
    reasons.extend(refusal.map(|error| format!("the daemon carries all frames: {error}")));
    let is_kernel = state["datapath"] == "kernel";
    for peer in items(state, "peers").filter(|peer| is_kernel && peer["up"] == true) {
        let name = text(peer, "name");
        let lossy: Vec<_> = items(peer, "paths")
            .filter(|path| path["kernel"]["lossy"] == true)
            .map(|path| text(path, "link"))
            .collect();
        reasons.extend(lossy.iter().map(|link| {
            format!(
                "{link} loses frames to peer {name}, so the daemon carries them there and repairs \
                 the losses; check the cable and the switch port"
            )
        }));
        if peer["daemon"] == false {
            reasons.push(format!(
                "the daemon of peer {name} does not answer, though its kernel does: only frames \
                 that the kernels carry arrive there; start its device again"
            ));
        } else if peer["datapath"] == "user" && !lossy.is_empty() {
            continue; // that is why
        } else if peer["datapath"] == "user" && peer["kernel_offered"] == true {
            reasons.push(format!(
                "the daemon carries the frames to peer {name}: its kernel does not answer. An XDP \
                 program, or the port security of a switch, may drop frames from random MAC addresses"
            ));
        } else if peer["datapath"] == "user" {
            reasons.push(format!(
                "the daemon carries the frames to peer {name}: start its device with \
                 `--datapath kernel` too"
            ));
        }
    }
    for peer in items(state, "peers").filter(|peer| peer["up"] != true) {
        let name = text(peer, "name");
        reasons.push(if peer["session"] == true {
            format!("peer {name} does not answer on any link; check that it is up")
        } else {
            format!(
                "packets arrive from peer {name}, but no handshake completes; check that the links \
                 deliver in both directions, and packets of their full MTU"
            )
        });
    }
    reasons
}

fn link_reason(link: &Value, state: &Value) -> Option<String> {
    let (name, port) = (text(link, "name"), &state["facts"]["udp_port"]);
    let record = &link["received"];
    let is_multicast = state["facts"]["multicast"] != false;
    let reason = if link["gone"] == true {
        "the interface has been removed".to_owned()
    } else if link["carrier"] != true {
        format!("no carrier; check the cable, and that it is up (`ip link set {name} up`)")
    } else if is_recent(&record["wrong_key"]) {
        let sender = text(&record["wrong_key"], "from");
        format!("{sender} uses another cluster key: copy one node's key file to all others")
    } else if is_recent(&record["other_version"]) {
        let (sender, version) = (
            text(&record["other_version"], "from"),
            &record["other_version"]["version"],
        );
        format!(
            "{sender} speaks version {version} of the protocol: use one version of kumi everywhere"
        )
    } else if is_multicast && check::is_ipv6_disabled(name) {
        format!(
            "IPv6 is disabled, and peers find each other by IPv6; run `sysctl -w net.ipv6.conf.{name}.disable_ipv6=0`"
        )
    } else if is_recent(&record["refusal"]) {
        let error = text(&record["refusal"], "error");
        format!("the kernel refuses to send: {error}")
    } else if is_recent(record) || number(state, "up_s") < PATIENCE_S {
        return None;
    } else if is_multicast
        && record["own_hello_ms_ago"]
            .as_u64()
            .is_none_or(|ms| ms > RECENT_MS)
    {
        format!(
            "not even this host's own hellos are received: a firewall here drops UDP port {port}, or the interface has no IPv6 address"
        )
    } else {
        format!(
            "nothing received on UDP port {port}; check that a peer's daemon runs on this network, \
             that no firewall there drops the port{}",
            if is_multicast {
                ", and that the switch passes IPv6 multicast"
            } else {
                ""
            }
        )
    };
    Some(format!("{name}: {reason}"))
}

fn number(state: &Value, key: &str) -> f64 {
    state["facts"][key].as_f64().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(link: Value) -> Value {
        json!({"seal": "encrypt", "facts": {"udp_port": 24870, "multicast": false, "up_s": 9.0},
               "links": [link], "peers": []})
    }

    #[test]
    fn reasons__each_fault__has_its_own_message() {
        let says = |link: Value| reasons(&state(link)).join("\n");
        let link = |record: Value| json!({"name": "eth1", "carrier": true, "received": record});
        assert!(says(json!({"name": "eth1", "carrier": false})).contains("eth1: no carrier"));
        assert!(says(json!({"name": "eth1", "gone": true})).contains("removed"));
        let stranger = json!({"ms_ago": 9, "wrong_key": {"from": "fe80::1", "ms_ago": 9}});
        assert!(says(link(stranger)).contains("fe80::1 uses another cluster key"));
        let old = json!({"ms_ago": 9, "wrong_key": {"from": "fe80::1", "ms_ago": 60_000}});
        assert_eq!(says(link(old)), "", "that was mended");
        let version = json!({"other_version": {"from": "fe80::1", "version": 9, "ms_ago": 9}});
        assert!(says(link(version)).contains("version 9 of the protocol"));
        let refusal = json!({"refusal": {"error": "Operation not permitted", "ms_ago": 9}});
        assert!(says(link(refusal)).contains("refuses to send: Operation not permitted"));
        assert!(says(link(json!({}))).contains("nothing received on UDP port 24870"));
    }

    #[test]
    fn reasons__peer_without_session__is_named() {
        let mut state = state(json!({"name": "eth1", "carrier": true, "received": {"ms_ago": 1}}));
        state["peers"] =
            json!([{"name": "h2", "up": false, "session": false}, {"name": "h3", "up": true}]);
        let reasons = reasons(&state);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].contains("from peer h2, but no handshake completes"));
        assert_eq!(peers_up(&state), 1);
    }

    #[test]
    fn reasons__link_that_loses_the_kernels_frames__is_named() {
        let mut state = state(json!({"name": "eth1", "carrier": true, "received": {"ms_ago": 1}}));
        state["datapath"] = "kernel".into();
        let path = json!([{"link": "eth1", "kernel": {"lossy": true}}]);
        state["peers"] = json!([{"name": "h2", "up": true, "datapath": "kernel", "paths": path},
                                {"name": "h3", "up": true, "datapath": "user", "paths": path,
                                 "kernel_offered": true}]);
        let found = reasons(&state);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("eth1 loses frames to peer h2"));
        assert!(found[1].starts_with("eth1 loses frames to peer h3"));
    }

    #[test]
    fn reasons__kernel_data_path_that_is_not_used__is_explained() {
        let mut state = state(json!({"name": "eth1", "carrier": true, "received": {"ms_ago": 1}}));
        state["datapath"] = "kernel".into();
        state["peers"] = json!([{"name": "h2", "up": true, "datapath": "kernel"},
                                {"name": "h3", "up": true, "datapath": "user"},
                                {"name": "h4", "up": true, "datapath": "kernel", "daemon": false},
                                {"name": "h5", "up": true, "datapath": "user", "kernel_offered": true}]);
        let found = reasons(&state);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[2].contains("peer h5: its kernel does not answer"));
        assert!(found[0].contains("peer h3: start its device with `--datapath kernel`"));
        assert!(found[1].contains("the daemon of peer h4 does not answer"));
        state["datapath"] = "user".into();
        state["facts"]["datapath_refusal"] = "no clang".into();
        assert_eq!(reasons(&state), ["the daemon carries all frames: no clang"]);
    }
}
