//! Draws a network as text: the tree, with the rates of each link.

use crate::network::{End, Network};

/// Draws the tree from its first switch, or from its first host if there is no switch. Equal hosts
/// of a switch share a line.
pub fn tree(network: &Network) -> String {
    let neighbours = network.neighbours();
    let root = network.hosts.len() % neighbours.len().max(1);
    let mut text = format!("{}\n", network.name_of(network.end(root)));
    draw_children(network, &neighbours, root, None, "", &mut text);
    text
}

fn draw_children(
    network: &Network,
    neighbours: &[Vec<(usize, usize)>],
    node: usize,
    from: Option<usize>,
    margin: &str,
    text: &mut String,
) {
    let mut hosts: Vec<(String, Vec<&str>)> = Vec::new();
    let mut switches = Vec::new();
    for (next, link) in neighbours[node].iter().copied() {
        if Some(next) == from {
            continue;
        }
        let label = link_label(network, link, node);
        match network.end(next) {
            End::Switch(_) => switches.push((next, label)),
            End::Host(host) => {
                let name = network.hosts[host].name.as_str();
                let label = match network.hosts[host].both_ways {
                    Some(rate) => format!("{label}, {rate} both ways at once"),
                    None => label,
                };
                match hosts.iter_mut().find(|(known, _)| *known == label) {
                    Some((_, names)) => names.push(name),
                    None => hosts.push((label, vec![name])),
                }
            }
        }
    }
    let lines = hosts.len() + switches.len();
    let branch = |line: usize| {
        if line + 1 == lines {
            "└─ "
        } else {
            "├─ "
        }
    };
    for (line, (label, names)) in hosts.iter().enumerate() {
        let names = names.join(" ");
        text.push_str(&format!("{margin}{}{names}  ({label})\n", branch(line)));
    }
    for (index, (next, label)) in switches.into_iter().enumerate() {
        let line = hosts.len() + index;
        let name = network.name_of(network.end(next));
        text.push_str(&format!("{margin}{}{name}  ({label})\n", branch(line)));
        let margin = format!("{margin}{}", if line + 1 == lines { "   " } else { "│  " });
        draw_children(network, neighbours, next, Some(node), &margin, text);
    }
}

/// Describes the rates of a link, seen from `node`.
pub(crate) fn link_label(network: &Network, link: usize, node: usize) -> String {
    let link = &network.links[link];
    let is_first = network.node(link.ends[0]) == node;
    let [forward, backward] = link.rates;
    let (down, up) = if is_first {
        (forward, backward)
    } else {
        (backward, forward)
    };
    let rates = if down == up {
        down.to_string()
    } else {
        format!("{down} down, {up} up")
    };
    match link.latency.ns() {
        0 => rates,
        _ => format!("{rates}, {}", link.latency),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw__two_switches__groups_equal_hosts_on_one_line() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit", latency = "10us" },
                { between = ["b", "s"], rate = "1Gbit", latency = "10us" },
                { between = ["s", "t"], rates = ["100Mbit", "200Mbit"], latency = "1ms" },
                { between = ["t", "c"], rate = "1Gbit" },
            ]
        "#;
        let drawn = tree(&Network::parse("two.toml", text).unwrap());
        let expected = "s\n├─ a b  (1Gbit, 10us)\n└─ t  (100Mbit down, 200Mbit up, 1ms)\n   \
                        └─ c  (1Gbit)\n";
        assert_eq!(drawn, expected);
    }
}
