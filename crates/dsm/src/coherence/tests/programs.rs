//! Random programs without data races. The oracle is one array, changed at each write.

use super::world::{Program, run};
use crate::coherence::{DsmError, PAGE_BYTES, Recovery};
use crate::protocol::{Placement, Violation};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGES: usize = 12;

/// Locks of a program. Each guards bytes of its own, spread over all pages.
const LOCKS: usize = 3;

/// Bytes that a program uses on each page: neighbours, so that all share pages.
const BYTES_PER_PAGE: usize = 24;

fn placement(rng: &mut fastrand::Rng, nodes: usize) -> Placement {
    match rng.u8(..3) {
        0 => Placement::Blocks,
        1 => Placement::Cyclic(rng.u32(1..4)),
        _ => Placement::On(rng.u16(..nodes as u16)),
    }
}

/// A quarter of the programs writes pages and reads them in turn, as a stencil does. Half of them
/// use locks.
fn is_stencil(seed: u64) -> bool {
    seed % 4 == 3
}

fn uses_locks(seed: u64) -> bool {
    seed % 4 < 2
}

/// Returns the owner of a byte in a phase: it alone may write it and read it, without a lock.
/// `None` if all may read it and none writes.
fn owner(seed: u64, phase: u64, byte: usize, nodes: usize) -> Option<usize> {
    if is_stencil(seed) {
        let owner = (seed as usize + byte / BYTES_PER_PAGE) % nodes;
        return (phase % 2 == 0).then_some(owner);
    }
    let mut rng = fastrand::Rng::with_seed(seed ^ phase << 32 ^ (byte as u64) << 8);
    rng.bool().then(|| rng.usize(..nodes))
}

/// Returns the lock of a byte, if it has one.
fn lock_of(byte: usize) -> Option<usize> {
    let lock = byte % (LOCKS + 2);
    (lock < LOCKS).then_some(lock)
}

/// Returns the region and the offset of a byte.
fn place(byte: usize) -> (usize, usize) {
    let region = if lock_of(byte).is_some() { 0 } else { byte % 2 };
    let offset = byte / BYTES_PER_PAGE * PAGE_BYTES + 100 + byte % BYTES_PER_PAGE;
    (region, offset)
}

/// One memory, as nodes would share it on one machine.
struct Oracle {
    bytes: Vec<u8>,
    /// The bytes at each barrier that any node has passed.
    at_barriers: Vec<Vec<u8>>,
    /// Nodes without which the others have gone on. Their writes count no more.
    lost: Vec<usize>,
}

impl Oracle {
    fn new() -> Mutex<Self> {
        let bytes = vec![0; PAGES * BYTES_PER_PAGE];
        Mutex::new(Self {
            at_barriers: vec![bytes.clone()],
            bytes,
            lost: Vec::new(),
        })
    }

    /// Notes that a node has passed a barrier. No node has written since the first one did.
    fn pass(&mut self, me: usize, barriers: usize) {
        if !self.lost.contains(&me) && self.at_barriers.len() == barriers {
            self.at_barriers.push(self.bytes.clone());
        }
    }

    /// Goes back with the first node that has recovered.
    fn recover(&mut self, recovery: &Recovery) {
        if self.lost.len() < recovery.lost.len() {
            self.at_barriers.truncate(recovery.barriers as usize + 1);
            self.bytes
                .clone_from(&self.at_barriers[recovery.barriers as usize]);
            self.lost.clone_from(&recovery.lost);
        }
        assert_eq!(self.lost, recovery.lost);
    }
}

fn check(oracle: &Mutex<Oracle>, program: &Program, byte: usize) {
    let oracle = || oracle.lock().unwrap();
    let expected = oracle().bytes[byte];
    let found = program.read(place(byte));
    // The read may have let others run; nobody may have changed this byte meanwhile.
    if !program.is_doomed() && !oracle().lost.contains(&program.me) {
        assert_eq!(found, expected, "byte {byte} on node {}", program.me);
    }
}

fn change(oracle: &Mutex<Oracle>, program: &Program, byte: usize, value: u8) {
    program.write(place(byte), value);
    let mut oracle = oracle.lock().unwrap();
    if !oracle.lost.contains(&program.me) {
        oracle.bytes[byte] = value;
    }
}

