//! Long flows of the kernel's TCP beside a long flow of the variant: the goodput that they keep.

use super::flow_ends::Arrivals;
use super::{Context, Measurement};
use crate::hosts::background::Background;
use crate::sample::Figures;
use anyhow::Context as _;

/// Port of the first flow. Each flow has its own port.
const PORT: u32 = 5601;

/// Seconds at the start that do not count, because slow start is not a steady state.
const SETTLING_S: f64 = 2.0;

/// Runs one flow of the variant and `neighbours` flows of `congestion_control`.
pub fn measure(
    context: &Context<'_>,
    seconds: u32,
    neighbours: u32,
    congestion_control: &str,
) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let seconds_max = seconds + 20;
    let length = seconds.to_string();
    let mut flows = Vec::new();
    for flow in 0..=neighbours {
        let port = (PORT + flow).to_string();
        let sink = [kumi, "workload", "flow-sink", &port];
        let mut source = vec![
            kumi,
            "workload",
            "flow-source",
            &running.server_address,
            &port,
            &length,
        ];
        // The first flow is the variant's. Only this flow runs under the variant's prefix.
        let (sink, source) = if flow == 0 {
            (running.wrapped(&sink), running.wrapped(&source))
        } else {
            source.extend(["--congestion-control", congestion_control]);
            (sink.to_vec(), source)
        };
        let mut sink = Background::start(hosts, running.server(), &sink, seconds_max)?;
        sink.line()?;
        let source = Background::start(hosts, running.client(), &source, seconds_max)?;
        flows.push((source, sink));
    }
    let mut goodputs_bps = Vec::new();
    for (source, sink) in flows {
        source.finish().context("a flow's sender")?;
        let arrivals: Arrivals =
            serde_json::from_str(&sink.finish().context("a flow's receiver")?)?;
        goodputs_bps.push(arrivals.goodput_bps(SETTLING_S, f64::from(seconds)));
    }
    Ok(Measurement {
        figures: figures(&goodputs_bps),
        ..Measurement::default()
    })
}

/// Returns the figures. The first goodput is the variant's.
fn figures(goodputs_bps: &[f64]) -> Figures {
    let sum: f64 = goodputs_bps.iter().sum();
    let squares: f64 = goodputs_bps.iter().map(|bps| bps * bps).sum();
    let neighbours_bps = &goodputs_bps[1..];
    Figures::from([
        ("subject_bps".into(), goodputs_bps[0]),
        (
            "neighbour_bps".into(),
            neighbours_bps.iter().sum::<f64>() / neighbours_bps.len() as f64,
        ),
        ("goodput_bps".into(), sum),
        (
            "jain_ratio".into(),
            sum * sum / (goodputs_bps.len() as f64 * squares),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures__equal_shares__are_perfectly_fair() {
        let figures = figures(&[2.0, 2.0, 2.0]);
        assert_eq!(
            (figures["jain_ratio"], figures["neighbour_bps"]),
            (1.0, 2.0)
        );
    }
}
