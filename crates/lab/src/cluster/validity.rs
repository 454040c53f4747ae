//! Judges whether a run is valid.
//!
//! Four things make a result depend on the machine instead of the network:
//!
//! - an emulator that is late,
//! - a hypervisor that takes the processors away,
//! - a program outside the lab that does so,
//! - ranks that wait for a processor while others run.
//!
//! Each is measured. A run in which one was too large is void, and the reason is given (ADR 005). A
//! run in which frames were lost between hosts and emulator is void, too (ADR 016).

use super::holder::Holder;
use super::others::Others;
use crate::emulator::{Lateness, Report};
use crate::topology::{End, Topology};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Instant;

/// Smallest ratio of a queue's drain time to the 99th percentile of the emulator's lateness
/// (ADR 016).
///
/// Lateness does not change which frames are dropped. A queue fills at the times at which frames
/// left their hosts, and drains at the times at which that is due. A late frame arrives together
/// with the frames behind it, and a sender that is clocked by acknowledgements repeats the clump.
/// The limit allows this for one frame in a hundred, by a tenth of a queue. The interrupts of a
/// real NIC do more than that to every frame.
const DRAIN_PER_LATENESS_MIN: f64 = 10.0;

/// Largest share of the processors' time that the hypervisor may take: the smallest difference that
/// a bench plan checks for. On a shared machine it seldom takes less. The stolen time makes all
/// variants slower, not one.
const STEAL_MAX: f64 = 0.03;

/// Largest share of the processors' time that programs outside the lab may take. If a lab needs
/// every processor, a run loses that share. It is about three times the hypervisor's share, because
/// a desktop or a cluster's agents take some per cent at any time.
const OTHERS_MAX: f64 = 0.10;

/// Longest mean wait of a process for a processor, in microseconds. It is a tenth of 40 ms. If
/// ranks do not yield the processor, the scheduler determines results below 40 ms.
const RUN_QUEUE_WAIT_MAX_US: f64 = 4_000.0;

/// Result of the judgement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    /// Reasons why the run is void, one sentence each. Empty if it is valid.
    pub void: Vec<String>,
    /// Lateness of the emulator, if there is one.
    pub lateness: Option<Lateness>,
    /// Frames that the kernel refused from the emulator, since the emulator started.
    pub refused_frames: u64,
    /// Share of processor time that the hypervisor took (0 to 1).
    pub steal: f64,
    /// Share of processor time that programs outside the lab took (0 to 1).
    #[serde(default)]
    pub others: f64,
    /// Longest mean wait for a processor among the processes now in a host, in microseconds. The
    /// mean is over the life of the process.
    pub run_queue_wait_us: f64,
}

/// Observation of a run.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    ticks: (u64, u64),
    others: Others,
}

/// Returns the stolen ticks and all ticks of all processors, since boot.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or("")
        .split_ascii_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0))
        .collect();
    // The fields are user nice system idle iowait irq softirq steal. Guest time is part of user.
    (
        numbers.get(7).copied().unwrap_or(0),
        numbers.iter().take(8).sum(),
    )
}

/// Returns the mean wait of process `pid` for a processor over its life, in microseconds.
fn mean_wait_us(pid: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut numbers = text
        .split_ascii_whitespace()
        .map(|n| n.parse::<f64>().unwrap_or(0.0));
    let (_ran_ns, waited_ns, slices) = (numbers.next()?, numbers.next()?, numbers.next()?);
    (slices > 0.0).then(|| waited_ns / slices / 1000.0)
}

/// Returns the longest mean wait of any process in the hosts' network namespaces, in microseconds.
fn worst_wait_us(hosts: &[Holder]) -> f64 {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let host_namespaces: Vec<_> = hosts
        .iter()
        .filter_map(|host| namespace(&host.pid().to_string()))
        .collect();
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0.0;
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|pid| namespace(pid).is_some_and(|namespace| host_namespaces.contains(&namespace)))
        .filter_map(|pid| mean_wait_us(&pid))
        .fold(0.0, f64::max)
}

