//! Draws a network as SVG: the tree line by line, with links whose width grows with their rate.

use crate::draw::link_label;
use crate::network::{End, Network};
use std::fmt::Write;

const LINE_PX: usize = 26;
const STEP_PX: usize = 44;
const LEFT_PX: usize = 16;
const TOP_PX: usize = 48;
/// Approximate width of a letter in the font below, in pixels.
const LETTER_PX: usize = 8;

/// Most names on one line.
const NAMES_MAX: usize = 8;

const STYLE: &str = "text{font:14px system-ui,sans-serif;fill:#222}.note{fill:#777}.switch{fill:#e8eef7;stroke:#456}\
    .link{fill:none;stroke:#456}.slow{stroke:#b33}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.note{fill:#999}.switch{fill:#234}}";

/// A line of the drawing.
struct Row {
    depth: usize,
    /// The row of its parent switch.
    parent: Option<usize>,
    text: String,
    note: String,
    is_switch: bool,
    /// The lower of the two directions' rates, in bits per second.
    bps: u64,
}

/// Draws the tree from its first switch, or from its first host if there is no switch.
pub fn tree(network: &Network) -> String {
    let neighbours = network.neighbours();
    let root = network.hosts.len() % neighbours.len().max(1);
    let mut rows = vec![Row {
        depth: 0,
        parent: None,
        text: network.name_of(network.end(root)).to_owned(),
        note: String::new(),
        is_switch: matches!(network.end(root), End::Switch(_)),
        bps: 0,
    }];
    add_rows(network, &neighbours, (root, None), 0, &mut rows);
    // Links between switches that are slower than access links are the ones that plans must spare.
    let access = rows.iter().filter(|row| !row.is_switch && row.bps > 0);
    let access_bps = access.map(|row| row.bps).min().unwrap_or(0);
    let letters = |row: &Row| row.text.chars().count() + row.note.chars().count() + 4;
    let widths = rows
        .iter()
        .map(|row| LEFT_PX + row.depth * STEP_PX + letters(row) * LETTER_PX);
    let width = widths.max().unwrap_or(0).max(200);
    let height = TOP_PX + rows.len() * LINE_PX;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<text x=\"{LEFT_PX}\" y=\"22\">{}</text>\n",
        escaped(&network.name)
    );
    let position = |row: usize| (LEFT_PX + rows[row].depth * STEP_PX, TOP_PX + row * LINE_PX);
    for (number, row) in rows.iter().enumerate() {
        let (x, y) = position(number);
        if let Some(parent) = row.parent {
            let (from_x, from_y) = position(parent);
            let slow = if row.is_switch && row.bps < access_bps {
                " slow"
            } else {
                ""
            };
            let _ = writeln!(
                svg,
                "<path class=\"link{slow}\" stroke-width=\"{}\" d=\"M{} {}V{y}H{}\"/>",
                thickness(row.bps),
                from_x + 12,
                from_y + 10,
                x - 4
            );
        }
        if row.is_switch {
            let box_px = (row.text.chars().count() + 2) * LETTER_PX;
            let _ = writeln!(
                svg,
                "<rect class=\"switch\" x=\"{}\" y=\"{}\" width=\"{box_px}\" height=\"20\" rx=\"4\"/>",
                x - 4,
                y - 10
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\">{}<tspan class=\"note\" dx=\"14\">{}</tspan></text>",
            x + 4,
            y + 5,
            escaped(&row.text),
            escaped(&row.note)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn add_rows(
    network: &Network,
    neighbours: &[Vec<(usize, usize)>],
    (node, from): (usize, Option<usize>),
    parent: usize,
    rows: &mut Vec<Row>,
) {
    let depth = rows[parent].depth + 1;
    let mut switches = Vec::new();
    // Equal hosts share a line, up to its capacity.
    let mut hosts: Vec<(Row, usize)> = Vec::new();
    for (next, link) in neighbours[node].iter().copied() {
        if Some(next) == from {
            continue;
        }
        let mut row = Row {
            depth,
            parent: Some(parent),
            text: network.name_of(network.end(next)).to_owned(),
            note: link_label(network, link, node),
            is_switch: true,
            bps: network.links[link]
                .rates
                .map(|rate| rate.bps())
                .into_iter()
                .min()
                .unwrap_or(0),
        };
        let End::Host(host) = network.end(next) else {
            switches.push((next, row));
            continue;
        };
        row.is_switch = false;
        if let Some(rate) = network.hosts[host].both_ways {
            let _ = write!(row.note, ", {rate} both ways at once");
        }
        let alike = |(line, names): &&mut (Row, usize)| line.note == row.note && *names < NAMES_MAX;
        match hosts.iter_mut().find(alike) {
            Some((line, names)) => {
                let _ = write!(line.text, " {}", row.text);
                *names += 1;
            }
            None => hosts.push((row, 1)),
        }
    }
    rows.extend(hosts.into_iter().map(|(row, _)| row));
    for (next, row) in switches {
        rows.push(row);
        let number = rows.len() - 1;
        add_rows(network, neighbours, (next, Some(node)), number, rows);
    }
}

/// Returns a line's width: 1 at 10 Mb/s, plus 1 for each factor of ten.
fn thickness(bps: u64) -> u32 {
    bps.max(10_000_000).ilog10() - 6
}

/// Escapes text for HTML and SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg__network_with_a_slow_link__has_all_names_and_marks_the_link() {
        let text = r#"
            name = "two & more"
            host = [{ name = "a" }, { name = "b" }, { name = "c", both_ways = "1500Mbit" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["b", "s"], rate = "1Gbit" },
                { between = ["s", "t"], rate = "100Mbit" },
                { between = ["t", "c"], rate = "1Gbit" },
            ]
        "#;
        let text = text.replace(" & ", "-");
        let mut network = Network::parse("two", &text).unwrap();
        network.name = "two & more".to_owned();
        let svg = tree(&network);
        for part in [
            ">a b<",
            ">t<",
            ">c<",
            "1500Mbit both ways at once",
            "two &amp; more",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!(svg.matches("slow\"").count(), 1);
        assert_eq!(svg.matches("<path").count(), 3);
    }
}
