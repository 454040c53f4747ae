//! Litmus tests of shared memory: short programs whose outcomes the model forbids or allows.
//!
//! | test | node 0 | node 1 | node 2 | node 3 | forbidden |
//! |---|---|---|---|---|---|
//! | message passing | x, then y | reads y, then x | | | y new, x old |
//! | store buffering | x, then reads y | y, then reads x | | | both old |
//! | load buffering | reads x, then y | reads y, then x | | | both new |
//! | IRIW | x | y | reads x, then y | reads y, then x | each sees the other's order |
//! | WRC | x | reads x, then y | reads y, then x | | x and y new, then x old |
//!
//! Each access is under a lock of its variable, except where a test says otherwise: in message
//! passing both are under one lock, and in WRC the last read of x is under the lock of y, so that
//! x must have come with it through node 1. In a further test, a barrier stands between the writes
//! and the reads. The variables of a test lie in one page or in several, with different homes.

use kumi_dsm::coherence::DsmError;
use kumi_dsm::protocol::Placement;
use kumi_dsm::runtime::{Dsm, SharedRegion};
use std::sync::atomic::Ordering;

/// Nodes that take part. Others only meet at barriers.
pub const NODES: usize = 4;

/// Instances of tests between two barriers.
const BATCH: u64 = 64;

/// Words of a variable: it has a page of its own, or shares one with others.
const VARIABLES: usize = 2 * BATCH as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    MessagePassing,
    StoreBuffering,
    LoadBuffering,
    Iriw,
    Wrc,
    Barrier,
}

const TESTS: [Test; 6] = [
    Test::MessagePassing,
    Test::StoreBuffering,
    Test::LoadBuffering,
    Test::Iriw,
    Test::Wrc,
    Test::Barrier,
];

/// Outcome of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Instances that have run.
    pub rounds: u64,
    /// Instances whose outcome the model forbids.
    pub forbidden: u64,
    /// Instances in which some node saw a new value, so that they say something.
    pub telling: u64,
}

struct Run<'a> {
    dsm: &'a Dsm,
    /// The variables, each in a word.
    variables: SharedRegion,
    /// Two values that each node has read in each instance.
    seen: SharedRegion,
}

impl Run<'_> {
    /// Returns the offset of a variable. Even instances share pages, odd ones do not.
    fn place(instance: u64, variable: usize) -> usize {
        let index = instance as usize * 2 + variable;
        match instance % 2 {
            0 => index * 8,
            _ => (1 + index) * 4096 + index % 500 * 8,
        }
    }

    fn lock_of(instance: u64, variable: usize) -> u32 {
        (instance as usize * 2 + variable) as u32
    }

    fn word(&self, instance: u64, variable: usize) -> &std::sync::atomic::AtomicU64 {
        self.variables
            .memory()
            .word(Self::place(instance, variable))
    }

    fn read(&self, instance: u64, variable: usize) -> u64 {
        self.word(instance, variable).load(Ordering::Relaxed)
    }

    fn write(&self, instance: u64, variable: usize, value: u64) {
        self.word(instance, variable)
            .store(value, Ordering::Relaxed);
    }

    /// Does something under the lock of a variable.
    fn locked<T>(
        &self,
        instance: u64,
        variable: usize,
        action: impl FnOnce() -> T,
    ) -> Result<T, DsmError> {
        let lock = Self::lock_of(instance, variable);
        self.dsm.lock(lock)?;
        let result = action();
        self.dsm.unlock(lock)?;
        Ok(result)
    }

    fn locked_read(&self, instance: u64, variable: usize) -> Result<u64, DsmError> {
        self.locked(instance, variable, || self.read(instance, variable))
    }

    fn locked_write(&self, instance: u64, variable: usize, value: u64) -> Result<(), DsmError> {
        self.locked(instance, variable, || self.write(instance, variable, value))
    }

    /// Does this node's part of an instance. Returns the two values that it has read.
    fn take_part(&self, test: Test, instance: u64, value: u64) -> Result<[u64; 2], DsmError> {
        let (i, node) = (instance, self.dsm.node());
        // In half of them each node has copies before, which must be closed in time. The values say
        // nothing.
        if instance / 2 % 2 == 0 {
            let _ = (self.read(i, 0), self.read(i, 1));
        }
        Ok(match (test, node) {
            (Test::MessagePassing, 0) => self.locked(i, 0, || {
                self.write(i, 0, value);
                self.write(i, 1, value);
                [0, 0]
            })?,
            (Test::MessagePassing, 1) => {
                self.locked(i, 0, || [self.read(i, 1), self.read(i, 0)])?
            }
            (Test::StoreBuffering, 0 | 1) => {
                self.locked_write(i, node, value)?;
                [self.locked_read(i, 1 - node)?, 0]
            }
            (Test::LoadBuffering, 0 | 1) => {
                let seen = self.locked_read(i, node)?;
                self.locked_write(i, 1 - node, value)?;
                [seen, 0]
            }
            (Test::Iriw, 0 | 1) => {
                self.locked_write(i, node, value)?;
                [0, 0]
            }
            (Test::Iriw, 2) => [self.locked_read(i, 0)?, self.locked_read(i, 1)?],
            (Test::Iriw, 3) => [self.locked_read(i, 1)?, self.locked_read(i, 0)?],
            (Test::Wrc, 0) => {
                self.locked_write(i, 0, value)?;
                [0, 0]
            }
            (Test::Wrc, 1) => {
                let seen = self.locked_read(i, 0)?;
                self.locked_write(i, 1, seen)?;
                [seen, 0]
            }
            // If y is new, the write of x has happened before.
            (Test::Wrc, 2) => self.locked(i, 1, || match self.read(i, 1) {
                seen if seen == value => [seen, self.read(i, 0)],
                seen => [seen, seen],
            })?,
            (Test::Barrier, 0 | 1) => {
                self.write(i, node, value);
                [0, 0]
            }
            _ => [0, 0],
        })
    }
}

