//! A node that is killed at a random time. The others tell when their calls fail, or go on without
//! it.

use kumi_command::outln;
use kumi_dsm::coherence::DsmError;
use kumi_dsm::protocol::Placement;
use kumi_dsm::runtime::{Dsm, SharedRegion};
use nix::sys::signal::{Signal, raise};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time from the common barrier to the kill.
const KILL_AFTER_MAX: Duration = Duration::from_millis(600);

/// Time for which the others go on before they count as hanging.
const HANG: Duration = Duration::from_secs(20);

/// Words of the counters, each under a lock of its own.
const COUNTERS: usize = 5;

/// Runs until a node is killed, which `seed` chooses. The others print when and how they noticed.
pub fn run(dsm: &Dsm, seed: u64) -> anyhow::Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (counters, blocks) = memory(dsm)?;
    let mut kill = Kill::choose(dsm, &mut rng);
    kill.begin(dsm);
    let mut wrong = 0;
    let error = loop {
        anyhow::ensure!(kill.began.elapsed() < HANG, "no call has failed");
        if let Err(error) = work(dsm, &counters, &blocks, &mut rng, &mut wrong) {
            break error;
        }
    };
    let names_victim = matches!(&error, DsmError::Lost { node, .. } if *node == kill.victim);
    let after = kill.elapsed();
    // One that ends would be lost for those that have not noticed yet.
    std::thread::sleep(Duration::from_secs(3).saturating_sub(after));
    outln!(
        "{}",
        json!({"error_after_ms": after.as_millis() as u64, "wrong": wrong,
               "misnamed": u32::from(!names_victim), "error": error.to_string()})
    );
    Ok(())
}

/// Returns the counters, and a block for each node.
fn memory(dsm: &Dsm) -> Result<(SharedRegion, SharedRegion), DsmError> {
    let counters = dsm.alloc(COUNTERS * 4096, Placement::Cyclic(1))?;
    let blocks = dsm.alloc(dsm.nodes() * 8192, Placement::Blocks)?;
    dsm.barrier()?;
    Ok((counters, blocks))
}

/// The kill of a node.
struct Kill {
    victim: usize,
    delay: Duration,
    /// Time from which the delay counts.
    began: Instant,
}

impl Kill {
    /// Chooses a node and a time.
    fn choose(dsm: &Dsm, rng: &mut fastrand::Rng) -> Self {
        Self {
            victim: rng.usize(..dsm.nodes()),
            delay: Duration::from_micros(rng.u64(..KILL_AFTER_MAX.as_micros() as u64)),
            began: Instant::now(),
        }
    }

    /// Kills the node when the time is over, from now on.
    fn begin(&mut self, dsm: &Dsm) {
        self.began = Instant::now();
        if dsm.node() == self.victim {
            let delay = self.delay;
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                let _ = raise(Signal::SIGKILL);
            });
        }
    }

    /// Returns the time since the node was killed.
    fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.delay)
    }
}

/// Rounds that the nodes that are left make after a recovery.
const ROUNDS_AFTER: u64 = 20;

/// Goes on when a node is killed, and prints how long that took.
pub fn survive(dsm: &Dsm, seed: u64) -> anyhow::Result<()> {
    dsm.keep_replicas()?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let (counters, blocks) = memory(dsm)?;
    let mut kill = Kill::choose(dsm, &mut rng);
    let mut wrong = 0;
    // Increments of a counter up to each barrier. The first one was before them.
    let mut totals = vec![0];
    let mut has_begun = false;
    let mut times_ms = None;
    let mut barriers_end = u64::MAX;
    while (totals.len() as u64) < barriers_end {
        anyhow::ensure!(kill.began.elapsed() < HANG, "no call has failed");
        // All have passed the first barrier when one has passed the second: a node that is lost in
        // the first one would take the regions along.
        if totals.len() == 2 && !has_begun {
            has_begun = true;
            kill.begin(dsm);
        }
        let last = totals[totals.len() - 1];
        let is_check = totals.len() % 2 == 0;
        let total = if is_check {
            last
        } else {
            last + dsm.left().len() as u64
        };
        let outcome = if is_check {
            wrong += check(dsm, &counters, &blocks, (seed, total));
            Ok(())
        } else {
            increment(dsm, &counters, &mut wrong).inspect(|()| {
                word(&blocks, dsm.node() * 8192 + 4088).store(seed ^ total, Ordering::Relaxed);
            })
        };
        match outcome.and_then(|()| dsm.barrier()) {
            Ok(()) => totals.push(total),
            Err(DsmError::Lost { node, .. }) if node == kill.victim && times_ms.is_none() => {
                let after = || kill.elapsed().as_millis() as u64;
                let failed_ms = after();
                let recovery = dsm.recover()?;
                times_ms = Some((failed_ms, after()));
                anyhow::ensure!(recovery.lost == [kill.victim], "{recovery:?}");
                let passed = recovery.barriers as usize;
                if totals.len() < passed {
                    // It has failed here, and counts.
                    totals.push(total);
                }
                totals.truncate(passed);
                barriers_end = recovery.barriers + 2 * ROUNDS_AFTER;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (failed_ms, recovered_ms) = times_ms.unwrap_or_default();
    outln!(
        "{}",
        json!({"error_after_ms": failed_ms, "recovered_after_ms": recovered_ms, "wrong": wrong,
               "misnamed": 0})
    );
    Ok(dsm.barrier()?)
}

fn word(region: &SharedRegion, at: usize) -> &AtomicU64 {
    region.memory().word(at)
}

/// Returns how many words are not as they must be behind a barrier.
fn check(
    dsm: &Dsm,
    counters: &SharedRegion,
    blocks: &SharedRegion,
    (seed, total): (u64, u64),
) -> u32 {
    let counts = (0..COUNTERS * 4).map(|index| word(counters, index * 1024));
    let counts = counts.filter(|count| count.load(Ordering::Relaxed) != total);
    let left = dsm.left().into_iter();
    let values = left.map(|node| word(blocks, node * 8192 + 4088));
    let values = values.filter(|value| value.load(Ordering::Relaxed) != seed ^ total);
    (counts.count() + values.count()) as u32
}

/// A round of increments under locks, and of blocks between barriers.
fn work(
    dsm: &Dsm,
    counters: &SharedRegion,
    blocks: &SharedRegion,
    rng: &mut fastrand::Rng,
    wrong: &mut u32,
) -> Result<(), DsmError> {
    // The generator is the same on all nodes.
    let value = rng.u64(..);
    increment(dsm, counters, wrong)?;
    let word = |node: usize| word(blocks, node * 8192 + 4088);
    word(dsm.node()).store(value, Ordering::Relaxed);
    dsm.barrier()?;
    let others = (0..dsm.nodes()).filter(|node| word(*node).load(Ordering::Relaxed) != value);
    *wrong += others.count() as u32;
    dsm.barrier()
}

/// Increments all counters under their locks.
fn increment(dsm: &Dsm, counters: &SharedRegion, wrong: &mut u32) -> Result<(), DsmError> {
    for lock in 0..COUNTERS {
        dsm.lock(lock as u32)?;
        // The words of a counter are equal when nobody holds its lock.
        let word = |index: usize| word(counters, lock * 4096 + index * 1024);
        let first = word(0).load(Ordering::Relaxed);
        for index in 0..4 {
            *wrong += u32::from(word(index).load(Ordering::Relaxed) != first);
            word(index).store(first + 1, Ordering::Relaxed);
        }
        dsm.unlock(lock as u32)?;
    }
    Ok(())
}
