//! Runs a program over the links while one of them is cut and healed.

use crate::hosts::background::Background;
use crate::hosts::lab::Lab;
use crate::variant::{CONGESTION_CONTROL, Running, Variant};
use crate::workload::flow_ends::unix_ns;
use crate::workload::link_bytes::Reading;
use crate::workload::mpi;
use crate::workload::mpi_programs::{self, MpiProgram};
use crate::workload::{Context, Measurement};
use anyhow::Context as _;
use kumi_command::errln;
use kumi_lab::topology::LinkChange;
use serde_json::Value;
use std::time::{Duration, Instant};

const IPERF3_PORT: &str = "5201";

/// Size of the MPI program's messages, in bytes: large enough to fill the links.
const MPI_MESSAGE_BYTES: &str = "1048576";

/// A change of a link during the run.
#[derive(Debug, Clone)]
pub struct Act {
    /// Text of the mark in the chart.
    pub name: &'static str,
    /// Time of the change, in seconds after the program's start.
    pub at_s: f64,
    link: &'static str,
    change: LinkChange,
}

impl Act {
    /// Returns an act that pulls the cable.
    pub fn cut(link: &'static str, at_s: f64) -> Self {
        Self {
            name: "cut",
            at_s,
            link,
            change: LinkChange::carrier(false),
        }
    }

    /// Returns an act that plugs the cable in again.
    pub fn heal(link: &'static str, at_s: f64) -> Self {
        Self {
            name: "healed",
            at_s,
            link,
            change: LinkChange::carrier(true),
        }
    }
}

/// Goodput of a program over time. Times count from its first byte.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// End of each bin, and the goodput in it: `(s, bit/s)`.
    pub goodput: Vec<(f64, f64)>,
    /// Rate that each link sent: `(s, [bit/s])`.
    pub links: Vec<(f64, Vec<f64>)>,
    /// Time at which each act was complete, in seconds, and its name.
    pub marks: Vec<(f64, &'static str)>,
    /// Longest time between two messages, in milliseconds, if the program reports it.
    pub gap_max_ms: Option<f64>,
    /// Number of messages with wrong contents, if the program checks.
    pub wrong_messages: Option<u64>,
}

impl Timeline {
    /// Returns the mean goodput from `from_s` to `to_s`, in bit/s.
    pub fn between_bps(&self, from_s: f64, to_s: f64) -> f64 {
        let bins: Vec<f64> = self
            .goodput
            .iter()
            .filter(|(time_s, _)| *time_s > from_s + 1e-6 && *time_s <= to_s + 1e-6)
            .map(|(_, bps)| *bps)
            .collect();
        bins.iter().sum::<f64>() / bins.len().max(1) as f64
    }

    /// Returns the time at which the act `name` was complete, or the end of the curve, in seconds.
    pub fn mark_s(&self, name: &str) -> f64 {
        self.marks
            .iter()
            .find(|(_, mark)| *mark == name)
            .map_or(self.end_s(), |(time_s, _)| *time_s)
    }

    /// Returns the end of the last bin, in seconds.
    pub fn end_s(&self) -> f64 {
        self.goodput.last().map_or(0.0, |(time_s, _)| *time_s)
    }

    /// Returns whether bytes arrived in the last second, and no message had wrong contents.
    pub fn has_survived(&self) -> bool {
        let end_s = self.end_s();
        self.between_bps(end_s - 1.0, end_s) > 0.0 && self.wrong_messages.unwrap_or(0) == 0
    }
}

/// Runs iperf3 for `seconds`, and performs the acts in that time.
pub fn iperf3(running: &Running<'_>, seconds: u32, acts: &[Act]) -> anyhow::Result<Timeline> {
    let hosts = running.hosts;
    let server = ["iperf3", "-s", "-1", "-p", IPERF3_PORT, "--forceflush"];
    let server = running.wrapped(&server);
    let mut server = Background::start(hosts, running.server(), &server, seconds + 20)?;
    while !server.line()?.contains("listening") {}
    let links = start_link_counter(running, seconds)?;
    let length = seconds.to_string();
    let mut client = vec![
        "iperf3",
        "-J",
        "-c",
        &running.server_address,
        "-p",
        IPERF3_PORT,
    ];
    client.extend(["-t", &length, "-i", "0.1", "-C", CONGESTION_CONTROL]);
    let first_ns = unix_ns();
    let client = Background::start(
        hosts,
        running.client(),
        &running.wrapped(&client),
        seconds + 20,
    )?;
    let marks = perform(running, acts)?;
    let report: Value = serde_json::from_str(&client.finish().context("iperf3")?)?;
    let goodput = report["intervals"]
        .as_array()
        .context("iperf3 printed no intervals")?
        .iter()
        .filter_map(|interval| {
            let sum = &interval["sum"];
            Some((sum["end"].as_f64()?, sum["bits_per_second"].as_f64()?))
        })
        .collect();
    timeline(goodput, links, marks, first_ns)
}

