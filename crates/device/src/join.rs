//! Joins the states of a device's queues into one.

use serde_json::{Value, json};

/// States of a path, best first. A joined path has the state of its worst queue.
const STATES: [&str; 5] = ["up", "suspect", "new", "quarantined", "down"];

/// Joins the states of all queues. The facts of the device are those of the first queue in
/// `states`, except for its counters, which are added.
pub fn states(states: &[Value]) -> Value {
    let Some((first, others)) = states.split_first() else {
        return Value::Null;
    };
    let mut result = first.clone();
    if first["queue"].is_null() {
        return result; // RI2N/DRV has no queues
    }
    result["queues"] = states.iter().map(queue).collect();
    if let Some(result) = result.as_object_mut() {
        result.remove("queue");
    }
    for state in others {
        add(&mut result["counters"], &state["counters"]);
        for key in ["waiting_bytes", "tap_write_errors"] {
            add(&mut result["facts"][key], &state["facts"][key]);
        }
    }
    let links = group_by(states, "links", "name");
    result["links"] = links.iter().map(|links| link(links)).collect();
    let peers = group_by(states, "peers", "node");
    result["peers"] = peers
        .iter()
        .map(|lanes| peer(lanes, states.len()))
        .collect();
    result
}

/// Returns the totals of one queue over all its paths.
fn queue(state: &Value) -> Value {
    let mut sums = json!({"tx_bytes": 0, "rx_bytes": 0, "tx_packets": 0, "rx_packets": 0});
    for path in items(state, "peers").flat_map(|peer| items(peer, "paths")) {
        for key in ["tx_bytes", "rx_bytes", "tx_packets", "rx_packets"] {
            add(&mut sums[key], &path[key]);
        }
    }
    sums["number"] = state["queue"]["number"].clone();
    sums["busy"] = state["queue"]["busy"].clone();
    sums
}

/// Joins the states of one link.
///
/// The rate is the sum of the estimates of the queues that keep the link busy, because each of them
/// measures only its share. It is at least the largest estimate.
fn link(links: &[&Value]) -> Value {
    let mut result = links[0].clone();
    for link in &links[1..] {
        add(&mut result["send_errors"], &link["send_errors"]);
        for key in ["carrier", "gso", "gro"] {
            result[key] = (result[key] == true && link[key] == true).into();
        }
    }
    let measured: Vec<_> = links
        .iter()
        .filter(|link| link["rate_measured"] == true)
        .collect();
    if links.len() > 1 && !measured.is_empty() {
        let rate = |link: &Value| link["rate_bps"].as_f64().unwrap_or(0.0);
        let largest = measured.iter().map(|link| rate(link)).fold(0.0, f64::max);
        let busy = measured.iter().filter(|link| link["busy"] == true);
        let sum: f64 = busy.map(|link| rate(link)).sum();
        result["rate_bps"] = largest.max(sum).into();
        result["rate_measured"] = true.into();
        result["rate_source"] = "measured".into();
    }
    if let Some(result) = result.as_object_mut() {
        result.remove("busy");
    }
    result
}

/// Joins the states of one peer. It is up if every queue of either side has a counterpart that is
/// up.
fn peer(lanes: &[&Value], queues: usize) -> Value {
    let lane = |peer: &Value, key: &str| peer["lane"][key].as_u64().unwrap_or(0);
    let count = lane(lanes[0], "count").max(1);
    let present: Vec<&&Value> = lanes
        .iter()
        .filter(|peer| lane(peer, "number") < lane(peer, "count"))
        .collect();
    let Some((first, others)) = present.split_first() else {
        return lanes[0].clone();
    };
    let mut result = (**first).clone();
    for peer in others {
        for key in ["up", "session"] {
            result[key] = (result[key] == true && peer[key] == true).into();
        }
        for key in ["held", "given_up", "overruns"] {
            add(&mut result["reorder"][key], &peer["reorder"][key]);
        }
        raise(
            &mut result["reorder"]["skew_us"],
            &peer["reorder"]["skew_us"],
        );
        let buckets = &peer["reorder"][HISTOGRAM];
        if let Some(sums) = result["reorder"][HISTOGRAM].as_array_mut() {
            for (index, sum) in sums.iter_mut().enumerate() {
                add(sum, &buckets[index]);
            }
        }
    }
    let pairs = (queues as u64).max(count);
    result["up"] = (result["up"] == true && present.len() as u64 == pairs).into();
    let lanes: Vec<Value> = present.iter().map(|peer| (**peer).clone()).collect();
    let paths = group_by(&lanes, "paths", "link");
    result["paths"] = paths.iter().map(|paths| path(paths)).collect();
    if let Some(result) = result.as_object_mut() {
        result.remove("lane");
        result.insert("queues".into(), count.into());
    }
    result
}

