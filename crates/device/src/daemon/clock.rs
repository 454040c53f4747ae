//! The core's clock: the kernel's, less the time in which this process did not run.
//!
//! A loop that was stopped (SIGSTOP, a frozen cgroup, a suspended virtual machine) received nothing
//! in that time. With the full time, the core would take this for silence and declare all paths
//! down. So time that the loop cannot have spent itself does not count.

use std::cell::Cell;
use std::time::Instant;

/// Longest time between two readings of the clock that the loop itself can cause, in ns.
///
/// The loop sleeps 100 ms at most, and reads the clock again after a few milliseconds of work. The
/// value is below the 300 ms after which the core declares a path down (`SILENCE_MAX_NS`).
const READ_INTERVAL_NS_MAX: u64 = 250_000_000;
/// Time that is counted instead of a longer time between two readings, in ns.
const COUNTED_NS: u64 = 10_000_000;

/// Time since the start of the loop, with and without the time in which the process was stopped.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    last_read_ns: Cell<u64>,
    paused_ns: Cell<u64>,
    unreported_ns: Cell<u64>,
}

impl Clock {
    /// Returns a clock that starts at `start`.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            last_read_ns: Cell::default(),
            paused_ns: Cell::default(),
            unreported_ns: Cell::default(),
        }
    }

    /// Returns the time since the start, in ns.
    pub fn elapsed_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns the time since the start in which the process ran, in ns: the core's clock. It never
    /// goes back.
    pub fn now_ns(&self) -> u64 {
        self.now_ns_at(self.elapsed_ns())
    }

    fn now_ns_at(&self, elapsed_ns: u64) -> u64 {
        let interval_ns = elapsed_ns - self.last_read_ns.replace(elapsed_ns);
        if interval_ns > READ_INTERVAL_NS_MAX {
            let pause_ns = interval_ns - COUNTED_NS;
            self.paused_ns.set(self.paused_ns.get() + pause_ns);
            self.unreported_ns.set(self.unreported_ns.get() + pause_ns);
        }
        elapsed_ns - self.paused_ns.get()
    }

    /// Returns the time for which the process was stopped since the last call, in ns; `None` if it
    /// was not.
    pub fn take_pause(&self) -> Option<u64> {
        Some(self.unreported_ns.take()).filter(|pause_ns| *pause_ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock__process_stopped__does_not_count_that_time() {
        const MS: u64 = 1_000_000;
        let clock = Clock::new(Instant::now());
        assert_eq!(clock.now_ns_at(100 * MS), 100 * MS);
        assert_eq!(clock.now_ns_at(220 * MS), 220 * MS);
        assert_eq!(clock.take_pause(), None);
        assert_eq!(clock.now_ns_at(3_220 * MS), 230 * MS);
        assert_eq!(clock.take_pause(), Some(2_990 * MS));
        assert_eq!(clock.take_pause(), None);
        assert_eq!(clock.now_ns_at(3_320 * MS), 330 * MS);
    }
}
