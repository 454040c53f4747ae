//! Report of the demo: tables for the terminal, and a page that opens without a network.

use super::Story;
use super::chart::{self, Chart};
use super::claim::{Promise, Row, Table};
use super::coll::Exchange;
use super::run::Timeline;
use crate::ceiling::PLAIN_TCP;
use kumi_topo::svg::escaped;
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #8884}\
th:first-child,td:first-child{text-align:left}table{margin:1rem 0}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem}dt{color:#888}dd{margin:0}\
.missed{color:#c33;font-weight:bold}.bar{fill:#2a6fb0}\
svg{width:100%;height:auto}.tick,.name,.mark-name{font:12px system-ui,sans-serif;fill:currentColor}\
.grid{stroke:#8883}.ruler{stroke:#888;stroke-dasharray:2 4}\
.mark{stroke:#c33;stroke-dasharray:6 3}.mark-name{fill:#c33}\
.curve{fill:none;stroke-width:2}.total{stroke:#2a6fb0;fill:none}.name.total{stroke:none;fill:#2a6fb0}\
.link0{stroke:#3a9a5b}.name.link0{stroke:none;fill:#3a9a5b}\
.link1{stroke:#c98a1b}.name.link1{stroke:none;fill:#c98a1b}";

/// Escape sequences of a terminal for a row that breaks its promise.
const RED: [&str; 2] = ["\x1b[31m", "\x1b[0m"];

/// Returns the last cell of a row.
fn verdict(story: &Story, row: &Row) -> &'static str {
    match (row.promise, row.is_kept(), story.void.is_empty()) {
        (None, ..) => "",
        (_, true, true) => "kept",
        (_, false, true) => "MISSED",
        (_, _, false) => "void",
    }
}

/// Returns the cells of a row: name, value, multiple, promise, verdict.
fn cells(story: &Story, table: &Table, row: &Row) -> [String; 5] {
    // A multiple has two decimals, a value those of its table.
    let format_promise = |value: f64| match row.multiple {
        Some(_) => format!("{value:.2}"),
        None => format!("{value:.*}", table.digits),
    };
    let promise = match row.promise {
        None => String::new(),
        Some(Promise::AtLeast(least)) => format!("≥ {}", format_promise(least)),
        Some(Promise::AtMost(most)) => format!("≤ {}", format_promise(most)),
    };
    [
        row.name.clone(),
        if row.value.is_finite() {
            format!("{:.*}", table.digits, row.value)
        } else {
            "never".into()
        },
        row.multiple
            .map_or(String::new(), |multiple| format!("{multiple:.2}")),
        promise,
        verdict(story, row).into(),
    ]
}

/// Returns the heads of a table's columns.
fn heads(table: &Table) -> [String; 5] {
    let base = table.base.map_or(String::new(), |base| format!("× {base}"));
    [
        table.title.into(),
        table.unit.into(),
        base,
        "promised".into(),
        String::new(),
    ]
}

/// Returns the tables for the terminal. With `is_coloured`, broken promises are red.
pub fn text(story: &Story, tables: &[Table], is_coloured: bool) -> String {
    let line = |[name, value, multiple, promise, verdict]: [String; 5]| {
        let line = format!("{name:<66}{value:>10}{multiple:>18}{promise:>10}  {verdict}");
        line.trim_end().to_owned()
    };
    let mut text = String::new();
    for table in tables {
        let _ = writeln!(text, "\n{}", line(heads(table)));
        for row in &table.rows {
            let line = line(cells(story, table, row));
            let [colour, reset] = if is_coloured && !row.is_kept() {
                RED
            } else {
                [""; 2]
            };
            let _ = writeln!(text, "{colour}{line}{reset}");
        }
    }
    text.push('\n');
    for reason in &story.void {
        let _ = writeln!(text, "VOID, the figures prove nothing: {reason}");
    }
    text
}

/// Returns the page as HTML.
pub fn page(story: &Story, tables: &[Table]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Kumihimo demo</title><style>{STYLE}</style></head><body>\n\
         <h1>Kumihimo demo: two links, one cut in the middle</h1>\n\
         <p>Two hosts (network namespaces on one machine), {} links of {}. The programs are unmodified; \
         they ran over <code>{}</code>. The second link was cut and plugged in again while they \
         ran.</p>\n",
        story.rates_bps.len(),
        rate(story.rates_bps.first().copied().unwrap_or(0.0)),
        story.variant,
    );
    html.push_str("<dl>\n");
    for (name, value) in &story.setting.0 {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escaped(value));
    }
    html.push_str("</dl>\n");
    for reason in &story.void {
        let _ = writeln!(
            html,
            "<p class=\"missed\">Void, the figures prove nothing: {}</p>",
            escaped(reason)
        );
    }
    for table in tables {
        html.push_str(&html_table(story, table));
    }
    charts(story, &mut html);
    let _ = writeln!(
        html,
        "<p>Dotted lines: the ceiling of plain TCP (1448 of 1538 bytes of every frame). A red line \
         marks a completed change of the link. This is one run on one machine; the figures to quote \
         are those of <code>kumi bench</code>.</p>\n</body></html>"
    );
    html
}

fn html_table(story: &Story, table: &Table) -> String {
    let html_row = |tag: &str, class: &str, cells: [String; 5]| {
        let cells = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell)));
        format!("<tr{class}>{}</tr>\n", cells.concat())
    };
    let rows = table.rows.iter().map(|row| {
        let class = if row.is_kept() {
            ""
        } else {
            " class=\"missed\""
        };
        html_row("td", class, cells(story, table, row))
    });
    format!(
        "<table>\n{}{}</table>\n",
        html_row("th", "", heads(table)),
        rows.collect::<String>()
    )
}

/// Appends the charts of each part of the demo.
fn charts(story: &Story, html: &mut String) {
    for (title, timeline) in [
        ("iperf3, one TCP stream", &story.stream),
        (
            "Open MPI, messages of 1 MB from one rank to another",
            &story.mpi,
        ),
    ] {
        let _ = writeln!(
            html,
            "<h2>{title}</h2>\n<p>Goodput in Mb/s.</p>\n{}",
            goodput(story, timeline)
        );
        let _ = writeln!(
            html,
            "<p>Send rate of each link, in Mb/s.</p>\n{}",
            links(timeline)
        );
    }
    if !story.crossings.is_empty() {
        let _ = writeln!(
            html,
            "<h2>4 MB across a WAN of 500 Mb/s and 20 ms, after a collective</h2>\n<p>Goodput at the \
             receiving rank in Mb/s.</p>\n{}",
            crossings(story)
        );
    }
    if !story.exchanges.is_empty() {
        let bars = |value: fn(&Exchange) -> f64| {
            let bars = story
                .exchanges
                .iter()
                .map(|exchange| (exchange.author, value(exchange)));
            chart::bars(&bars.collect::<Vec<_>>())
        };
        let _ = writeln!(
            html,
            "<h2>Eight hosts exchange data through switch ports of 32 KB</h2>\n<p>Rounds per second.</p>\n\
             {}<p>Segments that TCP retransmitted.</p>\n{}",
            bars(|exchange| 1.0 / exchange.median_s),
            bars(|exchange| exchange.retransmits)
        );
    }
}

fn goodput(story: &Story, timeline: &Timeline) -> String {
    let mut chart = Chart::default()
        .curve("goodput", "total", timeline.goodput.clone())
        .marks(&timeline.marks);
    let mut sum = 0.0;
    for (index, bps) in story
        .rates_bps
        .iter()
        .enumerate()
        .filter(|(_, bps)| bps.is_finite())
    {
        sum += bps * PLAIN_TCP;
        chart = chart.ruler(
            sum,
            &format!("{} link{}", index + 1, if index == 0 { "" } else { "s" }),
        );
    }
    chart.svg()
}

fn crossings(story: &Story) -> String {
    let classes = ["link1", "total"];
    let mut chart = Chart::default();
    for (crossing, class) in story.crossings.iter().zip(classes) {
        chart = chart.curve(crossing.name, class, crossing.series.clone());
    }
    chart.svg()
}

fn links(timeline: &Timeline) -> String {
    let count = timeline.links.first().map_or(0, |(_, bps)| bps.len());
    let end_s = timeline.goodput.last().map_or(0.0, |(time_s, _)| *time_s);
    let mut chart = Chart::default().marks(&timeline.marks);
    for link in 0..count {
        let readings = timeline.links.iter().filter(|(time_s, _)| *time_s <= end_s);
        let points = readings.map(|(time_s, bps)| (*time_s, bps[link])).collect();
        let class = if link % 2 == 0 { "link0" } else { "link1" };
        chart = chart.curve(&format!("eth{}", link + 1), class, points);
    }
    chart.svg()
}

fn rate(bps: f64) -> String {
    if bps.is_finite() {
        format!("{:.0} Mb/s", bps / 1e6)
    } else {
        "unlimited rate".into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim;
    use super::super::tests::story;
    use super::*;

    #[test]
    fn page__full_story__is_self_contained_and_has_a_chart_for_each_claim() {
        let story = story();
        let html = page(&story, &claim::tables(&story));
        for reference in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(reference), "the page refers to {reference}");
        }
        assert_eq!(html.matches("<svg").count(), 7);
        assert!(html.contains(">cut<") && html.contains(">healed<"));
        assert!(html.contains("<dt>kernel</dt><dd>Linux 6.1</dd>"));
        assert!(!html.contains("MISSED"));
    }

    #[test]
    fn text__full_story__compares_each_phase_with_one_link() {
        let story = story();
        let text = text(&story, &claim::tables(&story), false);
        assert!(text.contains("iperf3 over kumi, one link cut"));
        assert!(text.contains("1800") && text.contains("2.00    ≥ 1.90  kept"));
        assert!(text.contains("MPI_Alltoallv, by a plan"));
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn text__broken_promise__is_red_and_marked_as_missed() {
        let mut story = story();
        story.single_bps = 1.2e9;
        let broken = text(&story, &claim::tables(&story), true);
        assert!(broken.contains(RED[0]) && broken.contains("MISSED"));
        assert!(page(&story, &claim::tables(&story)).contains("class=\"missed\"><td>"));
        story.void.push("the hypervisor took a third".into());
        let void = text(&story, &claim::tables(&story), false);
        assert!(void.contains("VOID") && !void.contains("MISSED"));
    }
}
