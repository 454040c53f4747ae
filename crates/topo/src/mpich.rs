//! Writes MPICH's coordinates file (`MPIR_CVAR_COORDINATES_FILE`).
//!
//! MPICH skips the first line. Each further line belongs to one rank and holds its group, its
//! switch in the group and its port. A group is a branch below the first switch: either the hosts
//! of that switch itself, or one of the switches below it with everything behind it.

use crate::network::{End, Network};
use std::fmt::Write;

/// Writes the coordinates of ranks on these hosts, given by index.
pub fn write(network: &Network, ranks: &[usize]) -> String {
    let mut text = "# rank: group id, switch id, port number\n".to_owned();
    let neighbours = network.neighbours();
    let groups = groups(network, &neighbours);
    let mut ports = vec![0; network.hosts.len() + network.switches.len()];
    for (rank, host) in ranks.iter().enumerate() {
        let switch = neighbours[*host].first().map_or(*host, |(node, _)| *node);
        let id = switch.saturating_sub(network.hosts.len());
        let _ = writeln!(text, "{rank}: {} {id} {}", groups[switch], ports[switch]);
        ports[switch] += 1;
    }
    text
}

/// Returns the group of each node.
fn groups(network: &Network, neighbours: &[Vec<(usize, usize)>]) -> Vec<usize> {
    let mut groups = vec![0; neighbours.len()];
    let root = network.hosts.len() % neighbours.len().max(1);
    let children = neighbours[root].iter().map(|(node, _)| *node);
    let switches = children.filter(|node| matches!(network.end(*node), End::Switch(_)));
    for (group, first) in switches.enumerate() {
        let mut waiting = vec![(first, root)];
        while let Some((node, from)) = waiting.pop() {
            groups[node] = group + 1;
            let next = neighbours[node].iter().map(|(next, _)| *next);
            waiting.extend(next.filter(|next| *next != from).map(|next| (next, node)));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates__each_rank__are_group_switch_and_port() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            switch = [{ name = "s" }, { name = "t" }, { name = "u" }]
            link = [
                { between = ["a", "t"], rate = "1Gbit" },
                { between = ["s", "t"], rate = "1Gbit" },
                { between = ["u", "s"], rate = "1Gbit" },
                { between = ["u", "b"], rate = "1Gbit" },
                { between = ["u", "c"], rate = "1Gbit" },
            ]
        "#;
        let network = Network::parse("two", text).unwrap();
        let written = write(&network, &[2, 0, 1]);
        assert_eq!(
            written,
            "# rank: group id, switch id, port number\n0: 2 2 0\n1: 1 1 0\n2: 2 2 1\n"
        );
    }
}
