//! Keeps the processors of a virtual machine out of their halt state while something is measured.
//!
//! A virtual processor that halts goes back to the hypervisor, and on a busy machine it returns late.
//! The kernel's PM QoS interface (`Documentation/power/pm_qos_interface.rst`) takes a wake-up latency
//! that it must not exceed; with 0 µs the idle loop polls instead of halting. `tuned`'s network-latency
//! profile makes the same request.
//!
//! A polling idle loop is a quiescent state for RCU. Threads of the idle scheduling class that spin
//! are not: they delayed every grace period by seconds, and with it each change of a network device
//! (`docs/perf-log.md`, 2026-11-24).

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The PM QoS device: an open descriptor holds the last value written to it, in microseconds.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// A request that idle processors wake without delay. It ends when the value is dropped.
#[derive(Debug)]
pub struct CpuLatency {
    request: Option<File>,
}

impl CpuLatency {
    /// Makes the request on a virtual machine. On a real one, and without the privilege to write to
    /// the PM QoS device, the processors keep their idle states.
    pub fn hold_on_virtual_machine() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let request = is_virtual(&cpuinfo)
            .then(|| hold(Path::new(DEVICE)))
            .flatten();
        Self { request }
    }

    /// Whether the kernel holds the request.
    pub fn is_held(&self) -> bool {
        self.request.is_some()
    }
}

/// Writes a latency of 0 µs to the PM QoS `device`; `None` if it cannot be opened or written.
fn hold(device: &Path) -> Option<File> {
    let mut file = OpenOptions::new().write(true).open(device).ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}

/// Whether `cpuinfo`, the text of `/proc/cpuinfo`, describes virtual processors. Arm's do not say:
/// there a machine counts as real.
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
    fn cpu_latency__cpuinfo__tells_a_virtual_machine() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu hypervisor avx\n"));
        assert!(!is_virtual(
            "processor : 0\nflags\t\t: fpu avx\nmodel name : hypervisor\n"
        ));
    }

    #[test]
    fn cpu_latency__device_absent__is_not_held() {
        assert!(hold(Path::new("/nonexistent/cpu_dma_latency")).is_none());
    }

    /// Time that the processors spent in the polling idle state, in microseconds.
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
            return; // a real machine, no privilege, or no idle states
        }
        let before = polled_us();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while polled_us() == before {
            assert!(
                std::time::Instant::now() < until,
                "no processor polled in 20 s"
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
