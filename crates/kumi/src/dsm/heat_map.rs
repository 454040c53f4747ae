//! A page with a map of each region: how often its pages were missed, and where nodes share pages
//! without sharing bytes. It opens without a network.

use super::{list, text};
use serde_json::Value;
use std::fmt::Write;

/// Cells of a row, and their distance, in units of the drawing.
const COLUMNS: usize = 64;
const STEP: usize = 14;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
svg{width:100%;height:auto}rect{fill:#2a6fb0}.cold{fill:#8883}\
.shared{stroke:#c33;stroke-width:2}";

/// Returns the page about the processes of a host.
pub fn page(processes: &[Value]) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Shared memory</title>\n\
         <style>{STYLE}</style>\n<h1>Shared memory</h1>\n\
         <p>Each cell is a row of pages. The darker it is, the more often they were missed. A red \
         frame: another node writes other bytes of these pages, so both get them again and again. \
         Point at a cell for its numbers.</p>\n"
    );
    for process in processes {
        let _ = writeln!(
            html,
            "<h2>Node {} of {}, process {}</h2>",
            process["node"], process["nodes"], process["pid"]
        );
        for region in list(&process["regions"]) {
            html += &region_map(region);
        }
    }
    html + "</html>\n"
}

fn numbers(value: &Value) -> Vec<u64> {
    let numbers = list(value).iter();
    numbers.map(|number| number.as_u64().unwrap_or(0)).collect()
}

fn region_map(region: &Value) -> String {
    let heat = &region["heat"];
    let (misses, shared) = (numbers(&heat["misses"]), numbers(&heat["false_sharing"]));
    let per_cell = heat["pages_per_cell"].as_u64().unwrap_or(1);
    let hottest = misses.iter().copied().max().unwrap_or(0);
    let rows = misses.len().div_ceil(COLUMNS);
    let mut svg = format!(
        "<h3>Region at {}, {} bytes, {per_cell} pages a cell</h3>\n\
         <svg viewBox=\"0 0 {} {}\" role=\"img\">\n",
        text(&region["address"]),
        region["bytes"],
        COLUMNS * STEP,
        rows * STEP
    );
    for (cell, count) in misses.iter().copied().enumerate() {
        let shared = shared.get(cell).copied().unwrap_or(0);
        let class = match (count, shared) {
            (0, 0) => " class=\"cold\"",
            (_, 0) => "",
            _ => " class=\"shared\"",
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"{:.2}\"{class}>\
             <title>pages {} to {}: {count} misses, {shared} times false sharing</title></rect>",
            cell % COLUMNS * STEP + 1,
            cell / COLUMNS * STEP + 1,
            STEP - 2,
            STEP - 2,
            opacity(count, hottest),
            cell as u64 * per_cell,
            (cell as u64 + 1) * per_cell - 1
        );
    }
    svg + "</svg>\n"
}

/// Returns the darkness of a cell: the logarithm of its misses, so that few ones are seen beside
/// many.
fn opacity(count: u64, hottest: u64) -> f64 {
    if count == 0 {
        return 1.0;
    }
    let share = ((count + 1) as f64).ln() / ((hottest + 1) as f64).ln();
    0.2 + 0.8 * share
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn page__of_a_region__has_a_cell_for_each_row_of_pages() {
        let process = json!({"node": 1, "nodes": 3, "pid": 77, "regions": [{
            "address": "0x2000", "bytes": 40960,
            "heat": {"pages_per_cell": 4, "misses": [0, 9, 1], "false_sharing": [0, 2, 0]}}]});
        let html = page(&[process]);
        assert_eq!(html.matches("<rect").count(), 3, "{html}");
        assert!(html.contains("pages 4 to 7: 9 misses, 2 times false sharing"));
        assert_eq!(html.matches("class=\"shared\"").count(), 1);
        assert_eq!(html.matches("class=\"cold\"").count(), 1);
        assert!(html.contains("Node 1 of 3, process 77") && html.contains("Region at 0x2000"));
    }

    #[test]
    fn opacity__of_more_misses__is_higher_and_at_most_one() {
        let shades: Vec<f64> = [1, 10, 100].map(|count| opacity(count, 100)).to_vec();
        assert!(shades.is_sorted() && shades[2] == 1.0 && shades[0] > 0.2);
    }
}
