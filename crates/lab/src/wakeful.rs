//! Processors that do not fall asleep while something is measured.
//!
//! A virtual processor that halts is given back to the hypervisor, and on a busy machine it comes back
//! late: the more a program sleeps and wakes, the more of its time is stolen. Two hosts of 1 Gb/s read
//! 260 to 850 Mb/s with a third to a half of the time stolen, and 1450 to 1590 Mb/s with 1 to 7 % once every processor had a
//! thread that runs only when nothing else wants to. Clusters are tuned alike: without deep idle
//! states (`tuned`'s network-latency). A real machine's idle states are left alone.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Rounds of the loop between two offers of the processor to whoever waits for it.
const ROUNDS: u32 = 200;

/// Keeps this process's processors awake until it is dropped.
#[derive(Debug)]
pub struct Wakeful {
    ends: Arc<AtomicBool>,
    fillers: Vec<JoinHandle<()>>,
}

impl Wakeful {
    /// On a virtual machine, a filler on each processor; none elsewhere, or where the kernel refuses.
    pub fn on_virtual_machine() -> Self {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if is_virtual(&text) {
            Self::start()
        } else {
            Self {
                ends: Arc::default(),
                fillers: Vec::new(),
            }
        }
    }

    fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let fillers = (0..CpuSet::count())
            .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
            .map(|cpu| {
                let ends = Arc::clone(&ends);
                std::thread::spawn(move || fill(cpu, &ends))
            })
            .collect();
        Self { ends, fillers }
    }

    /// Whether it does anything.
    pub fn is_on(&self) -> bool {
        !self.fillers.is_empty()
    }
}

impl Drop for Wakeful {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for filler in self.fillers.drain(..) {
            let _ = filler.join();
        }
    }
}

/// Whether the processors of `/proc/cpuinfo`'s `text` are a hypervisor's. Arm's do not say: there a
/// machine counts as real.
fn is_virtual(text: &str) -> bool {
    text.lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn fill(cpu: usize, ends: &AtomicBool) {
    let mut here = CpuSet::new();
    let placed = here
        .set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &here));
    if placed.is_err() || kumi_sys::punctual::become_filler().is_err() {
        return; // it would stand in the way of what is measured
    }
    while !ends.load(Ordering::Relaxed) {
        for round in 0..ROUNDS {
            // Not a spin hint: hypervisors take a processor away that says it only waits.
            std::hint::black_box(round);
        }
        // The scheduler's fairness picks even an idle-class thread now and then, until the next tick.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeful__cpuinfo__tells_a_virtual_machine() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu hypervisor avx\n"));
        assert!(!is_virtual(
            "processor : 0\nflags\t\t: fpu avx\nmodel name : hypervisor\n"
        ));
    }

    #[test]
    fn wakeful__fillers__run_as_nice_time_and_end_with_it() {
        let nice_ticks = || {
            let text = fs::read_to_string("/proc/stat").unwrap();
            let line = text.lines().next().unwrap().to_owned();
            line.split_whitespace()
                .nth(2)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let wakeful = Wakeful::start();
        assert!(wakeful.is_on());
        let before = nice_ticks();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while nice_ticks() == before {
            assert!(std::time::Instant::now() < until, "no filler ever ran");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(wakeful); // joins: a filler that did not end would hang here
    }
}
