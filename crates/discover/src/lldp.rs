//! Names of switches from LLDP, if the switches send it and `lldpd` receives it.
//!
//! Only names are used, and whether hosts agree on them. A switch without LLDP may pass on the
//! announcements of others.

use serde_json::Value;
use std::collections::HashMap;
use std::process::{Command, Stdio};

/// Returns the name of the neighbour behind each interface that has exactly one.
pub fn neighbours() -> HashMap<String, String> {
    let result = Command::new("lldpcli")
        .args(["-f", "json0", "show", "neighbors"])
        .stderr(Stdio::null())
        .output();
    let text = result.map(|output| output.stdout).unwrap_or_default();
    serde_json::from_slice(&text).map_or_else(|_| HashMap::new(), |answer| parse(&answer))
}

/// Parses lldpcli's `json0`, in which everything is a list. Interfaces with several neighbours are
/// left out: a switch without LLDP joins them, so their name says nothing about it.
fn parse(answer: &Value) -> HashMap<String, String> {
    let lists = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let first = |value: &Value, key: &str| value[key][0]["value"].as_str().map(str::to_owned);
    let mut neighbours: HashMap<String, Vec<String>> = HashMap::new();
    let entries = lists(answer, "lldp").into_iter();
    for interface in entries.flat_map(|entry| lists(&entry, "interface")) {
        let Some(device) = interface["name"].as_str() else {
            continue;
        };
        for chassis in lists(&interface, "chassis") {
            let name = first(&chassis, "name").or_else(|| first(&chassis, "id"));
            neighbours
                .entry(device.to_owned())
                .or_default()
                .extend(name);
        }
    }
    let single = neighbours.into_iter().filter(|(_, names)| names.len() == 1);
    single
        .filter_map(|(device, mut names)| Some((device, names.pop()?)))
        .collect()
}

/// Replaces characters that the network file does not accept in a name by `-`.
fn sanitize(name: &str) -> String {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .map(|c| if is_valid(c) { c } else { '-' })
        .collect()
}

/// Returns names for switches from the names that hosts received. Also returns a message for each
/// name that contradicts the measured tree.
pub fn names(
    hosts: &[String],
    lldp_names: &[Option<String>],
    switch_of: &[usize],
    switches: usize,
) -> (Vec<Option<String>>, Vec<String>) {
    let mut names = vec![None; switches];
    let mut doubts = Vec::new();
    let mut first_by_name: HashMap<&str, usize> = HashMap::new();
    let mut first_by_switch: HashMap<usize, usize> = HashMap::new();
    for (host, name) in lldp_names.iter().enumerate() {
        let Some(name) = name else { continue };
        let namesake = *first_by_name.entry(name.as_str()).or_insert(host);
        if switch_of[namesake] != switch_of[host] {
            doubts.push(format!(
                "{} and {} both receive {name} by LLDP, but measurements place them on two switches",
                hosts[namesake], hosts[host]
            ));
            continue;
        }
        let neighbour = *first_by_switch.entry(switch_of[host]).or_insert(host);
        if lldp_names[neighbour].as_ref() != Some(name) {
            doubts.push(format!(
                "{} receives {} and {} receives {name} by LLDP, but measurements place them on one switch",
                hosts[neighbour],
                lldp_names[neighbour].as_deref().unwrap_or("nothing"),
                hosts[host]
            ));
            continue;
        }
        let name = sanitize(name);
        let is_taken = names
            .iter()
            .enumerate()
            .any(|(switch, entry)| switch != switch_of[host] && entry.as_ref() == Some(&name));
        if !is_taken && !hosts.contains(&name) {
            names[switch_of[host]] = Some(name);
        }
    }
    (names, doubts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lldp_neighbours__exactly_one_on_an_interface__are_named() {
        let chassis = |name: &str| json!({"id": [{"type": "mac", "value": "00:11"}], "name": [{"value": name}]});
        let answer = json!({"lldp": [{"interface": [
            {"name": "eth0", "via": "LLDP", "chassis": [chassis("leaf 1")], "port": [{}]},
            {"name": "eth1", "chassis": [chassis("a")]},
            {"name": "eth1", "chassis": [chassis("b")]},
            {"name": "eth2", "chassis": [{"id": [{"type": "mac", "value": "00:22"}]}]},
            {"name": "eth3"},
        ]}]});
        let neighbours = parse(&answer);
        assert_eq!(neighbours.get("eth0").map(String::as_str), Some("leaf 1"));
        assert_eq!(neighbours.get("eth2").map(String::as_str), Some("00:22"));
        assert_eq!(neighbours.len(), 2);
        assert!(parse(&json!({"lldp": [{}]})).is_empty() && parse(&json!(3)).is_empty());
    }

    #[test]
    fn switch_names__hosts_agree_or_disagree__are_adopted_or_reported_as_doubts() {
        let hosts: Vec<String> = (1..=4).map(|host| format!("h{host}")).collect();
        let lldp_names = ["leaf 1", "leaf 1", "leaf2"].map(|name| Some(name.to_owned()));
        let lldp_names = [lldp_names.as_slice(), &[None]].concat();
        let (switch_names, doubts) = names(&hosts, &lldp_names, &[0, 0, 1, 1], 3);
        assert_eq!(
            switch_names,
            [Some("leaf-1".to_owned()), Some("leaf2".to_owned()), None]
        );
        assert_eq!(doubts, [""; 0]);
        let (_, doubts) = names(&hosts, &lldp_names, &[0, 1, 0, 1], 2);
        assert_eq!(
            doubts,
            [
                "h1 and h2 both receive leaf 1 by LLDP, but measurements place them on two switches",
                "h1 receives leaf 1 and h3 receives leaf2 by LLDP, but measurements place them on one switch"
            ]
        );
    }
}
