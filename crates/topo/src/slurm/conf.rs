//! `topology.conf`, the older of Slurm's two topology files.

use super::names::expand;
use super::{SlurmError, TreeBuilder, by_switch};
use crate::network::Network;
use crate::quantity::Rate;

/// Reads a `topology.conf`. The file has no rates and no latencies; its `LinkSpeed` is relative.
/// Every link gets `rate` and a latency of 0.
///
/// # Errors
/// Names the file and the line.
pub fn read(file: &str, text: &str, rate: Rate) -> Result<Network, SlurmError> {
    let mut builder = TreeBuilder::new(file);
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let wrong = |problem: String| SlurmError::new(file, index + 1, problem);
        let mut switch = None;
        for field in line.split_whitespace() {
            let Some((key, value)) = field.split_once('=') else {
                return Err(wrong(format!("`{field}`: expected KEY=VALUE")));
            };
            match (key.to_ascii_lowercase().as_str(), switch) {
                ("switchname", None) => switch = Some(builder.switch(index + 1, value)?),
                ("nodes" | "switches", Some(switch)) => {
                    builder.add_children(index + 1, switch, expand(value).map_err(wrong)?);
                }
                ("linkspeed", Some(_)) => {}
                (_, None) => {
                    return Err(wrong(format!(
                        "`{field}`: expected SwitchName=NAME at the start of the line"
                    )));
                }
                _ => {
                    return Err(wrong(format!(
                        "invalid key `{key}`: expected Nodes, Switches or LinkSpeed"
                    )));
                }
            }
        }
    }
    builder.build(rate)
}

/// Writes a `topology.conf`, with one host per entry.
pub fn write(network: &Network) -> String {
    let mut text = format!("# {}: written by kumi topo export\n", network.name);
    for entry in by_switch(network) {
        text.push_str(&format!("SwitchName={}", entry.name));
        for (key, names) in [("Nodes", entry.hosts), ("Switches", entry.switches)] {
            if !names.is_empty() {
                text.push_str(&format!(" {key}={}", names.join(",")));
            }
        }
        text.push('\n');
    }
    text
}
