//! Last measurement of the demo: a put into another host's memory, whose program may be stopped,
//! beside an exchange of UDP datagrams.

use crate::hosts::Hosts as _;
use crate::hosts::lab::Lab;
use crate::variant::{Running, Variant};
use crate::workload::Context;
use crate::workload::wind::{self, Kind, Target, Traffic};
use anyhow::Context as _;
use kumi_lab::Topology;

/// Bytes of a put and of a datagram.
const BYTES: u64 = 64;

/// Median time of one way to bring bytes to another host, until the answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// Name of the way.
    pub name: &'static str,
    /// Median time, in microseconds.
    pub median_us: f64,
}

/// Measures the ways on two hosts. Adds the reasons to `void` if the run is void.
pub fn measure(topology: &Topology, void: &mut Vec<String>) -> anyhow::Result<Vec<Answer>> {
    let mut lab = Lab::up(topology)?;
    let put = "put_median_us";
    let ways = [
        (
            "UDP echo by the target's program",
            Variant::Udp,
            Target::Idle,
            "echo_median_us",
        ),
        (
            "Wind put, executed by the target's kernel",
            Variant::WindKernel,
            Target::Idle,
            put,
        ),
        (
            "Wind put, the target's program stopped by SIGSTOP",
            Variant::WindKernel,
            Target::Stopped,
            put,
        ),
    ];
    let answers = ways.into_iter().map(|(name, variant, target, figure)| {
        let running = Running::start(&lab, variant)?;
        let context = Context {
            running: &running,
            events: &[],
            windows: &[],
            quick: false,
        };
        let traffic = Traffic {
            kind: Kind::Exchange,
            sizes_bytes: &[BYTES],
            target,
        };
        let rows = wind::measure(&context, traffic).with_context(|| name)?;
        let median_us = rows
            .first()
            .and_then(|row| row.figures.get(figure).copied());
        Ok(Answer {
            name,
            median_us: median_us.unwrap_or(f64::NAN),
        })
    });
    let answers = answers.collect::<anyhow::Result<_>>()?;
    void.extend(lab.void_reasons());
    Ok(answers)
}
