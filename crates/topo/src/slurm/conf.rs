//! `topology.conf`, the older of Slurm's two topology files.

use super::names::expand;
use super::{Named, SlurmError, by_switch};
use crate::network::Network;
use crate::quantity::Rate;

/// Reads a `topology.conf`. The file has no rates and no latencies; its `LinkSpeed` is relative.
/// Every link gets `rate` and a latency of 0.
///
/// # Errors
/// Names the file and the line.
pub fn read(file: &str, text: &str, rate: Rate) -> Result<Network, SlurmError> {
    let mut named = Named::new(file);
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let wrong = |problem: String| SlurmError::new(file, at + 1, problem);
        let mut switch = None;
        for word in line.split_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                return Err(wrong(format!("`{word}`: expected KEY=VALUE")));
            };
            match (key.to_ascii_lowercase().as_str(), switch) {
                ("switchname", None) => switch = Some(named.switch(at + 1, value)?),
                ("nodes" | "switches", Some(switch)) => {
                    named.hang(at + 1, switch, expand(value).map_err(wrong)?);
                }
                ("linkspeed", Some(_)) => {}
                (_, None) => {
                    return Err(wrong("a line must begin with SwitchName=NAME".to_owned()));
                }
                _ => {
                    return Err(wrong(format!(
                        "invalid key `{key}`: expected Nodes, Switches or LinkSpeed"
                    )));
                }
            }
        }
    }
    named.joined(rate)
}

/// Writes a `topology.conf`, with one host per entry.
pub fn write(network: &Network) -> String {
    let mut text = format!("# {}: written by kumi topo export\n", network.name);
    for of in by_switch(network) {
        text.push_str(&format!("SwitchName={}", of.name));
        for (key, names) in [("Nodes", of.hosts), ("Switches", of.switches)] {
            if !names.is_empty() {
                text.push_str(&format!(" {key}={}", names.join(",")));
            }
        }
        text.push('\n');
    }
    text
}
