//! Messages back and forth over a TCP socket, size by size.

use super::pingpong_ends::RoundTrips;
use super::{Context, Measurement};
use crate::hosts::background::Background;
use crate::sample::Figures;

const PORT: &str = "5401";

/// Time for each size, in milliseconds.
const TIME_MS: u64 = 400;

/// Time for each size with `--quick`, in milliseconds.
const TIME_QUICK_MS: u64 = 100;

/// Runs the ping-pong.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let kumi = running.hosts.kumi();
    let time_ms = if context.quick {
        TIME_QUICK_MS
    } else {
        TIME_MS
    }
    .to_string();
    let pong = running.wrapped(&[kumi, "workload", "pong", PORT]);
    let mut pong = Background::start(
        running.hosts,
        running.server(),
        &pong,
        crate::hosts::COMMAND_SECONDS_MAX,
    )?;
    pong.line()?;
    let mut ping = vec![
        kumi,
        "workload",
        "ping",
        &running.server_address,
        PORT,
        &time_ms,
    ];
    let sizes: Vec<String> = sizes_bytes.iter().map(u64::to_string).collect();
    ping.extend(sizes.iter().map(String::as_str));
    let text = running
        .hosts
        .run(running.client(), &running.wrapped(&ping))?;
    text.lines()
        .map(|line| Ok(measurement(&serde_json::from_str(line)?)))
        .collect()
}

/// Returns a size's figures. The goodput is that of the RI2N/DRV paper (§6.2): message size divided
/// by half the round-trip time.
pub fn measurement(trips: &RoundTrips) -> Measurement {
    let half_s = trips.half_round_trip_median_us / 1e6;
    let figures = Figures::from([
        (
            "half_round_trip_median_us".into(),
            trips.half_round_trip_median_us,
        ),
        (
            "half_round_trip_p99_us".into(),
            trips.half_round_trip_p99_us,
        ),
        ("goodput_bps".into(), trips.size_bytes as f64 * 8.0 / half_s),
        ("rounds".into(), trips.rounds as f64),
    ]);
    Measurement {
        size_bytes: Some(trips.size_bytes),
        figures,
        series: None,
    }
}
