//! The demo's report: a table for the terminal, and a page that opens without a network.

use super::Story;
use super::chart::Chart;
use super::run::Timeline;
use crate::bench::ceiling::PLAIN_TCP;
use kumi_topo::svg::escaped;
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #8884}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto}.tick,.name,.mark-name{font:12px system-ui,sans-serif;fill:currentColor}\
.grid{stroke:#8883}.ruler{stroke:#888;stroke-dasharray:2 4}\
.mark{stroke:#c33;stroke-dasharray:6 3}.mark-name{fill:#c33}\
.curve{fill:none;stroke-width:2}.total{stroke:#2a6fb0;fill:none}.name.total{stroke:none;fill:#2a6fb0}\
.link0{stroke:#3a9a5b}.name.link0{stroke:none;fill:#3a9a5b}\
.link1{stroke:#c98a1b}.name.link1{stroke:none;fill:#c98a1b}";

/// What a phase of a run is called, and its goodput in bit/s.
type Phase = (&'static str, f64);

/// Before the cut, during it, and after the heal; the second around each change is left out of the
/// neighbours, not of the curve.
fn phases(timeline: &Timeline) -> [Phase; 3] {
    let (cut, healed) = (timeline.mark_s("cut"), timeline.mark_s("healed"));
    let end = timeline.goodput.last().map_or(0.0, |(at_s, _)| *at_s);
    [
        ("both links", timeline.between_bps(1.0, cut)),
        ("one link cut", timeline.between_bps(cut + 0.5, healed)),
        ("healed", timeline.between_bps(healed + 1.0, end)),
    ]
}

/// The lowest tenth of a second within a second of the cut.
fn lowest_bps(timeline: &Timeline) -> f64 {
    let cut = timeline.mark_s("cut");
    let around = timeline
        .goodput
        .iter()
        .filter(|(at_s, _)| (cut..cut + 1.0).contains(at_s));
    around.map(|(_, bps)| *bps).fold(f64::INFINITY, f64::min)
}

fn rows(story: &Story) -> Vec<[String; 3]> {
    let mbps = |bps: f64| format!("{:.0} Mb/s", bps / 1e6);
    let factor = |bps: f64| format!("{:.2} ×", bps / story.single_bps);
    let mut rows = vec![[
        "iperf3, one bare link".into(),
        mbps(story.single_bps),
        factor(story.single_bps),
    ]];
    for (program, timeline) in [("iperf3", &story.stream), ("Open MPI", &story.mpi)] {
        for (phase, bps) in phases(timeline) {
            rows.push([
                format!("{program} over {}, {phase}", story.variant),
                mbps(bps),
                factor(bps),
            ]);
        }
        let lowest = lowest_bps(timeline);
        rows.push([
            format!("{program}, slowest 100 ms after the cut"),
            mbps(lowest),
            factor(lowest),
        ]);
    }
    if let Some(gap_ms) = story.mpi.gap_max_ms {
        rows.push([
            "Open MPI, longest wait for a 1 MB message".into(),
            format!("{gap_ms:.0} ms"),
            String::new(),
        ]);
    }
    if let Some(wrong) = story.mpi.wrong {
        rows.push([
            "Open MPI, wrong messages".into(),
            wrong.to_string(),
            String::new(),
        ]);
    }
    let slowest = story
        .crossings
        .first()
        .map_or(f64::NAN, |one| one.goodput_bps);
    for one in &story.crossings {
        rows.push([
            format!("4 MB across a WAN, after a collective, {}", one.name),
            mbps(one.goodput_bps),
            format!("({:.1} × CUBIC)", one.goodput_bps / slowest),
        ]);
    }
    let slowest_s = story.exchanges.first().map_or(f64::NAN, |one| one.median_s);
    for one in &story.exchanges {
        rows.push([
            format!("MPI_Alltoallv on a shallow switch, {}", one.by),
            format!("{:.1} ms", one.median_s * 1e3),
            format!("({:.1} ×)", slowest_s / one.median_s),
        ]);
        rows.push([
            "  segments that TCP sent again".into(),
            format!("{:.0}", one.sent_again),
            String::new(),
        ]);
    }
    rows
}

/// The table for the terminal.
pub fn table(story: &Story) -> String {
    let mut text = format!("\n{:<52}{:>14}{:>18}\n", "", "goodput", "of one bare link");
    for [what, value, factor] in rows(story) {
        let _ = writeln!(text, "{what:<52}{value:>14}{factor:>18}");
    }
    text.push('\n');
    text
}

/// The page.
pub fn page(story: &Story) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Kumihimo demo</title><style>{STYLE}</style></head><body>\n\
         <h1>Two links, one cut in the middle</h1>\n\
         <p>Two hosts (network namespaces on one machine), {} links of {}. The programs are unmodified; \
         they ran over <code>{}</code>. The second link was cut and healed while they ran.</p>\n<table>\n\
         <tr><th></th><th>goodput</th><th>of one bare link</th></tr>\n",
        story.rates_bps.len(),
        rate(story.rates_bps.first().copied().unwrap_or(0.0)),
        story.variant,
    );
    for row in rows(story) {
        let cells = row.map(|cell| format!("<td>{}</td>", escaped(&cell)));
        let _ = writeln!(html, "<tr>{}</tr>", cells.concat());
    }
    html.push_str("</table>\n");
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
            "<p>What each link sent, in Mb/s.</p>\n{}",
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
    let _ = writeln!(
        html,
        "<p>Dotted lines: what plain TCP could carry at most (1448 of 1538 bytes of every frame). A \
         red line is the moment of a change. This is one run on one machine; the figures to quote \
         are those of <code>kumi bench</code>.</p>\n</body></html>"
    );
    html
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
    for (one, class) in story.crossings.iter().zip(classes) {
        chart = chart.curve(one.name, class, one.series.clone());
    }
    chart.svg()
}

fn links(timeline: &Timeline) -> String {
    let count = timeline.links.first().map_or(0, |(_, bps)| bps.len());
    let end = timeline.goodput.last().map_or(0.0, |(at_s, _)| *at_s);
    let mut chart = Chart::default().marks(&timeline.marks);
    for link in 0..count {
        let within = timeline.links.iter().filter(|(at_s, _)| *at_s <= end);
        let points = within.map(|(at_s, bps)| (*at_s, bps[link])).collect();
        let class = if link % 2 == 0 { "link0" } else { "link1" };
        chart = chart.curve(&format!("eth{}", link + 1), class, points);
    }
    chart.svg()
}

fn rate(bps: f64) -> String {
    if bps.is_finite() {
        format!("{:.0} Mb/s", bps / 1e6)
    } else {
        "no set rate".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::variant::Variant;
    use crate::demo::coll::Exchange;
    use crate::demo::wan::Crossing;

    fn story() -> Story {
        let goodput = (1..=120).map(|bin| (f64::from(bin) * 0.1, 1.8e9)).collect();
        let links = (0..120)
            .map(|bin| (f64::from(bin) * 0.1, vec![9e8, 9e8]))
            .collect();
        let marks = vec![(4.0, "cut"), (8.0, "healed")];
        let timeline = Timeline {
            goodput,
            links,
            marks,
            gap_max_ms: Some(12.0),
            wrong: Some(0),
        };
        Story {
            variant: Variant::Kumi,
            rates_bps: vec![1e9, 1e9],
            single_bps: 9e8,
            stream: timeline.clone(),
            mpi: timeline,
            crossings: ["CUBIC", "kumi tcp"]
                .map(|name| Crossing {
                    name,
                    goodput_bps: 1e8,
                    series: vec![(0.005, 1e8), (0.01, 2e8)],
                })
                .to_vec(),
            exchanges: [("Open MPI", 0.02), ("by a plan", 0.01)]
                .map(|(by, median_s)| Exchange {
                    by,
                    median_s,
                    sent_again: 3.0,
                })
                .to_vec(),
        }
    }

    #[test]
    fn page__story__needs_no_network() {
        let html = page(&story());
        for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(outside), "the page refers to {outside}");
        }
        assert_eq!(html.matches("<svg").count(), 5);
        assert!(html.contains(">cut<") && html.contains(">healed<"));
    }

    #[test]
    fn table__story__gives_each_phase_against_one_link() {
        let text = table(&story());
        assert!(text.contains("iperf3 over kumi, one link cut"));
        assert!(text.contains("1800 Mb/s") && text.contains("2.00 ×"));
        assert!(text.contains("MPI_Alltoallv on a shallow switch, by a plan"));
        assert!(text.contains("10.0 ms") && text.contains("(2.0 ×)"));
    }
}
