//! Nodes of shared memory that measure themselves. Node 0 or node 1 prints the figures.

use super::{dsm_crash_end, dsm_litmus_end};
use anyhow::Context as _;
use clap::ValueEnum;
use kumi::group::{Config, Environment};
use kumi::shared_memory::from_environment_with;
use kumi_command::outln;
use kumi_dsm::coherence::{PAGE_BYTES, changes};
use kumi_dsm::protocol::{Placement, Updates};
use kumi_dsm::runtime::{Dsm, SharedRegion, Transfers};
use serde_json::json;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Intervals in which all pages are written, after which their writes cost no fault.
const WRITES_TO_STEADY: u64 = 6;

/// Misses, writes and barriers that are timed.
const ROUNDS: usize = 2_000;

/// Pages that are compared for a time.
const DIFFS: usize = 20_000;

/// Bytes that are exchanged for each size of a barrier, and its fewest rounds.
const BARRIER_BYTES: u64 = 8 << 20;
const BARRIER_ROUNDS: (u64, u64) = (3, 1_000);

/// Arguments of `kumi workload dsm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Figures to measure
    measure: Measure,
    /// A tenth of the rounds
    #[arg(long)]
    quick: bool,
    /// Memory that is updated at barriers
    #[arg(long)]
    updated: bool,
    /// Pages and diffs as messages, without direct placement
    #[arg(long)]
    by_messages: bool,
    /// Interface on which the nodes reach each other
    #[arg(long)]
    device: Option<String>,
    /// Litmus tests to run
    #[arg(long, default_value_t = 0)]
    rounds: u64,
    /// Seed of a crash: the node that is killed, and when
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Bytes that are updated before a barrier
    sizes_bytes: Vec<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Measure {
    Miss,
    Barrier,
    Write,
    Litmus,
    Crash,
    CrashReplicas,
}

/// Joins the others, and measures.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let environment = Environment::read(|name| std::env::var(name).ok());
    let config = Config {
        interface: args.device.clone(),
        ..Config::default()
    };
    let transfers = match args.by_messages {
        true => Transfers::ByMessages,
        false => Transfers::Direct,
    };
    let environment = environment.map_err(anyhow::Error::msg)?;
    let dsm = from_environment_with(config, &environment, transfers)?;
    let rounds = if args.quick { ROUNDS / 10 } else { ROUNDS };
    match args.measure {
        Measure::Miss => misses(&dsm, rounds),
        Measure::Write => writes(&dsm, rounds),
        Measure::Barrier => barriers(&dsm, args),
        Measure::Litmus => litmus(&dsm, args),
        Measure::CrashReplicas => return dsm_crash_end::survive(&dsm, args.seed),
        Measure::Crash => {
            // There is no common end.
            return dsm_crash_end::run(&dsm, args.seed);
        }
    }?;
    Ok(dsm.barrier()?)
}

