//! MPI programs of the papers, with a rank on every host and an unmodified MPI library.

use super::coll_bound;
use super::mpi::{Program, mpirun_on};
use super::nas;
use super::{Context, Measurement};
use crate::counters::Counters;
use crate::hosts::Hosts;
use crate::interval::median;
use crate::sample::Figures;
use crate::variant::Running;
use anyhow::Context as _;
use kumi_tcp::silence::{Profile, Silence};
use kumi_topo::Network;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const ALLTOALL: Program = Program {
    name: "mpi_alltoall",
    source: include_str!("../../../../bench/workloads/mpi_alltoall.c"),
};

const PHASES: Program = Program {
    name: "mpi_phases",
    source: include_str!("../../../../bench/workloads/mpi_phases.c"),
};

const NPB: Program = Program {
    name: "mpi_npb",
    source: concat!(
        include_str!("../../../../bench/workloads/npb_patterns.h"),
        include_str!("../../../../bench/workloads/mpi_npb.c")
    ),
};

const COLL: Program = Program {
    name: "mpi_coll",
    source: include_str!("../../../../bench/workloads/mpi_coll.c"),
};

/// An MPI program of `bench/workloads/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MpiProgram {
    /// Messages from every rank to every other, in one of the papers' schedules.
    Alltoall,
    /// One collective, called as a program calls it.
    Coll,
    /// A collective and a long message in turn (Matsuda et al., fig. 4).
    Phases,
    /// A pattern of the NAS Parallel Benchmarks. Sleeps replace its computation.
    Npb,
    /// A NAS Parallel Benchmark itself, built by the user: its name and class are the arguments.
    Nas,
}

impl MpiProgram {
    /// Returns the command that runs it with a rank on each host.
    fn command(
        self,
        running: &Running<'_>,
        rank_hosts: &[String],
        args: &[String],
    ) -> anyhow::Result<Vec<String>> {
        let program = match self {
            Self::Alltoall => &ALLTOALL,
            Self::Coll => &COLL,
            Self::Phases => &PHASES,
            Self::Npb => &NPB,
            Self::Nas => return nas::command(running, rank_hosts, args),
        };
        mpirun_on(running, program, rank_hosts, args)
    }
}

/// Runs the program with `args` on all hosts and returns the figures of its JSON lines. Every
/// number of a line is a figure. Lines without a size are joined by the median of each figure.
pub fn measure(
    context: &Context<'_>,
    program: MpiProgram,
    args: &[String],
) -> anyhow::Result<Vec<Measurement>> {
    measure_on(context, program, args, context.running.hosts.names())
}

/// Runs the program `orders` times, each time with another order of the ranks on the hosts. Figures
/// are the medians over the orders. `order_spread_ratio` is the difference between the slowest and
/// the fastest order, divided by the median.
pub fn measure_in_orders(
    context: &Context<'_>,
    program: MpiProgram,
    args: &[String],
    orders: u32,
) -> anyhow::Result<Vec<Measurement>> {
    let mut by_size: BTreeMap<Option<u64>, Vec<Measurement>> = BTreeMap::new();
    for seed in 0..orders {
        let mut names = context.running.hosts.names().to_vec();
        fastrand::Rng::with_seed(seed.into()).shuffle(&mut names);
        for row in measure_on(context, program, args, &names)? {
            by_size.entry(row.size_bytes).or_default().push(row);
        }
    }
    let join_orders = |(size_bytes, mut orders): (Option<u64>, Vec<Measurement>)| {
        let times = orders.iter().filter_map(|row| row.figures.get("median_us"));
        let (min_us, max_us) = times.fold((f64::INFINITY, 0.0_f64), |(min_us, max_us), time_us| {
            (min_us.min(*time_us), max_us.max(*time_us))
        });
        for row in &mut orders {
            row.size_bytes = None;
        }
        join(orders).into_iter().map(move |mut row| {
            row.size_bytes = size_bytes;
            if let Some(median_us) = row.figures.get("median_us").copied() {
                let spread = (max_us - min_us) / median_us;
                row.figures.insert("order_spread_ratio".into(), spread);
            }
            row
        })
    };
    Ok(by_size.into_iter().flat_map(join_orders).collect())
}

