//! Wind with checked messages, many senders, many peers, and many targets.

use super::wind::{PORT, measurement, options};
use super::{Context, Measurement};
use crate::hosts::COMMAND_SECONDS_MAX;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::{Running, Variant};
use anyhow::Context as _;
use serde::Deserialize;

/// Time for one message size of the goodput beside idle peers, in milliseconds.
const GOODPUT_MS: &str = "1000";

/// Delivery classes of checked messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Classes {
    /// Each message after all earlier ones.
    Ordered,
    /// Each message when it is complete.
    Unordered,
    /// All three classes at random.
    Mixed,
}

impl Classes {
    fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Unordered => "unordered",
            Self::Mixed => "mixed",
        }
    }
}

/// Checked messages.
#[derive(Debug, Clone, Copy)]
pub struct Checked {
    /// Delivery classes.
    pub classes: Classes,
    /// Longest message, in bytes.
    pub bytes: u64,
    /// Number of messages.
    pub count: u64,
    /// Messages per second.
    pub per_s: Option<u32>,
    /// With puts and additions.
    pub operations: bool,
}

fn start<'a>(running: &'a Running<'a>, host: &str, argv: &[&str]) -> anyhow::Result<Background> {
    let mut program = Background::start(running.hosts, host, argv, COMMAND_SECONDS_MAX)?;
    program.line()?;
    Ok(program)
}

/// Runs the checked messages.
pub fn measure_checked(context: &Context<'_>, traffic: Checked) -> anyhow::Result<Measurement> {
    let running = context.running;
    let kumi = running.hosts.kumi();
    let (bytes, count) = (traffic.bytes.to_string(), traffic.count.to_string());
    let per_s = traffic.per_s.map(|per_s| per_s.to_string());
    if running.variant == Variant::Cubic {
        let sink = start(
            running,
            running.server(),
            &[kumi, "workload", "raw-stamp-sink", PORT],
        )?;
        let per_s = per_s.as_deref().unwrap_or("0");
        let source = [
            kumi,
            "workload",
            "raw-stamp-source",
            &running.server_address,
            PORT,
            per_s,
            &bytes,
            &count,
        ];
        running.hosts.run(running.client(), &source)?;
        return measurement(sink.finish()?.trim());
    }
    let options = options(running)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut sink = vec![kumi, "workload", "wind-check-sink", PORT];
    sink.extend(&options);
    if running.variant == Variant::WindKernel {
        sink.push("--kernel");
    }
    let sink = start(running, running.server(), &sink)?;
    let mut source = vec![
        kumi,
        "workload",
        "wind-check-source",
        &running.server_address,
        PORT,
    ];
    source.extend(&options);
    source.extend(["--classes", traffic.classes.name()]);
    if let Some(per_s) = &per_s {
        source.extend(["--per-s", per_s]);
    }
    if traffic.operations {
        source.push("--operations");
    }
    source.extend([bytes.as_str(), &count]);
    let sent = running.hosts.run(running.client(), &source)?;
    let mut found = measurement(sink.finish()?.trim())?;
    found.figures.extend(measurement(sent.trim())?.figures);
    let figures = &mut found.figures;
    let figure = |figures: &Figures, name: &str| figures.get(name).copied().unwrap_or_default();
    // The counter of the target counts each addition once.
    let missing = (figure(figures, "additions") - figure(figures, "counter")).abs();
    let faults = [
        "lost",
        "duplicates",
        "violations",
        "damaged",
        "wrong_results",
    ];
    let faults: f64 = faults.iter().map(|name| figure(figures, name)).sum();
    let limit_us = 3.0 * figure(figures, "rtt_min_us") + 1_000.0;
    figures.insert("faults".into(), faults + missing);
    for class in ["ordered", "unordered"] {
        if let Some(p99_us) = figures.get(&format!("{class}_p99_us")).copied() {
            let name = format!("{class}_p99_of_three_round_trips_and_1_ms_ratio");
            figures.insert(name, p99_us / limit_us);
        }
    }
    Ok(found)
}

