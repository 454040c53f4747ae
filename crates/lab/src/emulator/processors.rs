//! Reserves one processor for the emulator and leaves the others to the hosts, for their programs
//! and for the processing of received frames.
//!
//! By default the kernel runs a receiver's whole TCP in the context of the thread that hands it the
//! frame. That thread is the emulator, which is then late for the next frame. At 400 Mb/s, frame by
//! frame, it was 18 ms late at the 99th percentile, against 0.1 ms with the work divided.
//!
//! A real-time thread also waits for the end of the kernel's work for another program. With sixteen
//! MPI ranks it was 0.7 ms late, against 0.1 ms with programs on other processors
//! (`docs/perf-log.md`, 2026-11-22).

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Division of the processors between emulator and hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// Processor of the emulator.
    emulator: usize,
    /// All other processors that this process may use, in ascending order. There is at least one.
    receivers: Vec<usize>,
}

impl Processors {
    /// Divides the processors that the calling thread may use. Returns `None` if there is only one.
    pub fn divide() -> Option<Self> {
        let usable = sched_getaffinity(Pid::from_raw(0)).ok()?;
        let usable = (0..CpuSet::count()).filter(|cpu| usable.is_set(*cpu).unwrap_or(false));
        Self::from_usable(usable.collect())
    }

    fn from_usable(mut usable: Vec<usize>) -> Option<Self> {
        let emulator = usable.pop()?;
        (!usable.is_empty()).then_some(Self {
            emulator,
            receivers: usable,
        })
    }

    /// Pins the calling thread to the emulator's processor, and returns whether it is there. If the
    /// kernel refuses, the thread stays where it was: late runs are void, whatever made them late.
    pub fn pin(&self) -> bool {
        let mut own = CpuSet::new();
        let pinned = own
            .set(self.emulator)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &own));
        pinned.is_ok()
    }

    /// Returns the number of the emulator's processor.
    pub fn emulator(&self) -> usize {
        self.emulator
    }

    /// Returns the other processors in the format of `rps_cpus`: words of 32 bits in hexadecimal,
    /// the highest first.
    pub fn receivers_mask(&self) -> String {
        let words = self.receivers.iter().max().map_or(1, |cpu| cpu / 32 + 1);
        let mut mask = vec![0_u32; words];
        for cpu in &self.receivers {
            mask[cpu / 32] |= 1 << (cpu % 32);
        }
        let words: Vec<String> = mask
            .iter()
            .rev()
            .map(|word| format!("{word:08x}"))
            .collect();
        words.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors__two__are_split_between_emulator_and_receivers() {
        let processors = Processors::from_usable(vec![0, 1]).expect("there are two");
        assert_eq!(processors.emulator, 1);
        assert_eq!(processors.receivers_mask(), "00000001");
        assert_eq!(Processors::from_usable(vec![3]), None);
    }

    #[test]
    fn mask__more_than_32_processors__has_the_highest_word_first() {
        let processors = Processors::from_usable(vec![0, 33, 40]).expect("there are three");
        assert_eq!(processors.receivers_mask(), "00000002,00000001");
    }
}
