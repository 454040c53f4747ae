//! Runs a plan: repetition by repetition, case by case, every variant of a case in turn.
//!
//! Variants of the same repetition and case run within the same minute, because what the machine
//! does besides changes by the minute. A repetition during which the hosts were late is void: its
//! samples are dropped and the reason kept.

use super::ceiling::{ceilings, gain_of_rest};
use super::hosts::Hosts;
use super::plan::{Case, Plan};
use super::sample::{Figures, Sample};
use super::variant::{Running, Variant};
use super::workload::{Context, Measured};
use anyhow::Context as _;

/// What a plan measured.
#[derive(Debug, Default)]
pub struct Measurements {
    /// All samples that count.
    pub samples: Vec<Sample>,
    /// Why others do not.
    pub void: Vec<String>,
    /// Variants that could not be run, and why; their targets are missed.
    pub failed: Vec<String>,
}

/// How a plan is run.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Shorter and once only.
    pub quick: bool,
    /// Whether to say what is going on, on standard error.
    pub progress: bool,
}

/// Runs one case's variants once each and appends what they measured.
pub fn run_case(
    hosts: &mut dyn Hosts,
    plan: &Plan,
    case: &Case,
    repetition: u32,
    pace: Pace,
    measurements: &mut Measurements,
) {
    for variant in plan.variants_of(case) {
        let what = format!(
            "{} · {variant} · {}/{}",
            case.name,
            repetition + 1,
            plan.repetitions
        );
        if pace.progress {
            eprintln!("  {what}");
        }
        let result = run_variant(hosts, case, *variant, pace);
        let late = hosts.void_reasons();
        match result {
            Err(error) => measurements.failed.push(format!("{what}: {error:#}")),
            Ok(_) if !late.is_empty() => {
                measurements
                    .void
                    .extend(late.iter().map(|reason| format!("{what}: {reason}")));
            }
            Ok(measured) => {
                let samples = measured.into_iter().map(|measured| Sample {
                    case: case.name.clone(),
                    variant: *variant,
                    size_bytes: measured.size_bytes,
                    repetition,
                    figures: measured.figures,
                    series: measured.series,
                });
                measurements.samples.extend(samples);
            }
        }
    }
}

/// One run of one variant: at each queue depth it wants tried, of which the best is returned.
fn run_variant(
    hosts: &dyn Hosts,
    case: &Case,
    variant: Variant,
    pace: Pace,
) -> anyhow::Result<Vec<Measured>> {
    let mut running = Running::start(hosts, variant).context("setting it up")?;
    let mut best: Option<Vec<Measured>> = None;
    for depth_bytes in variant.queue_depths_bytes(pace.quick) {
        if !running.set_queue_depth(*depth_bytes)? {
            break;
        }
        let mut measured = measure(&running, case, pace)?;
        for one in &mut measured {
            one.figures
                .insert("queue_bytes".into(), *depth_bytes as f64);
        }
        best = Some(match best {
            Some(before) => better(before, measured),
            None => measured,
        });
    }
    best.map_or_else(|| measure(&running, case, pace), Ok)
}

fn measure(running: &Running<'_>, case: &Case, pace: Pace) -> anyhow::Result<Vec<Measured>> {
    let context = Context {
        running,
        events: &case.events,
        windows: &case.windows,
        quick: pace.quick,
    };
    let mut measured = case.workload.measure(&context)?;
    for one in &mut measured {
        add_ceilings(running, one);
    }
    Ok(measured)
}

/// The better of two runs, message size by message size.
fn better(before: Vec<Measured>, now: Vec<Measured>) -> Vec<Measured> {
    let goodput = |one: &Measured| one.figures.get("goodput_bps").copied().unwrap_or(0.0);
    before
        .into_iter()
        .zip(now)
        .map(|(a, b)| if goodput(&b) > goodput(&a) { b } else { a })
        .collect()
}

fn add_ceilings(running: &Running<'_>, measured: &mut Measured) {
    let rates = running.hosts.rates_bps();
    let used = match running.variant {
        Variant::Single | Variant::KumiOneLink => 1,
        _ => rates.len(),
    };
    measured
        .figures
        .extend(ceilings(&rates[..used.min(rates.len())], running.framing));
    let gains: Figures = measured
        .figures
        .iter()
        .filter_map(|(name, value)| {
            let window = name.strip_prefix("goodput")?.strip_suffix("_bps")?;
            Some((
                format!("gain{window}_ratio"),
                gain_of_rest(*value, &measured.figures)?,
            ))
        })
        .collect();
    measured.figures.extend(gains);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better__two_queue_depths__the_best_of_each_size_is_kept() {
        let run = |goodputs: [f64; 2]| {
            goodputs
                .map(|goodput| Measured {
                    figures: Figures::from([("goodput_bps".into(), goodput)]),
                    ..Measured::default()
                })
                .to_vec()
        };
        let best = better(run([1.0, 5.0]), run([2.0, 4.0]));
        let goodputs: Vec<f64> = best.iter().map(|one| one.figures["goodput_bps"]).collect();
        assert_eq!(goodputs, [2.0, 5.0]);
    }
}