fn phase(
    seed: u64,
    phase: u64,
    nodes: usize,
    program: &Program,
    oracle: &Mutex<Oracle>,
) -> Result<(), DsmError> {
    let me = program.me as u64;
    let mut rng = fastrand::Rng::with_seed(seed ^ (phase << 16) ^ me << 56);
    let bytes = PAGES * BYTES_PER_PAGE;
    for _ in 0..rng.usize(..40) {
        let byte = rng.usize(..bytes);
        if let (Some(lock), true) = (lock_of(byte), uses_locks(seed)) {
            program.member.lock(lock as u32)?;
            for _ in 0..rng.usize(1..4) {
                let byte = byte / (LOCKS + 2) * (LOCKS + 2) + lock;
                let byte = (byte + (LOCKS + 2) * rng.usize(..3)) % (bytes - bytes % (LOCKS + 2));
                check(oracle, program, byte);
                if rng.bool() {
                    change(oracle, program, byte, rng.u8(..));
                }
                if rng.u8(..4) == 0 {
                    program.pause();
                }
            }
            program.member.unlock(lock as u32)?;
            continue;
        }
        let value = rng.u8(..);
        use_alone(seed, phase, nodes, program, oracle, byte, value);
        if rng.u8(..8) == 0 {
            program.pause();
        }
    }
    // Bytes of few pages that are updated at barriers, so that nodes write to the same ones.
    let updated = (0..3 * BYTES_PER_PAGE).filter(|byte| place(*byte).0 == 1);
    for byte in updated.filter(|_| phase % 2 == seed % 2 || me % 2 == phase % 2) {
        let value = rng.u8(..);
        use_alone(seed, phase, nodes, program, oracle, byte, value);
    }
    Ok(())
}

/// Reads a byte without a lock if nobody writes it in this phase, and changes it if this node owns
/// it.
fn use_alone(
    seed: u64,
    phase: u64,
    nodes: usize,
    program: &Program,
    oracle: &Mutex<Oracle>,
    byte: usize,
    value: u8,
) {
    match owner(seed, phase, byte, nodes) {
        None => check(oracle, program, byte),
        Some(owner) if owner == program.me => {
            check(oracle, program, byte);
            change(oracle, program, byte, value);
        }
        Some(_) => {}
    }
}

/// Returns the number of pages that were refreshed.
fn run_random(seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let nodes = rng.usize(1..7);
    let phases = rng.u64(1..14);
    let placement = placement(&mut rng, nodes);
    let oracle = Oracle::new();
    let refreshed = AtomicU64::new(0);
    run(seed, (nodes, 0), PAGES, placement, |program| {
        for number in 0..phases {
            phase(seed, number, nodes, program, &oracle).unwrap();
            program.member.barrier().unwrap();
        }
        for byte in 0..PAGES * BYTES_PER_PAGE {
            check(&oracle, program, byte);
        }
        program.member.barrier().unwrap();
        let counts = program.member.counts();
        refreshed.fetch_add(counts.refreshed_pages, Ordering::Relaxed);
    });
    refreshed.into_inner()
}

/// `KUMI_DSM_SEEDS` sets the number of programs.
#[test]
fn programs__random_without_races__read_what_one_memory_would_have() {
    let seeds = std::env::var("KUMI_DSM_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let refreshed: u64 = (0..seeds).map(run_random).sum();
    assert!(refreshed > seeds, "{refreshed} refreshed pages");
}

/// Runs phases on nodes of which some are lost. What is read then is what one memory would have
/// that goes back to a barrier at each loss.
fn run_random_with_losses(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (nodes, losses) = (rng.usize(1..7), rng.usize(1..4));
    let phases = rng.usize(1..10);
    let placement = placement(&mut rng, nodes);
    let oracle = Oracle::new();
    run(seed, (nodes, losses), PAGES, placement, |program| {
        // No region is there before the first barrier.
        let first = program.member.barrier();
        let mut passed = 0;
        let mut outcome = first;
        loop {
            match outcome {
                Ok(()) => {
                    passed += 1;
                    oracle.lock().unwrap().pass(program.me, passed);
                }
                Err(DsmError::Lost { .. }) => match program.member.recover(0) {
                    Ok((recovery, _)) => {
                        oracle.lock().unwrap().recover(&recovery);
                        passed = recovery.barriers as usize;
                    }
                    Err(DsmError::Minority { .. } | DsmError::PagesLost { .. }) => return,
                    Err(DsmError::Violation(Violation::GivenUp)) => return,
                    Err(error) => panic!("node {}: {error}", program.me),
                },
                Err(error) => panic!("node {}: {error}", program.me),
            }
            if passed == 0 {
                // Regions that were allocated before the first barrier are gone.
                return;
            }
            if passed == phases + 1 {
                break;
            }
            outcome = phase(seed, passed as u64, nodes, program, &oracle);
            if outcome.is_ok() {
                outcome = program.member.barrier();
            }
        }
        for byte in 0..PAGES * BYTES_PER_PAGE {
            check(&oracle, program, byte);
        }
    });
}

#[test]
fn programs__whose_nodes_are_lost__go_on_from_the_last_barrier() {
    let seeds = std::env::var("KUMI_DSM_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        run_random_with_losses(seed);
    }
}