fn measure_on(
    context: &Context<'_>,
    program: MpiProgram,
    args: &[String],
    rank_hosts: &[String],
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let hosts = running.hosts;
    let argv = program.command(running, rank_hosts, args)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let silence = watch_silence(hosts);
    let (before, drops_before) = (counters(context)?, hosts.port_drops());
    let text = hosts.run(running.client(), &argv)?;
    let (after, drops_after) = (counters(context)?, hosts.port_drops());
    let silences = silence.map(|silence| silence.profile()).transpose()?;
    let mut rows = Vec::new();
    let network = || -> anyhow::Result<Network> {
        let network = hosts.network()?;
        let ranks = rank_hosts.iter().filter_map(|name| network.host(name));
        Ok(network.of_ranks(&ranks.collect::<Vec<_>>()))
    };
    if program == MpiProgram::Nas {
        rows.push(nas::figures(&text)?);
    }
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let line: Value = serde_json::from_str(line).context("invalid line of the program")?;
        let mut row = figures(&line);
        add_silence(&mut row, silences.as_ref());
        if program == MpiProgram::Alltoall {
            coll_bound::add(&mut row, &network()?, "alltoall")?;
            add_excess(&mut row);
        }
        if program == MpiProgram::Coll {
            let operation = line["operation"].as_str().unwrap_or_default();
            coll_bound::add(&mut row, &network()?, operation)?;
            add_excess(&mut row);
        }
        rows.push(row);
    }
    let mut rows = join(rows);
    anyhow::ensure!(
        !rows.is_empty(),
        "the program printed no figures, which are lines of JSON: {}",
        text.trim()
    );
    if let (Some(before), Some(after)) = (drops_before, drops_after) {
        for row in &mut rows {
            let drops = (after - before) as f64;
            row.figures.insert("port_drops".into(), drops);
        }
    }
    for (name, counter) in [
        ("retransmits", "RetransSegs"),
        ("tcp_timeouts", "TCPTimeouts"),
    ] {
        let growth = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after.growth(before, counter));
        let growth = growth.sum::<u64>() as f64;
        for row in &mut rows {
            row.figures.insert(name.into(), growth);
        }
    }
    Ok(rows)
}

/// Joins lines without a size, which repeat the same measurement, by the median of each figure.
fn join(lines: Vec<Measurement>) -> Vec<Measurement> {
    if lines.iter().any(|line| line.size_bytes.is_some()) {
        return lines;
    }
    let names: BTreeSet<String> = lines
        .iter()
        .flat_map(|line| line.figures.keys().cloned())
        .collect();
    let medians = names.into_iter().map(|name| {
        let values: Vec<f64> = lines
            .iter()
            .filter_map(|line| line.figures.get(&name).copied())
            .collect();
        (name, median(&values))
    });
    let row = Measurement {
        figures: medians.collect(),
        series: lines.iter().find_map(|line| line.series.clone()),
        size_bytes: None,
    };
    if lines.is_empty() {
        Vec::new()
    } else {
        vec![row]
    }
}

/// Observes the connections between `hosts` if they are namespaces of this machine and the kernel
/// permits it. Otherwise returns `None`, and targets for the figure are missed.
fn watch_silence(hosts: &dyn Hosts) -> Option<Silence> {
    let inode = |host: &String| -> Option<u32> {
        let link = hosts.run(host, &["readlink", "/proc/self/ns/net"]).ok()?;
        let number = link.trim().strip_prefix("net:[")?.strip_suffix(']')?;
        number.parse().ok()
    };
    if hosts.kind() != "lab" {
        return None;
    }
    let namespaces: Vec<u32> = hosts.names().iter().filter_map(inode).collect();
    Silence::watch(&namespaces).ok()
}

