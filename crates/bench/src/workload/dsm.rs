//! Shared memory, and its rivals.

use super::wind::{self, Kind, Target, Traffic, measurement};
use super::{Context, Measurement, ranks};
use crate::variant::Variant;
use anyhow::Context as _;
use serde::Deserialize;

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Time of a first access to a page, whose home is idle. A rival's get of as many bytes.
    Miss,
    /// The same, while programs of the home's host compute.
    MissComputing,
    /// Time of a barrier at which a node has written bytes, until all others have read them.
    Barrier,
    /// Cost of a write that is found, and bytes that travel for it.
    Write,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Miss | Self::MissComputing => "miss",
            Self::Barrier => "barrier",
            Self::Write => "write",
        }
    }
}

/// Runs a measurement on the first `nodes` hosts.
pub fn measure(
    context: &Context<'_>,
    measure: Measure,
    nodes: Option<usize>,
    sizes_bytes: &[u64],
) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let is_dsm = running.variant == Variant::Dsm;
    let target = match measure {
        Measure::MissComputing => Target::Computing,
        _ => Target::Idle,
    };
    if !is_dsm && measure.name() == "miss" {
        return rival_miss(context, sizes_bytes, target);
    }
    anyhow::ensure!(
        is_dsm,
        "variant {} has no measurement `{}` of shared memory",
        running.variant,
        measure.name()
    );
    let nodes = nodes.unwrap_or(running.hosts.names().len());
    let _steering = wind::Steering::start(running)?;
    let _load = match target {
        Target::Computing => Some(wind::compute(running)?),
        _ => None,
    };
    let sizes: Vec<String> = sizes_bytes.iter().map(u64::to_string).collect();
    let mut program = vec![running.hosts.kumi(), "workload", "dsm", measure.name()];
    if context.quick {
        program.push("--quick");
    }
    program.extend(["--device", &running.device]);
    program.extend(sizes.iter().map(String::as_str));
    let text = ranks::run(context, nodes, &[], &program, false)?;
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| measurement(line).with_context(|| line.to_owned()))
        .collect()
}

/// Returns the times of a rival's gets under the name of a miss.
fn rival_miss(
    context: &Context<'_>,
    sizes_bytes: &[u64],
    target: Target,
) -> anyhow::Result<Vec<Measurement>> {
    let traffic = Traffic {
        kind: Kind::Exchange,
        sizes_bytes,
        target,
    };
    let mut rows = wind::measure(context, traffic)?;
    for row in &mut rows {
        let time = ["get_median_us", "echo_median_us"]
            .into_iter()
            .find_map(|name| row.figures.get(name).copied());
        let time = time.with_context(|| format!("{} times no get", context.running.variant))?;
        row.figures = [("miss_median_us".to_owned(), time)].into();
    }
    Ok(rows)
}
