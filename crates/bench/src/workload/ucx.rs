//! UCX over TCP: times by its own program, `ucx_perftest`.

use super::listener::wait_for_listener;
use super::processors::bound;
use super::{Context, Measurement};
use crate::hosts::COMMAND_SECONDS_MAX;
use crate::hosts::background::Background;
use crate::sample::Figures;
use anyhow::Context as _;

/// Port of the target.
const PORT: &str = "5411";

/// Exchanges of each test.
const COUNT: &str = "5000";

/// Tests: the name, the figure, and the one-way times of an exchange in what the program prints. A
/// get over TCP takes a millisecond there, so its figure would say nothing.
const TESTS: [(&str, &str, f64); 3] = [
    ("ucp_put_lat", "put_median_us", 2.0),
    ("ucp_fadd", "fetch_add_median_us", 1.0),
    ("tag_lat", "echo_median_us", 2.0),
];

/// Measures each exchange, size by size.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measurement>> {
    let sizes = sizes_bytes.iter();
    sizes
        .map(|bytes| {
            let figures = TESTS.into_iter().map(|(test, figure, ways)| {
                let one_us = median_us(context, test, *bytes)?;
                Ok((figure.to_owned(), ways * one_us))
            });
            Ok(Measurement {
                size_bytes: Some(*bytes),
                figures: figures.collect::<anyhow::Result<Figures>>()?,
                series: None,
            })
        })
        .collect()
}

/// Runs a test. Returns the median that it prints, in µs.
fn median_us(context: &Context<'_>, test: &str, bytes: u64) -> anyhow::Result<f64> {
    let running = context.running;
    let hosts = running.hosts;
    // An atomic operation has a word.
    let bytes = if test == "ucp_fadd" { 8 } else { bytes }.to_string();
    let device = format!("UCX_NET_DEVICES={}", running.device);
    let common = ["env", "UCX_TLS=tcp", &device, "ucx_perftest", "-p", PORT];
    let script = [
        &["sh", "-c", "echo ready; exec \"$@\" 2>&1", "sh"],
        &common[..],
    ]
    .concat();
    let serve = bound(hosts, 1, &script);
    let mut server = Background::start(hosts, running.server(), &serve, COMMAND_SECONDS_MAX)?;
    server.line()?;
    let options = [
        "-t", test, "-s", &bytes, "-n", COUNT, "-w", "500", "-f", "-v",
    ];
    let address = running.server_address.as_str();
    let ask = [&common[..], &[address], &options].concat();
    wait_for_listener(context, "ucx_perftest", PORT, "ucx-utils")?;
    let text = hosts.run(running.client(), &bound(hosts, 0, &ask))?;
    server.finish()?;
    let last = text.trim().lines().last().unwrap_or_default();
    let median = last.split(',').nth(1).and_then(|field| field.parse().ok());
    median.with_context(|| format!("ucx_perftest printed no times: {text}"))
}
