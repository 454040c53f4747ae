//! A node that is killed at a random time. The others tell when their calls fail.

use kumi_command::outln;
use kumi_dsm::coherence::DsmError;
use kumi_dsm::protocol::Placement;
use kumi_dsm::runtime::{Dsm, SharedRegion};
use nix::sys::signal::{Signal, raise};
use serde_json::json;
use std::sync::atomic::Ordering;
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
    let victim = rng.usize(..dsm.nodes());
    let delay = Duration::from_micros(rng.u64(..KILL_AFTER_MAX.as_micros() as u64));
    let counters = dsm.alloc(COUNTERS * 4096, Placement::Cyclic(1))?;
    let blocks = dsm.alloc(dsm.nodes() * 8192, Placement::Blocks)?;
    dsm.barrier()?;
    let began = Instant::now();
    if dsm.node() == victim {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let _ = raise(Signal::SIGKILL);
        });
    }
    let mut wrong = 0;
    let error = loop {
        anyhow::ensure!(began.elapsed() < HANG, "no call has failed");
        if let Err(error) = work(dsm, &counters, &blocks, &mut rng, &mut wrong) {
            break error;
        }
    };
    let names_victim = matches!(&error, DsmError::Lost { node, .. } if *node == victim);
    let after = began.elapsed().checked_sub(delay).unwrap_or_default();
    // One that ends would be lost for those that have not noticed yet.
    std::thread::sleep(Duration::from_secs(3).saturating_sub(after));
    outln!(
        "{}",
        json!({"error_after_ms": after.as_millis() as u64, "wrong": wrong,
               "misnamed": u32::from(!names_victim), "error": error.to_string()})
    );
    Ok(())
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
    for lock in 0..COUNTERS {
        dsm.lock(lock as u32)?;
        // The words of a counter are equal when nobody holds its lock.
        let word = |index: usize| counters.memory().word(lock * 4096 + index * 1024);
        let first = word(0).load(Ordering::Relaxed);
        for index in 0..4 {
            *wrong += u32::from(word(index).load(Ordering::Relaxed) != first);
            word(index).store(first + 1, Ordering::Relaxed);
        }
        dsm.unlock(lock as u32)?;
    }
    let word = |node: usize| blocks.memory().word(node * 8192 + 4088);
    word(dsm.node()).store(value, Ordering::Relaxed);
    dsm.barrier()?;
    let others = (0..dsm.nodes()).filter(|node| word(*node).load(Ordering::Relaxed) != value);
    *wrong += others.count() as u32;
    dsm.barrier()
}
