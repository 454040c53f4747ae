//! Output of a run: a table for people, one JSON object for programs, and the result file with
//! every sample.

use super::interleave::Measurements;
use super::interval::median;
use super::manifest::Manifest;
use super::outcome::{Check, Op, Outcome};
use super::plan::Plan;
use super::sample::Sample;
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Version of the JSON object and of the result files.
const SCHEMA: u32 = 1;

/// Figures in the table, in this order: name, title and divisor. A column is shown if a row of the
/// case has the figure. `-j` prints all figures.
const COLUMNS: [(&str, &str, f64); 59] = [
    ("goodput_bps", "Mb/s", 1e6),
    ("unordered_goodput_bps", "unord. Mb/s", 1e6),
    ("ordered_goodput_bps", "ord. Mb/s", 1e6),
    ("synchronous_goodput_bps", "sync. Mb/s", 1e6),
    ("unordered_p99_us", "unord. p99 us", 1.0),
    ("ordered_p99_us", "ord. p99 us", 1.0),
    ("put_median_us", "put us", 1.0),
    ("get_median_us", "get us", 1.0),
    ("fetch_add_median_us", "atomic us", 1.0),
    ("alltoall_median_us", "all-to-all us", 1.0),
    ("echo_median_us", "echo us", 1.0),
    ("echo_mean_us", "echo mean us", 1.0),
    ("faults", "faults", 1.0),
    ("messages_per_node", "sent/node", 1.0),
    ("pages_per_node", "pages/node", 1.0),
    ("moved_bytes", "moved MB", 1e6),
    ("pages_vs_diffs_ratio", "pages/diffs", 1.0),
    ("miss_median_us", "miss us", 1.0),
    ("miss_p99_us", "p99 us", 1.0),
    ("barrier_median_us", "barrier us", 1.0),
    ("forbidden", "forbidden", 1.0),
    ("telling_ratio", "telling %", 0.01),
    ("silent", "silent", 1.0),
    ("error_after_ms", "error ms", 1.0),
    ("recovered_after_ms", "recovered ms", 1.0),
    ("write_median_us", "write us", 1.0),
    ("release_us_per_page", "release us/page", 1.0),
    ("overhead_bytes_per_page", "B/page over", 1.0),
    ("half_round_trip_median_us", "half RTT us", 1.0),
    ("half_round_trip_p99_us", "p99 us", 1.0),
    ("half_round_trip_mean_us", "half mean us", 1.0),
    ("burst_median_us", "burst ms", 1e3),
    ("burst_p99_us", "p99 ms", 1e3),
    ("burst_ideal_us", "ideal ms", 1e3),
    ("retransmits_after_pauses", "re. paused", 1.0),
    ("median_us", "median ms", 1e3),
    ("max_us", "worst ms", 1e3),
    ("efficiency_ratio", "of ideal", 1.0),
    ("goodput_first_2rtt_bps", "2 RTT Mb/s", 1e6),
    ("lost_s", "lost s", 1.0),
    ("right_cause_ratio", "right cause", 1.0),
    ("communication_s", "comm. s", 1.0),
    ("total_s", "total s", 1.0),
    ("neighbour_bps", "neighbour Mb/s", 1e6),
    ("retransmits", "retrans", 1.0),
    ("tcp_timeouts", "timeouts", 1.0),
    ("silence_max_ms", "silence ms", 1.0),
    ("out_of_order_ratio", "ooo %", 0.01),
    ("lost_ratio", "lost %", 0.01),
    ("unread_ratio", "unread %", 0.01),
    ("dropped_ratio", "dropped %", 0.01),
    ("cpu_ns_per_byte", "ns/byte", 1.0),
    ("gap_cut_ms", "gap ms", 1.0),
    ("detected_cut_ms", "detect ms", 1.0),
    ("state_changes", "changes", 1.0),
    ("gain_ratio", "gain", 1.0),
    ("queue_bytes", "queue KB", 1e3),
    ("rounds", "rounds", 1.0),
    (SPREAD, "spread %", 0.01),
];

/// Name of the figure for the spread of a row's repetitions.
const SPREAD: &str = "spread_ratio";

/// Returns one row per case, variant and size, with the median of each figure over the repetitions.
pub fn rows(samples: &[Sample]) -> Vec<Map<String, Value>> {
    type Key<'a> = (&'a str, super::variant::Variant, Option<u64>);
    let mut order: Vec<Key<'_>> = Vec::new();
    let mut groups: BTreeMap<Key<'_>, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let key = (sample.case.as_str(), sample.variant, sample.size_bytes);
        if !groups.contains_key(&key) {
            order.push(key);
        }
        groups.entry(key).or_default().push(sample);
    }
    order.into_iter().map(|key| row(&groups[&key])).collect()
}

