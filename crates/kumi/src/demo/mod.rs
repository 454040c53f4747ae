//! `kumi demo`: the main job in a minute.
//!
//! An unmodified iperf3 and an unmodified Open MPI program run over two links of the lab, one link is
//! cut and healed while they run, and they go on. Then an MPI program crosses a WAN, with and without
//! `kumi tcp`, and another exchanges data between eight hosts, with and without a plan. Prints a table and writes a page
//! with the curves.

mod chart;
mod coll;
mod page;
mod run;
mod wan;

use crate::bench::hosts::lab::Lab;
use crate::bench::variant::{Running, Variant};
use anyhow::Context;
use run::{Act, Timeline};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `kumi demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The report: one HTML file that opens without a network.
    #[arg(long, value_name = "FILE", default_value = "kumi-demo.html")]
    report: PathBuf,
    /// What the programs run over: `kumi`, or a rival (`single`, `rr`, `mptcp`) for comparison.
    #[arg(long, default_value = "kumi")]
    variant: Variant,
    /// Two hosts with two links between them.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/topologies/two-links.toml"
    )]
    topology: PathBuf,
    /// Two hosts with a WAN between them.
    #[arg(long, value_name = "FILE", default_value = "bench/topologies/wan.toml")]
    wan: PathBuf,
    /// Hosts on a switch with shallow ports.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/topologies/one-switch-32k.toml"
    )]
    switch: PathBuf,
}

/// The link that is cut.
const CUT_LINK: &str = "h2:eth2";

/// What the demo found, for table and page.
#[derive(Debug)]
pub struct Story {
    /// What the programs ran over.
    pub variant: Variant,
    /// Rate of each link, in bit/s.
    pub rates_bps: Vec<f64>,
    /// iperf3's goodput over one bare link, in bit/s.
    pub single_bps: f64,
    /// iperf3, cut and healed.
    pub stream: Timeline,
    /// The MPI program, cut and healed.
    pub mpi: Timeline,
    /// The MPI program across the WAN.
    pub crossings: Vec<wan::Crossing>,
    /// The MPI all-to-all on a switch.
    pub exchanges: Vec<coll::Exchange>,
}

/// Runs `kumi demo`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let step = |number: u32, what: &str| {
        eprintln!("[{number}/7] {what} ({} s)", started.elapsed().as_secs());
    };
    step(1, "building the lab: two hosts, two links, namespaces only");
    let lab = Lab::up(&args.topology)?;
    let _latency = kumi_lab::CpuLatency::hold_on_virtual_machine();
    let acts = [Act::cut(CUT_LINK, 4.0), Act::heal(CUT_LINK, 8.0)];

    step(2, "iperf3 over one bare link, for comparison: 3 s");
    let bare = Running::start(&lab, Variant::Single)?;
    let single_bps = run::iperf3(&bare, 3, &[])?.between_bps(1.0, 3.0);
    drop(bare);

    let name = args.variant;
    step(
        3,
        &format!("the same iperf3 over {name}: 12 s, {CUT_LINK} cut at 4 s, healed at 8 s"),
    );
    let running = Running::start(&lab, name).with_context(|| format!("setting up {name}"))?;
    let stream = run::iperf3(&running, 12, &acts)?;
    step(
        4,
        &format!("an Open MPI program over {name}: 12 s, cut and healed again"),
    );
    let mpi = run::mpi(&running, 12, &acts)?;

    let rates_bps = crate::bench::hosts::Hosts::rates_bps(&lab);
    drop(running);
    drop(lab);

    step(
        5,
        "an Open MPI program across a WAN of 500 Mb/s and 20 ms, with CUBIC and with kumi tcp",
    );
    let crossings = wan::cross(&args.wan)?;

    step(
        6,
        "an Open MPI all-to-all on a switch with ports of 32 KB, as the library does it and by a plan",
    );
    let exchanges = coll::exchange(&args.switch)?;

    step(7, "writing the report");
    let story = Story {
        variant: name,
        rates_bps,
        single_bps,
        stream,
        mpi,
        crossings,
        exchanges,
    };
    std::fs::write(&args.report, page::page(&story))
        .with_context(|| format!("writing {}", args.report.display()))?;
    print!("{}", page::table(&story));
    println!("report: {}", args.report.display());
    let survived = story.stream.survived() && story.mpi.survived();
    Ok(if survived {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