/// Adds the longest time in which a connection had data to deliver and delivered none, within the
/// rounds that count.
fn add_silence(row: &mut Measurement, silences: Option<&Profile>) {
    let [from_ns, to_ns] = ["begin_ns", "end_ns"].map(|name| row.figures.remove(name));
    if let (Some(profile), Some(from_ns), Some(to_ns)) = (silences, from_ns, to_ns) {
        let longest_ns = profile.longest_ns(from_ns as u64, to_ns as u64);
        let longest_ms = longest_ns as f64 / 1e6;
        row.figures.insert("silence_max_ms".into(), longest_ms);
    }
}

/// Adds the excess of the longest round over the median round, and the ratio of the 99th percentile
/// to the median.
pub fn add_excess(row: &mut Measurement) {
    let figure = |name: &str| row.figures.get(name).copied();
    let Some(median_us) = figure("median_us") else {
        return;
    };
    let excess_ms = figure("max_us").map(|longest_us| (longest_us - median_us) / 1e3);
    let tail = figure("p99_us").map(|p99_us| p99_us / median_us);
    for (name, value) in [("excess_max_ms", excess_ms), ("p99_of_median_ratio", tail)] {
        if let Some(value) = value {
            row.figures.insert(name.into(), value);
        }
    }
}

fn counters(context: &Context<'_>) -> anyhow::Result<Vec<Counters>> {
    let hosts = context.running.hosts;
    hosts
        .names()
        .iter()
        .map(|host| Counters::read(hosts, host))
        .collect()
}

/// Returns the numbers of a program's line as figures.
pub fn figures(line: &Value) -> Measurement {
    let numbers = line.as_object().into_iter().flatten();
    let mut figures: Figures = numbers
        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
        .collect();
    let size = figures.remove("size_bytes");
    // Each rank sends to every other. The paper's bandwidth also counts the message to itself
    // (§2.2.3).
    if let (Some(size), Some(ranks), Some(us)) =
        (size, figures.get("ranks"), figures.get("median_us"))
    {
        figures.insert("goodput_bps".into(), size * ranks * 8.0 / us * 1e6);
    }
    let first = figures.get("goodput_first_2rtt_bps").copied();
    if let (Some(first), Some(steady)) = (first, figures.get("goodput_steady_bps")) {
        figures.insert("first_2rtt_vs_steady_ratio".into(), first / steady);
    }
    Measurement {
        size_bytes: size.map(|size| size as u64),
        figures,
        series: line.get("bytes_per_ms").cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::fake::{Fake, SOUND};
    use crate::variant::{Running, Variant};
    use serde_json::json;

    #[test]
    fn program__that_fails_or_prints_no_figures__is_shown_with_the_reason() {
        let no_compiler = format!("case \"$*\" in *mpicc*) exit 127 ;; esac; {SOUND}");
        for (script, message) in [
            (
                SOUND,
                "the program printed no figures, which are lines of JSON: 1",
            ),
            (
                no_compiler.as_str(),
                "cannot compile mpi_alltoall.c with mpicc on h1; if it is missing: \
                 apt install libopenmpi-dev",
            ),
        ] {
            let fake = Fake::new(2, script);
            let running = Running::start(&fake, Variant::Single).unwrap();
            let context = Context {
                running: &running,
                events: &[],
                windows: &[],
                quick: true,
            };
            let error = measure(&context, MpiProgram::Alltoall, &[]).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn lines__repetitions_of_one_measurement__are_joined_by_their_medians() {
        let lines = [1.0, 9.0, 2.0]
            .map(|s| figures(&json!({"total_s": s})))
            .to_vec();
        let rows = join(lines);
        assert_eq!((rows.len(), rows[0].figures["total_s"]), (1, 2.0));
        assert!(super::join(Vec::new()).is_empty());
    }

    #[test]
    fn figures__line_with_a_size__has_the_papers_bandwidth() {
        let line =
            json!({"program": "alltoall", "size_bytes": 32768, "ranks": 16, "median_us": 5000.0});
        let row = figures(&line);
        assert_eq!(row.size_bytes, Some(32768));
        assert_eq!(row.figures["goodput_bps"], 32768.0 * 16.0 * 8.0 / 5e-3);
        assert!(!row.figures.contains_key("program"));
    }
}
