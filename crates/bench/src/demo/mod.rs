//! `kumi demo`: shows the project's main functions in a minute.
//!
//! An unmodified iperf3 and an unmodified Open MPI program run over two links of the lab. One link
//! is cut and healed while they run, and they continue. Then an MPI program crosses a WAN, with and
//! without `kumi tcp`. Another exchanges data between eight hosts, with and without a plan. Last, a
//! host writes into the memory of another one.
//!
//! The demo prints tables and writes a page with the curves. It fails if a row breaks a promise.

mod chart;
mod claim;
mod coll;
mod needs;
mod page;
mod put;
mod run;
mod setting;
mod wan;

use crate::folder::{Folder, read_topology};
use crate::hosts::Hosts as _;
use crate::hosts::lab::Lab;
use crate::variant::{Running, Variant};
use anyhow::Context;
use kumi_command::interrupt;
use kumi_command::{errln, out, outln};
use run::{Act, Timeline};
use setting::Setting;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `kumi demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path of the report, one HTML file that opens without a network.
    #[arg(long, value_name = "FILE", default_value = "kumi-demo.html")]
    report: PathBuf,
    /// Variant that the programs run over: `kumi`, or a rival (`single`, `rr`, `mptcp`) for
    /// comparison.
    #[arg(long, default_value = "kumi")]
    variant: Variant,
    /// Topology of two hosts with two links; default: the built-in `two-links`.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Topology of two hosts with a WAN between them; default: the built-in `wan`.
    #[arg(long, value_name = "FILE")]
    wan: Option<PathBuf>,
    /// Topology of hosts on a switch with shallow ports; default: the built-in `one-switch-32k`.
    #[arg(long, value_name = "FILE")]
    switch: Option<PathBuf>,
}

/// The link that is cut.
const CUT_LINK: &str = "h2:eth2";

/// Exit status of a void run: the machine disturbed it, so its figures prove nothing.
const EXIT_VOID: u8 = 3;

/// Results of the demo, for the tables and the page.
#[derive(Debug)]
pub struct Story {
    /// Place and time of the run.
    pub setting: Setting,
    /// Reasons why the run is void, as sentences; empty for a valid run.
    pub void: Vec<String>,
    /// Variant that the programs ran over.
    pub variant: Variant,
    /// Rate of each link, in bit/s.
    pub rates_bps: Vec<f64>,
    /// Goodput of iperf3 over one bare link, in bit/s.
    pub single_bps: f64,
    /// Run of iperf3, with a link cut and healed.
    pub stream: Timeline,
    /// Run of the MPI program, with a link cut and healed.
    pub mpi: Timeline,
    /// Results of the MPI program across the WAN.
    pub crossings: Vec<wan::Crossing>,
    /// Results of the MPI all-to-all on a switch.
    pub exchanges: Vec<coll::Exchange>,
    /// Times of a put and of an exchange of datagrams.
    pub answers: Vec<put::Answer>,
}

/// Runs `kumi demo`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let topology = |option: &Option<PathBuf>, name: &str| match option {
        Some(file) => read_topology(file),
        None => Folder::Embedded.topology(name),
    };
    let two_links = topology(&args.topology, "two-links")?;
    let wan_topology = topology(&args.wan, "wan")?;
    let switch = topology(&args.switch, "one-switch-32k")?;
    needs::check(&args.report)?;
    interrupt::watch()?;
    let start = Instant::now();
    let step = |number: u32, text: &str| {
        errln!("[{number}/8] {text} ({} s)", start.elapsed().as_secs());
    };
    step(1, "building the lab: two hosts, two links, namespaces only");
    let mut lab = Lab::up(&two_links)?;
    let _latency = kumi_lab::CpuLatency::hold_on_virtual_machine();
    let setting = Setting::collect(&lab)?;
    let acts = [Act::cut(CUT_LINK, 4.0), Act::heal(CUT_LINK, 8.0)];

    step(2, "iperf3 over one bare link, for comparison: 3 s");
    let bare = Running::start(&lab, Variant::Single)?;
    let single_bps = run::iperf3(&bare, 3, &[])?.between_bps(1.0, 3.0);
    drop(bare);

    let variant = args.variant;
    step(
        3,
        &format!("the same iperf3 over {variant}: 14 s, {CUT_LINK} cut at 4 s, healed at 8 s"),
    );
    let running = Running::start(&lab, variant).with_context(|| format!("setting up {variant}"))?;
    let stream = run::iperf3(&running, 14, &acts)?;
    step(
        4,
        &format!("an Open MPI program over {variant}: 14 s, cut and healed again"),
    );
    let mpi = run::mpi(&running, 14, &acts)?;

    drop(running);
    let rates_bps = lab.rates_bps();
    let mut void = lab.void_reasons();
    drop(lab);

    step(
        5,
        "an Open MPI program across a WAN of 500 Mb/s and 20 ms, with CUBIC and with kumi tcp",
    );
    let crossings = wan::cross(&wan_topology, &mut void)?;

    step(
        6,
        "an Open MPI all-to-all on a switch with ports of 32 KB, by the library and by a plan",
    );
    let exchanges = coll::exchange(&switch, &mut void)?;

    step(
        7,
        "64 bytes to another host: a UDP echo, and puts by Wind, one to a stopped program",
    );
    let one_link = Folder::Embedded.topology("one-link-unshaped")?;
    let answers = put::measure(&one_link, &mut void)?;

    step(8, "writing the report");
    let story = Story {
        setting,
        void,
        variant,
        rates_bps,
        single_bps,
        stream,
        mpi,
        crossings,
        exchanges,
        answers,
    };
    report(&story, &args.report)
}

/// Writes the page, prints the tables and returns the exit status.
fn report(story: &Story, path: &Path) -> anyhow::Result<ExitCode> {
    let tables = claim::tables(story);
    std::fs::write(path, page::page(story, &tables)).with_context(|| {
        let path = path.display();
        format!("{path}: the report cannot be written; name another file with --report")
    })?;
    out!(
        "{}",
        page::text(story, &tables, std::io::stdout().is_terminal())
    );
    outln!("report: {}", std::path::absolute(path)?.display());
    let has_kept_promises = tables
        .iter()
        .flat_map(|table| &table.rows)
        .all(claim::Row::is_kept);
    Ok(if !story.void.is_empty() {
        ExitCode::from(EXIT_VOID)
    } else if has_kept_promises && story.stream.has_survived() && story.mpi.has_survived() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report__file_that_cannot_be_written__is_named_with_the_option() {
        let error = report(&story(), Path::new("/nowhere/demo.html")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/nowhere/demo.html: the report cannot be written; name another file with --report"
        );
    }

    /// Returns a run that keeps every promise.
    pub fn story() -> Story {
        let rate_bps = |bin: u32| if (41..=80).contains(&bin) { 9e8 } else { 1.8e9 };
        let goodput = (1..=140).map(|bin| (f64::from(bin) * 0.1, rate_bps(bin)));
        let links = (0..140).map(|bin| (f64::from(bin) * 0.1, vec![9e8, 9e8]));
        let timeline = Timeline {
            goodput: goodput.collect(),
            links: links.collect(),
            marks: vec![(4.0, "cut"), (8.0, "healed")],
            gap_max_ms: Some(12.0),
            wrong_messages: Some(0),
        };
        Story {
            setting: Setting(vec![("kernel", "Linux 6.1".into())]),
            void: Vec::new(),
            variant: Variant::Kumi,
            rates_bps: vec![1e9, 1e9],
            single_bps: 9e8,
            stream: timeline.clone(),
            mpi: timeline,
            crossings: [("CUBIC", 1e8), ("kumi tcp", 4e8)]
                .map(|(name, goodput_bps)| wan::Crossing {
                    name,
                    goodput_bps,
                    series: vec![(0.005, 1e8), (0.01, 2e8)],
                })
                .to_vec(),
            exchanges: [("Open MPI", 0.02, 30.0), ("by a plan", 0.01, 3.0)]
                .map(|(author, median_s, retransmits)| coll::Exchange {
                    author,
                    median_s,
                    retransmits,
                })
                .to_vec(),
            answers: [("echo", 60.0), ("put", 30.0)]
                .map(|(name, median_us)| put::Answer { name, median_us })
                .to_vec(),
        }
    }
}