/// All other hosts send to the second one.
pub fn measure_incast(
    context: &Context<'_>,
    bytes: u64,
    seconds: u32,
) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let is_tcp = running.variant == Variant::Cubic;
    let options = if is_tcp {
        Vec::new()
    } else {
        options(running)?
    };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut serve = vec![
        kumi,
        "workload",
        if is_tcp { "raw-sink" } else { "wind-serve" },
        PORT,
    ];
    serve.extend(&options);
    let _server = start(running, running.server(), &serve)?;
    let (time_ms, bytes) = ((seconds * 1000).to_string(), bytes.to_string());
    let drops_before = hosts.port_drops();
    let mut senders = Vec::new();
    let others = hosts
        .names()
        .iter()
        .filter(|name| *name != running.server());
    for host in others {
        let verb = if is_tcp { "raw-source" } else { "wind-goodput" };
        let mut argv = vec![kumi, "workload", verb, &running.server_address, PORT];
        argv.extend(&options);
        if !is_tcp {
            argv.extend(["--only", "unordered"]);
        }
        argv.extend([time_ms.as_str(), &bytes]);
        senders.push(Background::start(hosts, host, &argv, COMMAND_SECONDS_MAX)?);
    }
    let mut figures = Figures::new();
    let mut total = 0.0;
    for sender in senders {
        let row = measurement(sender.finish()?.trim())?;
        for (name, value) in row.figures {
            match name.as_str() {
                "ordered_goodput_bps" | "unordered_goodput_bps" => total += value,
                "packets" | "packets_lost" | "timeouts" => {
                    *figures.entry(name).or_default() += value;
                }
                _ => {}
            }
        }
    }
    figures.insert("goodput_bps".into(), total);
    let packets = figures.get("packets").copied().unwrap_or_default();
    if let Some(lost) = figures.get("packets_lost").copied() {
        figures.insert("lost_ratio".into(), lost / packets.max(1.0));
    }
    if let (Some(before), Some(after)) = (drops_before, hosts.port_drops()) {
        let drops = (after - before) as f64;
        // A frame of TCP has 1448 bytes of the stream.
        let frames = match is_tcp {
            true => total / 8.0 * f64::from(seconds) / 1448.0,
            false => packets,
        };
        figures.insert("port_drops".into(), drops);
        figures.insert("dropped_ratio".into(), drops / frames.max(1.0));
    }
    Ok(Measurement {
        size_bytes: None,
        figures,
        series: None,
    })
}

/// The goodput of one peer, alone and beside idle ones, and the memory of these at the second host.
pub fn measure_peers(context: &Context<'_>, peers: u64) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let options = options(running)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut serve = vec![kumi, "workload", "wind-serve", PORT, "--prints-memory"];
    serve.extend(&options);
    let mut server = start(running, running.server(), &serve)?;
    let mut ask = vec![
        kumi,
        "workload",
        "wind-goodput",
        &running.server_address,
        PORT,
    ];
    ask.extend(&options);
    ask.extend(["--only", "unordered", GOODPUT_MS, "4096"]);
    let goodput = || -> anyhow::Result<f64> {
        let row = measurement(hosts.run(running.client(), &ask)?.trim())?;
        let rate = row.figures.get("unordered_goodput_bps").copied();
        rate.context("no goodput")
    };
    let alone = goodput()?;
    let mut memory = || -> anyhow::Result<f64> {
        let line = server.line()?;
        line.parse()
            .with_context(|| format!("`{line}` is no memory"))
    };
    // One line for each second; the latest one counts.
    let before = memory()?;
    let count = peers.to_string();
    let mut idle = vec![kumi, "workload", "wind-idle", &running.server_address, PORT];
    idle.extend(&options);
    idle.push(&count);
    let _idle = start(running, running.client(), &idle)?;
    std::thread::sleep(std::time::Duration::from_secs(3));
    let beside = goodput()?;
    let mut after = before;
    for _ in 0..4 {
        after = memory()?.max(after);
    }
    let figures = Figures::from([
        ("goodput_bps".into(), beside),
        ("goodput_vs_alone_ratio".into(), beside / alone),
        ("idle_peers_bytes".into(), after - before),
    ]);
    Ok(Measurement {
        size_bytes: None,
        figures,
        series: None,
    })
}

/// One put to all other hosts, or the first `targets` of them, by each way.
pub fn measure_multicast(
    context: &Context<'_>,
    bytes: u64,
    targets: usize,
) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let options = options(running)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut serve = vec![kumi, "workload", "wind-serve", PORT];
    serve.extend(&options);
    let (mut servers, mut addresses) = (Vec::new(), Vec::new());
    let others = hosts
        .names()
        .iter()
        .filter(|name| *name != running.client());
    for host in others.take(targets) {
        servers.push(start(running, host, &serve)?);
        addresses.push(hosts.address(host, &running.device)?);
    }
    let bytes = bytes.to_string();
    let mut argv = vec![kumi, "workload", "wind-spread", PORT];
    argv.extend(&options);
    argv.push(&bytes);
    argv.extend(addresses.iter().map(String::as_str));
    let mut found = measurement(hosts.run(running.client(), &argv)?.trim())?;
    let one = found.figures.get("one_copy_bps").copied();
    let one = one.context("no rate of one copy")?;
    for (rate, ratio) in [
        ("goodput_bps", "rate_vs_one_copy_ratio"),
        ("relay_bps", "relay_vs_one_copy_ratio"),
        ("network_bps", "network_vs_one_copy_ratio"),
    ] {
        if let Some(rate) = found.figures.get(rate).copied() {
            found.figures.insert(ratio.into(), rate / one);
        }
    }
    Ok(found)
}