impl Watch {
    /// Starts the observation now.
    pub fn start(hosts: &[Holder]) -> Self {
        Self {
            start: Instant::now(),
            ticks: ticks(),
            others: Others::count(hosts),
        }
    }

    /// Judges the time since the start.
    pub fn judge(&self, topology: &Topology, report: Option<Report>, hosts: &[Holder]) -> Validity {
        let (stolen, total) = ticks();
        let elapsed = total.saturating_sub(self.ticks.1).max(1) as f64;
        let steal = stolen.saturating_sub(self.ticks.0) as f64 / elapsed;
        let others = self.others.ticks() as f64 / elapsed;
        let run_queue_wait_us = worst_wait_us(hosts);
        let mut void = Vec::new();
        if let Some(report) = &report {
            void.extend(late_for_queues(topology, report.lateness.p99_us));
        }
        if let Some(lost @ 1..) = report.map(|report| report.overruns) {
            void.push(format!(
                "{lost} frames were lost between the emulator and the hosts, outside the emulated network; the limit is 0"
            ));
        }
        if steal > STEAL_MAX {
            void.push(format!(
                "the hypervisor took {:.1} % of the processors over {:.1} s; the limit is {:.0} %",
                steal * 100.0,
                self.start.elapsed().as_secs_f64(),
                STEAL_MAX * 100.0
            ));
        }
        if others > OTHERS_MAX {
            void.push(format!(
                "programs outside the lab took {:.1} % of the processors over {:.1} s; the limit is {:.0} %",
                others * 100.0,
                self.start.elapsed().as_secs_f64(),
                OTHERS_MAX * 100.0
            ));
        }
        if run_queue_wait_us > RUN_QUEUE_WAIT_MAX_US {
            void.push(format!(
                "a process in a host waited {run_queue_wait_us:.0} us for a processor on average; the limit is {RUN_QUEUE_WAIT_MAX_US:.0} us"
            ));
        }
        Validity {
            void,
            lateness: report.map(|report| report.lateness),
            refused_frames: report.map_or(0, |report| report.refused),
            steal,
            others,
            run_queue_wait_us,
        }
    }
}

/// Returns a sentence for each switch queue that drains too fast for an emulator that is `p99_us`
/// late.
fn late_for_queues(topology: &Topology, p99_us: f64) -> Vec<String> {
    let mut void = Vec::new();
    for link in &topology.links {
        let Some(rate) = link.rate else { continue };
        for end in &link.ends {
            let End::Port(switch) = end else { continue };
            let switch = &topology.switches[*switch];
            let drain_us = rate.time_ns(link.port_queue_bytes(switch)) as f64 / 1000.0;
            if drain_us < DRAIN_PER_LATENESS_MIN * p99_us {
                let sentence = format!(
                    "the emulator was {p99_us:.0} us late (p99) and a port of {} drains in {drain_us:.0} us; expected at least {DRAIN_PER_LATENESS_MIN:.0} times the lateness",
                    switch.name
                );
                if !void.contains(&sentence) {
                    void.push(sentence);
                }
            }
        }
    }
    void
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_for_queues__late_emulator__names_lateness_drain_time_and_limit() {
        let text = r#"
            name = "t"
            host = [{ name = "h1" }, { name = "h2" }]
            switch = [{ name = "s1" }]
            link = [
                { between = ["h1:eth1", "s1"], rate = "1Gbit" },
                { between = ["h2:eth1", "s1"], rate = "1Gbit" },
            ]
        "#;
        let topology = Topology::parse("t.toml", text).unwrap();
        // A port of 128 KiB drains in 1049 us at 1 Gb/s.
        assert!(late_for_queues(&topology, 100.0).is_empty());
        let expected = "the emulator was 200 us late (p99) and a port of s1 drains in 1049 us; \
                        expected at least 10 times the lateness";
        assert_eq!(late_for_queues(&topology, 200.0), [expected]);
    }
}