fn row(group: &[&Sample]) -> Map<String, Value> {
    let first = group[0];
    let mut row = Map::new();
    row.insert("case".into(), json!(first.case));
    row.insert("variant".into(), json!(first.variant));
    if let Some(size) = first.size_bytes {
        row.insert("size_bytes".into(), json!(size));
    }
    row.insert("samples".into(), json!(group.len()));
    for name in first.figures.keys() {
        let values: Vec<f64> = group
            .iter()
            .filter_map(|sample| sample.figures.get(name).copied())
            .collect();
        row.insert(name.clone(), json!(median(&values)));
    }
    if let Some(spread) = spread(group) {
        row.insert(SPREAD.into(), json!(spread));
    }
    row
}

/// Returns the range of a figure over the row's repetitions, divided by the median. The figure is
/// the first of [`COLUMNS`] that the row has. `None` for a single repetition.
fn spread(group: &[&Sample]) -> Option<f64> {
    let (name, ..) = COLUMNS
        .iter()
        .find(|(name, ..)| group[0].figures.contains_key(*name))?;
    let figure = |sample: &&Sample| sample.figures.get(*name).copied();
    let values: Vec<f64> = group.iter().filter_map(figure).collect();
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (values.len() > 1).then(|| (max - min) / median(&values))
}

/// Returns the object that `-j` prints.
pub fn json(plan: &Plan, manifest: &Manifest, outcome: &Outcome, run: &Measurements) -> Value {
    json!({
        "schema": SCHEMA,
        "plan": plan.name,
        "manifest": manifest,
        "rows": outcome.rows,
        "checks": outcome.checks,
        "void": outcome.void,
        "repeated": run.repeated,
        "failed": run.failed,
    })
}

/// Writes `PLAN.ndjson` in `folder`: first the object, then every sample on its own line. Returns
/// the path of the file.
pub fn write(
    folder: &Path,
    plan: &Plan,
    object: &Value,
    samples: &[Sample],
) -> anyhow::Result<PathBuf> {
    let mut text = format!("{object}\n");
    for sample in samples {
        writeln!(text, "{}", serde_json::to_string(sample)?)?;
    }
    let file = folder.join(format!("{}.ndjson", plan.name));
    std::fs::write(&file, text).with_context(|| {
        let file = file.display();
        format!("cannot write {file}; remove it, or name another folder with --results")
    })?;
    Ok(file)
}

/// Formats the table for people.
pub fn table(plan: &Plan, outcome: &Outcome, run: &Measurements) -> String {
    let mut text = format!("{}: {}\n", plan.name, plan.shows);
    if let Some(paper) = &plan.paper {
        let _ = writeln!(text, "reproduces: {paper}");
    }
    let mut case = "";
    // The lab's own checks have neither cases nor variants. They were printed during the check.
    for row in outcome.rows.iter().filter(|row| row.contains_key("case")) {
        let row_case = text_of(row, "case");
        if case != row_case {
            case = row_case;
            let _ = writeln!(text, "\n{case}{}", ceiling_text(row));
            let _ = writeln!(text, "{}", head(&outcome.rows, case));
        }
        let _ = writeln!(text, "{}", line(&outcome.rows, row));
    }
    text.push('\n');
    for check in &outcome.checks {
        let _ = writeln!(text, "{}", check_line(check));
    }
    for reason in &outcome.void {
        let _ = writeln!(text, "void: {reason}");
    }
    if !run.repeated.is_empty() {
        let _ = writeln!(text, "{} late runs were repeated", run.repeated.len());
    }
    for failure in &run.failed {
        let _ = writeln!(text, "did not run: {failure}");
    }
    let met_count = outcome.checks.iter().filter(|check| check.pass).count();
    let _ = writeln!(text, "{met_count} of {} targets met", outcome.checks.len());
    text
}

/// Formats a row's ceiling of plain TCP. Empty if the row has none.
fn ceiling_text(row: &Map<String, Value>) -> String {
    let plain = row.get("ceiling_plain_bps").and_then(Value::as_f64);
    plain.map_or(String::new(), |bps| {
        format!(
            "  (plain TCP's ceiling on this row's links: {:.0} Mb/s)",
            bps / 1e6
        )
    })
}

fn text_of<'a>(row: &'a Map<String, Value>, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn columns<'a>(
    rows: &'a [Map<String, Value>],
    case: &'a str,
) -> impl Iterator<Item = &'static (&'static str, &'static str, f64)> + 'a {
    COLUMNS.iter().filter(move |(name, _, _)| {
        rows.iter()
            .any(|row| text_of(row, "case") == case && row.contains_key(*name))
    })
}

