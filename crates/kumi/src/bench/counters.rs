//! What the kernel counted while a workload ran: TCP's recovery, and processor time.

use super::hosts::Hosts;
use std::collections::BTreeMap;

/// The kernel's counters of one host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    by_name: BTreeMap<String, u64>,
    /// Time in which some CPU was not idle, in clock ticks.
    busy_ticks: u64,
}

/// Clock ticks a second in /proc/stat, which Linux fixes for user space at 100.
const TICKS_PER_SECOND: u64 = 100;

impl Counters {
    /// Reads the counters of `host`'s network and of the machine it is on.
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
            // Two lines a protocol: "Tcp: NAME NAME …", "Tcp: VALUE VALUE …".
            match head.take() {
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

    /// How much the counter `name` grew since `before`; 0 where the kernel does not have it.
    pub fn grown(&self, before: &Self, name: &str) -> u64 {
        let of = |counters: &Self| counters.by_name.get(name).copied().unwrap_or(0);
        of(self).saturating_sub(of(before))
    }

    /// CPU seconds spent since `before`, all CPUs and all processes of the machine together: what a
    /// variant costs is spent in soft interrupts as often as in a process.
    pub fn cpu_s(&self, before: &Self) -> f64 {
        self.busy_ticks.saturating_sub(before.busy_ticks) as f64 / TICKS_PER_SECOND as f64
    }
}

/// user, system, irq, softirq of the `cpu` line: not idle, iowait, nor what others stole; nor nice
/// processes, which are those that keep the processors awake.
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
        assert_eq!(after.grown(&before, "RetransSegs"), 3);
        assert_eq!(after.grown(&before, "TCPTimeouts"), 2);
        assert_eq!(after.grown(&before, "Absent"), 0);
        assert_eq!(after.cpu_s(&before), 1.0);
    }

    #[test]
    fn counters__line_of_one_cpu__is_not_the_sum() {
        assert_eq!(Counters::parse(BEFORE).busy_ticks, 153);
    }
}