fn median_us(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

fn touch(region: &SharedRegion, page: usize) -> u64 {
    region
        .memory()
        .word(page * PAGE_BYTES)
        .load(Ordering::Relaxed)
}

/// Node 1 reads pages of node 0, one at a time: each is behind those that it has read.
fn misses(dsm: &Dsm, rounds: usize) -> anyhow::Result<()> {
    let region = dsm.alloc(rounds * PAGE_BYTES, Placement::On(0))?;
    if dsm.node() == 0 {
        for page in 0..rounds {
            let word = region.memory().word(page * PAGE_BYTES);
            word.store(page as u64 + 1, Ordering::Relaxed);
        }
    }
    dsm.barrier()?;
    if dsm.node() != 1 {
        return Ok(());
    }
    let mut times = Vec::new();
    // From the last page on, none is missing behind the page.
    for page in (0..rounds).rev() {
        let began = Instant::now();
        let found = touch(&region, page);
        times.push(began.elapsed());
        anyhow::ensure!(found == page as u64 + 1, "page {page} has {found}");
    }
    let p99 = times.len() * 99 / 100;
    let miss_us = median_us(&mut times);
    outln!(
        "{}",
        json!({"size_bytes": PAGE_BYTES, "miss_median_us": miss_us,
               "miss_p99_us": times[p99].as_nanos() as f64 / 1e3})
    );
    Ok(())
}

/// Node 1 writes a byte on each of many pages of node 0.
fn writes(dsm: &Dsm, rounds: usize) -> anyhow::Result<()> {
    let region = dsm.alloc(rounds * PAGE_BYTES, Placement::On(0))?;
    dsm.barrier()?;
    let write = |value: u64| {
        let mut times = Vec::new();
        for page in 0..rounds {
            let word = region.memory().word(page * PAGE_BYTES + 512);
            let began = Instant::now();
            word.store(value, Ordering::Relaxed);
            times.push(began.elapsed());
        }
        median_us(&mut times)
    };
    let mut write_us = 0.0;
    if dsm.node() == 1 {
        region.prefetch(0..region.bytes())?;
        write_us = write(1);
    }
    let before = dsm.counts();
    let began = Instant::now();
    dsm.barrier()?;
    let (flushed, counts) = (began.elapsed(), dsm.counts());
    let mut steady_write_us = 0.0;
    for value in 2..2 + WRITES_TO_STEADY {
        if dsm.node() == 1 {
            steady_write_us = write(value);
        }
        dsm.barrier()?;
    }
    if dsm.node() == 1 {
        let changed = counts.changed_bytes - before.changed_bytes;
        let sent = counts.diff_bytes - before.diff_bytes;
        outln!(
            "{}",
            json!({"diff_of_byte_loop_ratio": diff_share_of_a_byte_loop(64),
                   "sparse_diff_of_byte_loop_ratio": diff_share_of_a_byte_loop(8),
                   "write_median_us": write_us,
                   "steady_write_median_us": steady_write_us,
                   "release_us_per_page": flushed.as_nanos() as f64 / 1e3 / rounds as f64,
                   "changed_bytes": changed, "diff_bytes": sent,
                   "overhead_bytes_per_page": (sent - changed) as f64 / rounds as f64})
        );
    }
    Ok(())
}

fn litmus(dsm: &Dsm, args: &Args) -> anyhow::Result<()> {
    let found = dsm_litmus_end::run(dsm, args.rounds)?;
    if dsm.node() == 0 {
        outln!(
            "{}",
            json!({"rounds": found.rounds, "forbidden": found.forbidden,
                   "telling_ratio": found.telling as f64 / found.rounds as f64})
        );
    }
    Ok(())
}

/// Returns the time in which a page is compared with its twin, as a share of that of a loop over
/// bytes. The page has `words` changed words.
fn diff_share_of_a_byte_loop(words: usize) -> f64 {
    let twin = [0_u8; PAGE_BYTES];
    let mut now = twin;
    for word in 0..words {
        let at = word * PAGE_BYTES / words / 8 * 8;
        now[at..at + 8].fill(1);
    }
    let time = |find: &dyn Fn(&mut Vec<Range<usize>>)| {
        let mut found = Vec::new();
        let began = Instant::now();
        for _ in 0..DIFFS {
            find(&mut found);
            black_box(&found);
        }
        began.elapsed().as_nanos() as f64
    };
    let by_bytes = |found: &mut Vec<Range<usize>>| {
        found.clear();
        for (at, (old, new)) in black_box(&twin).iter().zip(black_box(&now)).enumerate() {
            if old != new {
                match found.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => found.push(at..at + 1),
                }
            }
        }
    };
    time(&|found| changes(black_box(&twin), black_box(&now), found)) / time(&by_bytes)
}

/// Node 0 writes to its pages, and all others read them after the barrier.
fn barriers(dsm: &Dsm, args: &Args) -> anyhow::Result<()> {
    for &bytes in &args.sizes_bytes {
        let length = usize::try_from(bytes)?.max(8);
        let updates = match args.updated {
            true => Updates::AtBarriers,
            false => Updates::OnAccess,
        };
        let region = dsm.alloc_with(length, Placement::On(0), updates)?;
        let (least, most) = BARRIER_ROUNDS;
        let moved = bytes * (dsm.nodes() as u64 - 1);
        let rounds = (BARRIER_BYTES / moved.max(1)).clamp(least, most);
        let rounds = match args.quick {
            true => (rounds / 5).max(least),
            false => rounds,
        };
        let mut block = vec![0; length];
        let mut times = Vec::new();
        for round in 0..rounds {
            block.fill(round as u8 + 1);
            dsm.barrier()?;
            let began = Instant::now();
            if dsm.node() == 0 && bytes > 0 {
                region.memory().write(0, &block);
            }
            dsm.barrier()?;
            if dsm.node() != 0 && bytes > 0 {
                if !args.updated {
                    region.prefetch(0..length)?;
                }
                let mut found = vec![0; length];
                region.memory().read(0, &mut found);
                anyhow::ensure!(found == block, "round {round}: other bytes arrived");
            }
            // All have read them.
            if bytes > 0 {
                dsm.barrier()?;
            }
            times.push(began.elapsed());
        }
        if dsm.node() == 0 {
            let time_us = median_us(&mut times);
            let readers = (dsm.nodes() - 1) as f64;
            let goodput = (bytes > 0).then(|| bytes as f64 * 8.0 * readers / time_us * 1e6);
            let mut row =
                json!({"size_bytes": bytes, "barrier_median_us": time_us, "rounds": rounds});
            if let Some(goodput) = goodput {
                row["goodput_bps"] = goodput.into();
            }
            outln!("{row}");
        }
    }
    dsm.barrier().context("the last barrier")
}
