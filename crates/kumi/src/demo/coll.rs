//! The demo's last part: an unmodified MPI all-to-all on a switch with shallow ports, with and without a plan.

use super::run::measured;
use crate::bench::hosts::Hosts as _;
use crate::bench::hosts::lab::Lab;
use crate::bench::variant::Variant;
use crate::bench::workload::mpi_programs::MpiProgram;
use kumi_lab::Topology;

/// Blocks of unlike sizes, 16 KiB on average, from each host to each.
const ARGS: [&str; 4] = ["alltoallv", "16384", "--seconds", "4"];

/// What one way of doing it took.
#[derive(Debug, Clone, Default)]
pub struct Exchange {
    /// Who decides what is sent when.
    pub by: &'static str,
    /// The median round, in seconds.
    pub median_s: f64,
    /// Segments that TCP had to send again, of all rounds.
    pub sent_again: f64,
}

/// Runs the program as the MPI library does it, and by a plan; both over CUBIC. Adds to `void` why the
/// run proves nothing, if it does not.
pub fn exchange(topology: &Topology, void: &mut Vec<String>) -> anyhow::Result<Vec<Exchange>> {
    let mut lab = Lab::up(topology)?;
    let args = ARGS.map(String::from);
    let ways = [
        ("Open MPI", Variant::Cubic),
        ("by a plan", Variant::KumiColl),
    ];
    let exchanges = ways.into_iter().map(|(by, variant)| {
        let one = measured(&lab, variant, MpiProgram::Coll, &args)?;
        let figure = |name: &str| one.figures.get(name).copied().unwrap_or(f64::NAN);
        Ok(Exchange {
            by,
            median_s: figure("median_us") / 1e6,
            sent_again: figure("retransmits"),
        })
    });
    let exchanges = exchanges.collect::<anyhow::Result<_>>()?;
    void.extend(lab.void_reasons());
    Ok(exchanges)
}
