//! Whether a run may be believed.
//!
//! Four things make a number the machine's instead of the network's: an emulator that is late, a
//! hypervisor or a program outside the lab that takes the processor away, and ranks that wait for a
//! processor while others run.
//! Each is measured, and a run in which one was too large is void and says so.

use super::holder::Holder;
use super::others::Others;
use crate::emulator::{Lateness, Report};
use crate::topology::{End, Topology};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Instant;

/// A queue must take this many times the lateness of the emulator's latest hundredth of frames to drain.
///
/// What is dropped does not depend on lateness: a queue is filled at the times at which frames left their
/// hosts, and emptied at the times at which that is due. What a late frame does is arrive together with
/// those behind it, and a sender that acknowledgements clock repeats the clump. Of one frame in a hundred,
/// by a tenth of a queue, is less than the interrupts of a real NIC do to all.
const DRAIN_PER_LATENESS_MIN: f64 = 10.0;

/// Share of the processors' time that the hypervisor may take: the smallest difference that a plan
/// checks for. A shared host seldom gives better; what it took makes all variants slower, not one.
const STEAL_MAX: f64 = 0.03;

/// Share of the processors' time that programs outside the lab may take. Where a lab needs every
/// processor, a run loses that share; three times what is believed of a hypervisor, for a desktop or a
/// cluster's agents take some per cent at any time.
const OTHERS_MAX: f64 = 0.10;

/// Mean time a process may wait for a processor each time it has something to do, in microseconds:
/// a tenth of the 40 ms below which numbers are the scheduler's when ranks do not yield.
const RUN_QUEUE_WAIT_MAX_US: f64 = 4_000.0;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    /// Why the run is void, in sentences; none if it is not.
    pub void: Vec<String>,
    /// The emulator's lateness, if there is an emulator.
    pub lateness: Option<Lateness>,
    /// Frames the kernel would not take from the emulator, since it started.
    pub refused_frames: u64,
    /// Share of processor time that the hypervisor took.
    pub steal: f64,
    /// Share of processor time that programs outside the lab took.
    #[serde(default)]
    pub others: f64,
    /// The longest mean wait for a processor of any process now in a host, in microseconds.
    pub run_queue_wait_us: f64,
}

/// A period that is watched.
#[derive(Debug)]
pub struct Watch {
    since: Instant,
    ticks: (u64, u64),
    others: Others,
}

/// Stolen ticks and all ticks of all processors, since boot.
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
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    (
        numbers.get(7).copied().unwrap_or(0),
        numbers.iter().take(8).sum(),
    )
}

/// Mean wait of process `pid` for a processor, in microseconds, over its life.
fn mean_wait_us(pid: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut numbers = text
        .split_ascii_whitespace()
        .map(|n| n.parse::<f64>().unwrap_or(0.0));
    let (_ran_ns, waited_ns, slices) = (numbers.next()?, numbers.next()?, numbers.next()?);
    (slices > 0.0).then(|| waited_ns / slices / 1000.0)
}

/// The longest mean wait of any process in the hosts' network namespaces.
fn worst_wait_us(hosts: &[Holder]) -> f64 {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let mine: Vec<_> = hosts
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
        .filter(|pid| namespace(pid).is_some_and(|of| mine.contains(&of)))
        .filter_map(|pid| mean_wait_us(&pid))
        .fold(0.0, f64::max)
}

impl Watch {
    /// Begins now.
    pub fn start(hosts: &[Holder]) -> Self {
        Self {
            since: Instant::now(),
            ticks: ticks(),
            others: Others::count(hosts),
        }
    }

    /// Judges the time since the start.
    pub fn judge(&self, topology: &Topology, report: Option<Report>, hosts: &[Holder]) -> Validity {
        let (stolen, all) = ticks();
        let passed = all.saturating_sub(self.ticks.1).max(1) as f64;
        let steal = stolen.saturating_sub(self.ticks.0) as f64 / passed;
        let others = self.others.ticks() as f64 / passed;
        let run_queue_wait_us = worst_wait_us(hosts);
        let mut void = Vec::new();
        if let Some(report) = &report {
            void.extend(late_for_queues(topology, report.lateness.p99_us));
        }
        if let Some(lost @ 1..) = report.map(|report| report.overruns) {
            void.push(format!(
                "{lost} frames were lost between the emulator and the hosts, which is not the network's doing; none may be believed"
            ));
        }
        if steal > STEAL_MAX {
            void.push(format!(
                "the hypervisor took {:.1} % of the processors over {:.1} s; at most {:.0} % is believed",
                steal * 100.0,
                self.since.elapsed().as_secs_f64(),
                STEAL_MAX * 100.0
            ));
        }
        if others > OTHERS_MAX {
            void.push(format!(
                "programs outside the lab took {:.1} % of the processors over {:.1} s; at most {:.0} % is believed",
                others * 100.0,
                self.since.elapsed().as_secs_f64(),
                OTHERS_MAX * 100.0
            ));
        }
        if run_queue_wait_us > RUN_QUEUE_WAIT_MAX_US {
            void.push(format!(
                "a process in a host waited {run_queue_wait_us:.0} us for a processor each time; at most {RUN_QUEUE_WAIT_MAX_US:.0} us is believed"
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

/// The switch queues that drain too fast for an emulator `p99_us` late.
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
                    "the emulator was {p99_us:.0} us late (p99) and a port of {} drains in {drain_us:.0} us; it must take {DRAIN_PER_LATENESS_MIN:.0} times as long",
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