const HISTOGRAM: &str = "hold_histogram_64us_log2";

fn path(lanes: &[&Value]) -> Value {
    let mut result = lanes[0].clone();
    for lane in &lanes[1..] {
        for key in [
            "tx_packets",
            "tx_bytes",
            "rx_packets",
            "rx_bytes",
            "lost",
            "repaired",
            "duplicate",
            "late",
            "state_changes",
        ] {
            add(&mut result[key], &lane[key]);
        }
        for key in ["rtt_us", "rtt_now_us", "loss", "failures"] {
            raise(&mut result[key], &lane[key]);
        }
        if number(&lane["rtt_min_us"]) < number(&result["rtt_min_us"]) {
            result["rtt_min_us"] = lane["rtt_min_us"].clone();
        }
        let rank = |path: &Value| STATES.iter().position(|state| path["state"] == *state);
        if rank(lane) > rank(&result) {
            result["state"] = lane["state"].clone();
        }
    }
    result
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// Groups the items of `list` in all states by the value of `name`, in order of first appearance.
fn group_by<'a>(states: &'a [Value], list: &str, name: &str) -> Vec<Vec<&'a Value>> {
    let mut groups: Vec<Vec<&Value>> = Vec::new();
    for item in states.iter().flat_map(|state| items(state, list)) {
        match groups.iter_mut().find(|group| group[0][name] == item[name]) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Adds a counter, or each counter of an object.
fn add(sum: &mut Value, value: &Value) {
    if let Some(sums) = sum.as_object_mut() {
        sums.iter_mut().for_each(|(key, sum)| add(sum, &value[key]));
    } else if let Some(count) = value.as_u64() {
        *sum = (sum.as_u64().unwrap_or(0) + count).into();
    }
}

fn raise(largest: &mut Value, value: &Value) {
    if number(value) > number(largest) {
        *largest = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(number: u64, state: &str, tx_bytes: u64, busy: bool) -> Value {
        json!({
            "queue": {"number": number, "busy": busy},
            "facts": {"waiting_bytes": 5, "mtu": 1400},
            "counters": {"forged": 1},
            "links": [{"name": "eth1", "rate_bps": 5e8, "rate_measured": true, "busy": busy,
                       "carrier": true, "gso": true, "gro": true, "send_errors": 1}],
            "peers": [{"node": "b", "up": true, "session": true,
                       "lane": {"number": number, "count": 2},
                       "reorder": {"held": 2, "given_up": 0, "overruns": 0, "skew_us": number,
                                   HISTOGRAM: [1, 0]},
                       "paths": [{"link": "eth1", "state": state, "tx_bytes": tx_bytes,
                                  "rtt_us": 100, "rtt_min_us": 90 - number}]}],
        })
    }

    #[test]
    fn join__two_queues__are_summed_and_show_the_worst_path_state() {
        let state = states(&[lane(0, "up", 10, true), lane(1, "down", 20, true)]);
        assert_eq!(state["counters"]["forged"], 2);
        assert_eq!(state["facts"]["waiting_bytes"], 10);
        assert_eq!(state["facts"]["mtu"], 1400);
        assert_eq!(state["links"][0]["rate_bps"], 1e9);
        let peer = &state["peers"][0];
        assert_eq!((&peer["up"], &peer["queues"]), (&json!(true), &json!(2)));
        assert_eq!(peer["reorder"]["held"], 4);
        assert_eq!(peer["reorder"][HISTOGRAM], json!([2, 0]));
        let path = &peer["paths"][0];
        assert_eq!(
            (&path["state"], &path["tx_bytes"]),
            (&json!("down"), &json!(30))
        );
        assert_eq!(path["rtt_min_us"], 89);
        assert_eq!(state["queues"][1]["tx_bytes"], 20);
    }

    #[test]
    fn join__queue_missing__reports_the_peer_as_not_up() {
        let state = states(&[lane(0, "up", 1, true)]);
        assert_eq!(state["peers"][0]["up"], false, "the peer has two queues");
        let mut early = lane(1, "up", 1, false);
        early["peers"] = json!([]);
        let state = states(&[lane(0, "up", 1, true), early]);
        assert_eq!(state["peers"][0]["up"], false);
        assert_eq!(state["links"][0]["rate_bps"], 5e8, "an idle queue's is old");
    }
}
