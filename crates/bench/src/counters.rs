//! Counters of the kernel around a workload: TCP's loss recovery and processor time.

use super::hosts::Hosts;
use std::collections::BTreeMap;

/// Counters of one host's kernel at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    by_name: BTreeMap<String, u64>,
    /// Time in which a CPU was not idle, summed over all CPUs, in clock ticks.
    busy_ticks: u64,
}

/// Clock ticks per second in /proc/stat. Linux fixes the value for user space at 100.
const TICKS_PER_SECOND: u64 = 100;

impl Counters {
    /// Reads the counters of `host`'s network and of its machine.
    pub fn read(hosts: &dyn Hosts, host: &str) -> anyhow::Result<Self> {
        let text = hosts.run(
            host,
            &["cat", "/proc/net/snmp", "/proc/net/netstat", "/proc/stat"],
        )?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut counters = Self::default();
        let mut head: Option<&str> = None;
        for line in text.lines() {
            if let Some(cpu) = line.strip_prefix("cpu ") {
                counters.busy_ticks = busy_ticks(cpu);
                continue;
            }
            // Each protocol has two lines: "Tcp: NAME NAME …" and "Tcp: VALUE VALUE …".
            match head.take() {
                // It has the names of UDP.
                Some(_) if line.starts_with("UdpLite:") => {}
                Some(names) if names.split(':').next() == line.split(':').next() => {
                    let pairs = names
                        .split_whitespace()
                        .zip(line.split_whitespace())
                        .skip(1);
                    counters.by_name.extend(
                        pairs.filter_map(|(name, value)| Some((name.into(), value.parse().ok()?))),
                    );
                }
                _ => head = Some(line),
            }
        }
        counters
    }

    /// Returns the increase of the counter `name` since `before`; 0 if the kernel does not have it.
    pub fn growth(&self, before: &Self, name: &str) -> u64 {
        let count = |counters: &Self| counters.by_name.get(name).copied().unwrap_or(0);
        count(self).saturating_sub(count(before))
    }

    /// Returns the CPU seconds spent since `before`, summed over all CPUs and all processes of the
    /// machine. A variant's cost falls on soft interrupts as well as on processes.
    pub fn cpu_s(&self, before: &Self) -> f64 {
        self.busy_ticks.saturating_sub(before.busy_ticks) as f64 / TICKS_PER_SECOND as f64
    }
}

/// Sums user, system, irq and softirq time of the `cpu` line. Idle, iowait, steal and nice time do
/// not count. Nice time was that of the threads that kept the processors awake before PM QoS did
/// (`docs/perf-log.md`, 2026-11-24).
fn busy_ticks(cpu: &str) -> u64 {
    let fields: Vec<u64> = cpu
        .split_whitespace()
        .map(|text| text.parse().unwrap_or(0))
        .collect();
    [0, 2, 5, 6]
        .iter()
        .filter_map(|index| fields.get(*index))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Tcp: RtoMin InSegs RetransSegs\nTcp: 200 10 1\n\
        TcpExt: TCPOFOQueue TCPTimeouts\nTcpExt: 5 0\ncpu  100 0 50 900 7 1 2 3 0 0\ncpu0 1 2\n";

    #[test]
    fn counters__two_readings__give_the_growth() {
        let before = Counters::parse(BEFORE);
        let after = Counters::parse(
            "Tcp: RtoMin InSegs RetransSegs\nTcp: 200 30 4\n\
             TcpExt: TCPOFOQueue TCPTimeouts\nTcpExt: 5 2\ncpu  150 77 90 900 7 1 12 3 0 0\n",
        );
        assert_eq!(after.growth(&before, "RetransSegs"), 3);
        assert_eq!(after.growth(&before, "TCPTimeouts"), 2);
        assert_eq!(after.growth(&before, "Absent"), 0);
        assert_eq!(after.cpu_s(&before), 1.0);
    }

    #[test]
    fn counters__udp_lite__does_not_replace_udp() {
        let counters = Counters::parse(
            "Udp: InDatagrams RcvbufErrors\nUdp: 10 4\nUdpLite: InDatagrams RcvbufErrors\nUdpLite: 0 0\n",
        );
        assert_eq!(counters.growth(&Counters::default(), "RcvbufErrors"), 4);
    }

    #[test]
    fn counters__per_cpu_line__is_not_added_to_the_total() {
        assert_eq!(Counters::parse(BEFORE).busy_ticks, 153);
    }
}