fn head(rows: &[Map<String, Value>], case: &str) -> String {
    let mut text = format!("  {:<16}{:>10}", "variant", "bytes");
    for (_, title, _) in columns(rows, case) {
        let _ = write!(text, "{title:>14}");
    }
    text
}

fn line(rows: &[Map<String, Value>], row: &Map<String, Value>) -> String {
    let size = row
        .get("size_bytes")
        .map_or(String::new(), Value::to_string);
    let mut text = format!("  {:<16}{size:>10}", text_of(row, "variant"));
    for (name, _, unit) in columns(rows, text_of(row, "case")) {
        match row.get(*name).and_then(Value::as_f64) {
            Some(value) => {
                let _ = write!(text, "{:>14}", round(value / unit));
            }
            None => text.push_str("            –"),
        }
    }
    text
}

/// Formats a value with 3 decimals below 10, 1 decimal below 1000, and none above. An integer has
/// no decimals.
fn round(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 && small.fract() != 0.0 => format!("{value:.3}"),
        middle if middle < 1000.0 && middle.fract() != 0.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn check_line(check: &Check) -> String {
    let verdict = if check.pass { "met   " } else { "MISSED" };
    let op = match check.op {
        Op::AtLeast => ">=",
        Op::AtMost => "<=",
        Op::Equal => "==",
    };
    let value = if check.value.is_nan() {
        "unmeasured".into()
    } else {
        round(check.value)
    };
    format!(
        "{verdict} {:<44} {value:>10}  {op} {}",
        check.name, check.target
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Figures;
    use crate::variant::Variant;

    fn sample(variant: Variant, repetition: u32, goodput_bps: f64) -> Sample {
        Sample {
            case: "tcp".into(),
            variant,
            size_bytes: None,
            repetition,
            figures: Figures::from([("goodput_bps".into(), goodput_bps)]),
            series: None,
        }
    }

    #[test]
    fn rows__repetitions__become_their_median() {
        let samples = [
            sample(Variant::Kumi, 0, 1.0),
            sample(Variant::Single, 0, 7.0),
            sample(Variant::Kumi, 1, 3.0),
        ];
        let rows = rows(&samples);
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (&rows[0]["variant"], &rows[0]["goodput_bps"]),
            (&json!("kumi"), &json!(2.0))
        );
        assert_eq!(rows[0]["samples"], json!(2));
        // The range is from 1 to 3, and the median is 2. One repetition has no spread.
        assert_eq!(rows[0]["spread_ratio"], json!(1.0));
        assert!(!rows[1].contains_key("spread_ratio"));
    }

    #[test]
    fn table__fidelity_plan_without_cases__shows_its_checks() {
        let text = r#"
            name = "lab"
            shows = "something"
            fidelity = true
        "#;
        let plan = Plan::parse("lab.toml", text).expect("is sound");
        let row = json!({"figure": "rate", "error": 0.001});
        let outcome = Outcome {
            rows: vec![row.as_object().expect("is one").clone()],
            checks: vec![Check::new("rate_error", 0.001, Op::AtMost, 0.01)],
            void: Vec::new(),
        };
        let text = table(&plan, &outcome, &Measurements::default());
        assert!(text.contains("met    rate_error"), "{text}");
    }

    #[test]
    fn write__result_file_that_is_a_folder__is_refused_with_its_path() {
        let folder = format!("kumi-bench-report-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let file = folder.join("p.ndjson");
        std::fs::create_dir_all(&file).unwrap();
        let plan = "name = \"p\"\nshows = \"something\"\nfidelity = true";
        let plan = Plan::parse("p.toml", plan).expect("is sound");
        let error = write(&folder, &plan, &json!({}), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot write {}; remove it, or name another folder with --results",
                file.display()
            )
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn check_line__missed_or_unmeasured_target__is_marked() {
        let check = Check::new("goodput_vs_ceiling", 0.9, Op::AtLeast, 0.97);
        assert!(check_line(&check).starts_with("MISSED goodput_vs_ceiling"));
        let unmeasured = Check::new("x", f64::NAN, Op::AtMost, 1.0);
        assert!(check_line(&unmeasured).contains("unmeasured"));
    }

    #[test]
    fn shown__value__is_rounded_by_its_size() {
        assert_eq!(
            [round(0.97512), round(123.45), round(1897.4), round(3.0)],
            ["0.975", "123.5", "1897", "3"]
        );
    }
}