/// Runs the MPI program for `seconds`, and performs the acts in that time.
pub fn mpi(running: &Running<'_>, seconds: u32, acts: &[Act]) -> anyhow::Result<Timeline> {
    let args = [seconds.to_string(), MPI_MESSAGE_BYTES.to_string()];
    let argv = mpi::mpirun(running, &mpi::STREAM, &args)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let links = start_link_counter(running, seconds)?;
    let mut program = Background::start(running.hosts, running.client(), &argv, seconds + 30)?;
    // mpirun collects the ranks' output. The first line is printed with the first message.
    let first: Value = serde_json::from_str(&program.line()?)?;
    let first_ns = first["first_unix_ns"]
        .as_u64()
        .context("the program did not print the time of its first message")?;
    let marks = perform(running, acts)?;
    let text = program.finish().context("the MPI program")?;
    let lines: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let goodput = lines
        .iter()
        .filter_map(|line| Some((line["at_s"].as_f64()?, line["bytes"].as_f64()? * 8.0 / 0.1)))
        .collect();
    let mut timeline = timeline(goodput, links, marks, first_ns)?;
    let last = lines.last().context("the MPI program printed nothing")?;
    timeline.gap_max_ms = last["gap_max_ms"].as_f64();
    timeline.wrong_messages = last["wrong"].as_u64();
    Ok(timeline)
}

/// Returns the first row that a program of `bench/workloads/` measures on a lab's hosts under a
/// variant.
pub fn measure_program(
    lab: &Lab,
    variant: Variant,
    program: MpiProgram,
    args: &[String],
) -> anyhow::Result<Measurement> {
    let running = Running::start(lab, variant)?;
    let context = Context {
        running: &running,
        events: &[],
        windows: &[],
        quick: false,
    };
    let rows = mpi_programs::measure(&context, program, args)?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// Starts to count the bytes that each link sends.
fn start_link_counter(running: &Running<'_>, seconds: u32) -> anyhow::Result<Background> {
    let devices = running.hosts.devices(running.client());
    let length = (seconds + 1).to_string();
    let mut argv = vec![running.hosts.kumi(), "workload", "link-bytes", &length];
    argv.extend(devices.iter().map(String::as_str));
    Background::start(running.hosts, running.client(), &argv, seconds + 20)
}

fn perform(running: &Running<'_>, acts: &[Act]) -> anyhow::Result<Vec<(u64, &'static str)>> {
    let start = Instant::now();
    let mut marks = Vec::new();
    for act in acts {
        let due = start + Duration::from_secs_f64(act.at_s);
        kumi_command::interrupt::sleep(due.saturating_duration_since(Instant::now()))?;
        let change_start = Instant::now();
        running.hosts.change(act.link, &act.change)?;
        marks.push((unix_ns(), act.name));
        errln!(
            "      {} {} at {:.1} s; the change took {:.0} ms",
            act.link,
            act.name,
            (change_start - start).as_secs_f64(),
            change_start.elapsed().as_secs_f64() * 1e3
        );
    }
    Ok(marks)
}

fn timeline(
    goodput: Vec<(f64, f64)>,
    links: Background,
    marks: Vec<(u64, &'static str)>,
    first_ns: u64,
) -> anyhow::Result<Timeline> {
    let elapsed_s = |unix_ns: u64| (unix_ns as f64 - first_ns as f64) / 1e9;
    let readings: Vec<Reading> = links
        .finish()
        .context("counting the links' bytes")?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let rates = |pair: &[Reading]| {
        let (before, after) = (&pair[0], &pair[1]);
        let time_s = (after.unix_ns - before.unix_ns) as f64 / 1e9;
        let sent = after.sent_bytes.iter().zip(&before.sent_bytes);
        let bps = sent
            .map(|(new, old)| new.saturating_sub(*old) as f64 * 8.0 / time_s)
            .collect();
        (elapsed_s(after.unix_ns), bps)
    };
    Ok(Timeline {
        goodput,
        links: readings.windows(2).map(rates).collect(),
        marks: marks
            .into_iter()
            .map(|(unix_ns, name)| (elapsed_s(unix_ns), name))
            .collect(),
        ..Timeline::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(bps: f64, bins: usize) -> Timeline {
        let goodput = (1..=bins).map(|bin| (bin as f64 * 0.1, bps)).collect();
        Timeline {
            goodput,
            ..Timeline::default()
        }
    }

    #[test]
    fn between__steady_rate__is_that_rate() {
        assert!((steady(5.0, 40).between_bps(1.0, 2.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn survived__silent_end_or_wrong_message__is_false() {
        let mut timeline = steady(5.0, 40);
        assert!(timeline.has_survived());
        timeline.wrong_messages = Some(1);
        assert!(!timeline.has_survived());
        let mut silent = steady(5.0, 40);
        silent
            .goodput
            .iter_mut()
            .skip(29)
            .for_each(|bin| bin.1 = 0.0);
        assert!(!silent.has_survived());
    }
}