/// Returns whether an outcome is forbidden, and whether a node saw a new value.
fn judge(test: Test, value: u64, seen: [[u64; 2]; NODES]) -> (bool, bool) {
    let is_new = |node: usize, index: usize| seen[node][index] == value;
    let forbidden = match test {
        Test::MessagePassing => is_new(1, 0) != is_new(1, 1),
        Test::StoreBuffering => !is_new(0, 0) && !is_new(1, 0),
        Test::LoadBuffering => is_new(0, 0) && is_new(1, 0),
        Test::Iriw => is_new(2, 0) && !is_new(2, 1) && is_new(3, 0) && !is_new(3, 1),
        Test::Wrc => is_new(2, 0) && !is_new(2, 1),
        Test::Barrier => !(0..NODES).all(|node| is_new(node, 0) && is_new(node, 1)),
    };
    let telling = seen.iter().flatten().any(|seen| *seen == value);
    (forbidden, telling)
}

/// Runs `rounds` instances. The result counts on node 0.
pub fn run(dsm: &Dsm, rounds: u64) -> Result<Found, DsmError> {
    let run = Run {
        dsm,
        variables: dsm.alloc((2 + VARIABLES) * 4096, Placement::Cyclic(1))?,
        seen: dsm.alloc(NODES * 4096, Placement::Cyclic(1))?,
    };
    let seen_at = |node: usize, instance: u64, index: usize| {
        node * 4096 + (instance as usize * 2 + index) * 8
    };
    let mut found = Found::default();
    while found.rounds < rounds {
        let batch = found.rounds / BATCH;
        let value = batch + 1;
        let test = |instance: u64| TESTS[((instance + batch) % TESTS.len() as u64) as usize];
        let mut own = Vec::new();
        for step in 0..BATCH {
            // The nodes meet in few instances at a time, in different orders.
            let instance = (step + dsm.node() as u64 * (batch % 3)) % BATCH;
            own.push((instance, run.take_part(test(instance), instance, value)?));
        }
        dsm.barrier()?;
        for (instance, mut seen) in own {
            if test(instance) == Test::Barrier {
                seen = [run.read(instance, 0), run.read(instance, 1)];
            }
            for (index, seen) in seen.into_iter().enumerate() {
                let at = seen_at(dsm.node().min(NODES - 1), instance, index);
                if dsm.node() < NODES {
                    run.seen.memory().word(at).store(seen, Ordering::Relaxed);
                }
            }
        }
        dsm.barrier()?;
        for instance in (0..BATCH).filter(|_| dsm.node() == 0) {
            let seen = std::array::from_fn(|node| {
                std::array::from_fn(|index| {
                    let at = seen_at(node, instance, index);
                    run.seen.memory().word(at).load(Ordering::Relaxed)
                })
            });
            let (forbidden, telling) = judge(test(instance), value, seen);
            found.forbidden += u64::from(forbidden);
            found.telling += u64::from(telling);
        }
        found.rounds += BATCH;
        dsm.barrier()?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judge__outcomes_of_each_test__forbids_what_the_model_does() {
        let none = [[0; 2]; NODES];
        let with = |node: usize, seen: [u64; 2]| {
            let mut all = none;
            all[node] = seen;
            all
        };
        assert_eq!(
            judge(Test::MessagePassing, 7, with(1, [7, 6])),
            (true, true)
        );
        assert_eq!(
            judge(Test::MessagePassing, 7, with(1, [7, 7])),
            (false, true)
        );
        assert_eq!(judge(Test::MessagePassing, 7, none), (false, false));
        assert_eq!(judge(Test::StoreBuffering, 7, none), (true, false));
        assert_eq!(
            judge(Test::StoreBuffering, 7, with(1, [7, 0])),
            (false, true)
        );
        let mut both = with(0, [7, 0]);
        both[1] = [7, 0];
        assert_eq!(judge(Test::LoadBuffering, 7, both), (true, true));
        let mut split = with(2, [7, 6]);
        split[3] = [7, 6];
        assert_eq!(judge(Test::Iriw, 7, split), (true, true));
        split[3] = [7, 7];
        assert_eq!(judge(Test::Iriw, 7, split), (false, true));
        assert_eq!(judge(Test::Wrc, 7, with(2, [7, 6])), (true, true));
        assert_eq!(judge(Test::Barrier, 7, [[7; 2]; NODES]), (false, true));
        assert_eq!(judge(Test::Barrier, 7, with(0, [7, 7])), (true, true));
    }
}
