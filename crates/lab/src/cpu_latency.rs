//! Keeps the processors of a virtual machine out of their halt state during a measurement.
//!
//! A virtual processor that halts goes back to the hypervisor, and on a busy machine it returns
//! late. The kernel's PM QoS interface (`Documentation/power/pm_qos_interface.rst`) accepts a limit
//! for the wake-up latency. With a limit of 0 µs, the idle loop polls instead of halting. `tuned`'s
//! network-latency profile makes the same request.
//!
//! A polling idle loop is a quiescent state for RCU. Spinning threads of the idle scheduling class
//! are not. They delayed every grace period by seconds, and with it each change of a network device
//! (`docs/perf-log.md`, 2026-11-24).

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// PM QoS device. The last value written through an open descriptor, in microseconds, holds until
/// the descriptor is closed.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// Request that idle processors wake without delay. It ends when the value is dropped.
#[derive(Debug)]
pub struct CpuLatency {
    request: Option<File>,
}

impl CpuLatency {
    /// Makes the request on a virtual machine. On a physical machine, and without the privilege to
    /// write to the PM QoS device, the processors keep their idle states.
    pub fn hold_on_virtual_machine() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let request = is_virtual(&cpuinfo)
            .then(|| hold(Path::new(DEVICE)))
            .flatten();
        Self { request }
    }

    /// Returns whether the kernel holds the request.
    pub fn is_held(&self) -> bool {
        self.request.is_some()
    }
}

/// Writes a latency of 0 µs to the PM QoS `device`. Returns `None` if it cannot be opened or
/// written.
fn hold(device: &Path) -> Option<File> {
    let mut file = OpenOptions::new().write(true).open(device).ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}

/// Returns whether `cpuinfo`, the text of `/proc/cpuinfo`, has the `hypervisor` flag of virtual
/// processors. Arm has no such flag, so an Arm machine counts as physical.
fn is_virtual(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_latency__cpuinfo_flags__identify_a_virtual_machine() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu hypervisor avx\n"));
        assert!(!is_virtual(
            "processor : 0\nflags\t\t: fpu avx\nmodel name : hypervisor\n"
        ));
    }

    #[test]
    fn cpu_latency__device_absent__is_not_held() {
        assert!(hold(Path::new("/nonexistent/cpu_dma_latency")).is_none());
    }

    /// Returns the time that the processors spent in the polling idle state, in microseconds.
    fn polled_us() -> u64 {
        let cpus = fs::read_dir("/sys/devices/system/cpu")
            .into_iter()
            .flatten();
        cpus.flatten()
            .map(|cpu| cpu.path().join("cpuidle/state0"))
            .filter(|state| {
                fs::read_to_string(state.join("name")).is_ok_and(|n| n.trim() == "POLL")
            })
            .filter_map(|state| {
                fs::read_to_string(state.join("time"))
                    .ok()?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .sum()
    }

    #[test]
    fn cpu_latency__held__idle_processors_poll() {
        let held = CpuLatency::hold_on_virtual_machine();
        if !held.is_held() || !Path::new("/sys/devices/system/cpu/cpu0/cpuidle/state0").exists() {
            return; // physical machine, no privilege, or no idle states
        }
        let initial_us = polled_us();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while polled_us() == initial_us {
            assert!(
                std::time::Instant::now() < deadline,
                "no processor polled in 20 s"
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
