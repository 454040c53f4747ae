//! Part of the demo: an unmodified MPI all-to-all on a switch with shallow ports, with and
//! without a plan.

use super::run::measure_program;
use crate::hosts::Hosts as _;
use crate::hosts::lab::Lab;
use crate::variant::Variant;
use crate::workload::mpi_programs::MpiProgram;
use kumi_lab::Topology;

/// Arguments of the program: blocks of different sizes, 16 KiB on average, from each host to each,
/// for 4 s.
const ARGS: [&str; 4] = ["alltoallv", "16384", "--seconds", "4"];

/// Result of one way to exchange the data.
#[derive(Debug, Clone, Default)]
pub struct Exchange {
    /// Author of the order of transfers: the MPI library or a plan.
    pub author: &'static str,
    /// Median time of a round, in seconds.
    pub median_s: f64,
    /// Number of segments that TCP retransmitted, over all rounds.
    pub retransmits: f64,
}

/// Runs the program with the MPI library's own algorithm and with a plan, both over CUBIC. Adds the
/// reasons to `void` if the run is void.
pub fn exchange(topology: &Topology, void: &mut Vec<String>) -> anyhow::Result<Vec<Exchange>> {
    let mut lab = Lab::up(topology)?;
    let args = ARGS.map(String::from);
    let variants = [
        ("Open MPI", Variant::Cubic),
        ("by a plan", Variant::KumiColl),
    ];
    let exchanges = variants.into_iter().map(|(author, variant)| {
        let result = measure_program(&lab, variant, MpiProgram::Coll, &args)?;
        let figure = |name: &str| result.figures.get(name).copied().unwrap_or(f64::NAN);
        Ok(Exchange {
            author,
            median_s: figure("median_us") / 1e6,
            retransmits: figure("retransmits"),
        })
    });
    let exchanges = exchanges.collect::<anyhow::Result<_>>()?;
    void.extend(lab.void_reasons());
    Ok(exchanges)
}
