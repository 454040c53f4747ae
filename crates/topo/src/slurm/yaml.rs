//! `topology.yaml`, which Slurm reads instead of `topology.conf` if both exist.

use super::names::expand;
use super::{SlurmError, TreeBuilder, by_switch};
use crate::network::Network;
use crate::quantity::Rate;
use saphyr::{LoadableYamlNode, MarkedYaml};

/// Reads the default topology of a `topology.yaml`, or else the first one of type tree. The file
/// has no rates and no latencies. Every link gets `rate` and a latency of 0.
///
/// # Errors
/// Names the file and the line, or says that the topology is no tree.
pub fn read(file: &str, text: &str, rate: Rate) -> Result<Network, SlurmError> {
    let wrong = |line: usize, problem: &str| SlurmError::new(file, line, problem.to_owned());
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| SlurmError::new(file, 0, error.to_string()))?;
    let expected = "expected a list of `- topology: NAME`, each with a `tree:`";
    let topologies = documents.first().and_then(|all| all.data.as_sequence());
    let topologies = topologies.ok_or_else(|| wrong(1, expected))?;
    let has = |topology: &&MarkedYaml<'_>, key| topology.data.as_mapping_get(key).is_some();
    let is_default = |topology: &&MarkedYaml<'_>| {
        let default = topology.data.as_mapping_get("cluster_default");
        default.and_then(|value| value.data.as_bool()) == Some(true)
    };
    let chosen = topologies.iter().find(is_default);
    let chosen = chosen.or_else(|| topologies.iter().find(|topology| has(topology, "tree")));
    let chosen = chosen.ok_or_else(|| wrong(0, &format!("no tree in this file: {expected}")))?;
    let line = |node: &MarkedYaml<'_>| node.span.start.line();
    let tree = chosen.data.as_mapping_get("tree").ok_or_else(|| {
        wrong(
            line(chosen),
            "the cluster's default topology has no `tree:`; block and flat topologies do not name links",
        )
    })?;
    let switches = tree.data.as_mapping_get("switches");
    let switches = switches.and_then(|switches| switches.data.as_sequence());
    let switches = switches.ok_or_else(|| wrong(line(tree), "expected `switches:`, a list"))?;
    let mut builder = TreeBuilder::new(file);
    for switch in switches {
        let text = |key| match switch.data.as_mapping_get(key) {
            Some(value) => match value.data.as_str() {
                Some(text) => Ok(Some((line(value), text))),
                None => Err(wrong(
                    line(value),
                    &format!(
                        "`{key}`: expected a name or a list such as n[1-16]; quote a number to use it as a name"
                    ),
                )),
            },
            None => Ok(None),
        };
        let (line_number, name) =
            text("switch")?.ok_or_else(|| wrong(line(switch), "expected `- switch: NAME`"))?;
        let index = builder.switch(line_number, name)?;
        for key in ["nodes", "children"] {
            if let Some((line_number, list)) = text(key)? {
                let names = expand(list).map_err(|problem| wrong(line_number, &problem))?;
                builder.add_children(line_number, index, names);
            }
        }
    }
    builder.build(rate)
}

/// Writes a `topology.yaml` with one tree topology, the cluster's default.
pub fn write(network: &Network) -> String {
    let mut text = format!(
        "# written by kumi topo export\n- topology: \"{}\"\n  cluster_default: true\n  tree:\n    switches:\n",
        network.name
    );
    for entry in by_switch(network) {
        text.push_str(&format!("      - switch: \"{}\"\n", entry.name));
        for (key, names) in [("nodes", entry.hosts), ("children", entry.switches)] {
            if !names.is_empty() {
                text.push_str(&format!("        {key}: \"{}\"\n", names.join(",")));
            }
        }
    }
    text
}
