//! Second part of the demo: an unmodified MPI program across a WAN, with and without `kumi tcp`.

use super::run::measure_program;
use crate::hosts::Hosts as _;
use crate::hosts::lab::Lab;
use crate::variant::Variant;
use crate::workload::mpi_programs::MpiProgram;
use kumi_lab::Topology;

/// Arguments of the program. It alternates an all-to-all with a transfer of 4 MB from one site to
/// the other. The arrivals of the third transfer are recorded for the chart.
const ARGS: [&str; 14] = [
    "--repeat",
    "5",
    "--rounds",
    "20",
    "--size",
    "4096",
    "--transfer",
    "4000000",
    "--chunk",
    "16384",
    "--rtt-us",
    "20000",
    "--series",
    "2",
];

/// Result of one congestion control.
#[derive(Debug, Clone, Default)]
pub struct Crossing {
    /// Name of the congestion control.
    pub name: &'static str,
    /// Goodput of the 4 MB, the median of five transfers, in bit/s.
    pub goodput_bps: f64,
    /// Goodput over time of one transfer: `(s, bit/s)`.
    pub series: Vec<(f64, f64)>,
}

/// Runs the program with CUBIC and with `kumi tcp`. Adds the reasons to `void` if the run is void.
pub fn cross(topology: &Topology, void: &mut Vec<String>) -> anyhow::Result<Vec<Crossing>> {
    let mut lab = Lab::up(topology)?;
    let args = ARGS.map(String::from);
    let crossings = [("CUBIC", Variant::Cubic), ("kumi tcp", Variant::KumiTcp)]
        .into_iter()
        .map(|(name, variant)| {
            let result = measure_program(&lab, variant, MpiProgram::Phases, &args)?;
            let bytes_per_ms = result.series.as_ref().and_then(|series| series.as_array());
            let bytes = bytes_per_ms
                .into_iter()
                .flatten()
                .filter_map(|bytes| bytes.as_f64());
            Ok(Crossing {
                name,
                goodput_bps: result.figures.get("goodput_bps").copied().unwrap_or(0.0),
                series: smooth(&bytes.collect::<Vec<_>>()),
            })
        })
        .collect::<anyhow::Result<_>>()?;
    void.extend(lab.void_reasons());
    Ok(crossings)
}

/// Milliseconds per point of the curve.
const POINT_MS: usize = 5;

fn smooth(bytes_per_ms: &[f64]) -> Vec<(f64, f64)> {
    let points = bytes_per_ms.chunks(POINT_MS).enumerate();
    let point = |(index, chunk): (usize, &[f64])| {
        let ms = (index * POINT_MS + chunk.len()) as f64;
        let bps = chunk.iter().sum::<f64>() * 8e3 / chunk.len() as f64;
        (ms / 1e3, bps)
    };
    points.map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothed__bytes_per_millisecond__become_bits_per_second() {
        let points = smooth(&[1000.0; 7]);
        assert_eq!(points, [(0.005, 8e6), (0.007, 8e6)]);
    }
}
