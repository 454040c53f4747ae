//! Bursts after pauses: the cost of a restart, size by size.

use super::burst_ends::Bursts;
use super::{Context, Measurement};
use crate::ceiling::PLAIN_TCP;
use crate::counters::Counters;
use crate::hosts::PathFacts;
use crate::hosts::background::Background;
use crate::sample::Figures;

const PORT: &str = "5501";

/// Runs the bursts: each size with each pause.
pub fn measure(
    context: &Context<'_>,
    sizes_bytes: &[u64],
    pauses_ms: &[u64],
    before_bytes: Option<u64>,
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let hosts = running.hosts;
    let path = hosts.path()?;
    let kumi = hosts.kumi();
    let sink = running.wrapped(&[kumi, "workload", "burst-sink", PORT]);
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    let mut sink = Background::start(hosts, running.server(), &sink, seconds_max)?;
    sink.line()?;
    let pauses = if context.quick {
        &pauses_ms[..pauses_ms.len().min(3)]
    } else {
        pauses_ms
    };
    let pauses: Vec<String> = pauses.iter().map(u64::to_string).collect();
    let pauses = pauses.join(",");
    let before_bytes = before_bytes.map(|bytes| bytes.to_string());
    let mut rows = Vec::new();
    for size in sizes_bytes {
        let size = size.to_string();
        let mut source = vec![
            kumi,
            "workload",
            "burst-source",
            &running.server_address,
            PORT,
        ];
        source.extend(["--pauses-ms", &pauses]);
        if let Some(bytes) = &before_bytes {
            source.extend(["--before-bytes", bytes]);
        }
        source.push(&size);
        let before = Counters::read(hosts, running.client())?;
        let text = hosts.run(running.client(), &running.wrapped(&source))?;
        let after = Counters::read(hosts, running.client())?;
        let mut row = figures(&serde_json::from_str(&text)?, path);
        let timeouts = after.growth(&before, "TCPTimeouts");
        row.figures.insert("tcp_timeouts".into(), timeouts as f64);
        let spurious = after.growth(&before, "TCPSpuriousRTOs");
        let name = "tcp_spurious_timeouts".into();
        row.figures.insert(name, spurious as f64);
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the ideal time of a burst, in microseconds: its bytes at the bottleneck rate, plus one
/// round trip to the answer.
fn ideal_us(size_bytes: u64, path: PathFacts) -> f64 {
    (size_bytes as f64 * 8.0 / (path.bottleneck_bps * PLAIN_TCP) + path.round_trip_s) * 1e6
}

fn figures(bursts: &Bursts, path: PathFacts) -> Measurement {
    let mut times_us = bursts.times_us.clone();
    times_us.sort_by(f64::total_cmp);
    let time = |percent: usize| times_us[(times_us.len() * percent / 100).min(times_us.len() - 1)];
    let ideal_us = ideal_us(bursts.size_bytes, path);
    let figures = Figures::from([
        ("burst_median_us".into(), time(50)),
        ("burst_p99_us".into(), time(99)),
        ("burst_ideal_us".into(), ideal_us),
        ("burst_median_vs_ideal_ratio".into(), time(50) / ideal_us),
        ("burst_p99_vs_ideal_ratio".into(), time(99) / ideal_us),
        ("burst_first_us".into(), bursts.first_us),
        ("retransmits".into(), bursts.retransmits.into()),
        (
            "retransmits_after_pauses".into(),
            bursts.retransmits_after_pauses.into(),
        ),
        ("rounds".into(), times_us.len() as f64),
    ]);
    Measurement {
        size_bytes: Some(bursts.size_bytes),
        figures,
        series: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures__bursts__have_percentiles_and_the_ideal_of_the_path() {
        let bursts = Bursts {
            size_bytes: 1_000_000,
            times_us: vec![90e3, 40e3, 38e3],
            first_us: 150e3,
            retransmits: 7,
            retransmits_after_pauses: 2,
        };
        let path = PathFacts {
            bottleneck_bps: 500e6,
            round_trip_s: 0.02,
        };
        let figures = figures(&bursts, path).figures;
        assert_eq!(figures["burst_median_us"], 40e3);
        assert_eq!(figures["burst_p99_us"], 90e3);
        assert!((figures["burst_ideal_us"] - 36_994.0).abs() < 10.0);
    }
}
