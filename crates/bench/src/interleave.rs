//! Runs a plan: repetition by repetition, case by case, each variant of a case in turn.
//!
//! Variants of the same repetition and case run within the same minute, because the machine's other
//! load changes from minute to minute. A run during which the hosts were late is dropped and
//! repeated. A run that is late at every attempt is void, and so is the outcome of its plan.

use super::ceiling::{ceilings, gain_ratio};
use super::hosts::Hosts;
use super::plan::{Case, Plan};
use super::sample::{Figures, Sample};
use super::variant::{Running, Variant};
use super::workload::{Context, Measurement};
use anyhow::Context as _;
use kumi_command::errln;
use kumi_command::interrupt;

/// Attempts at a run before it counts as void. A shared machine is late now and then.
const ATTEMPTS_MAX: u32 = 3;

/// Measurements of a plan.
#[derive(Debug, Default)]
pub struct Measurements {
    /// Samples of all valid runs.
    pub samples: Vec<Sample>,
    /// Attempts that were late and therefore repeated, each with the reason.
    pub repeated: Vec<String>,
    /// Runs that were late at the last attempt as well, each with the reason.
    pub void: Vec<String>,
    /// Variants that could not be run, each with the error. Their targets are missed.
    pub failed: Vec<String>,
}

/// Length and verbosity of a run.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// True for a single, shorter repetition.
    pub quick: bool,
    /// True if progress is printed on standard error.
    pub progress: bool,
}

/// Runs each variant of a case once and appends the samples.
pub fn run_case(
    hosts: &mut dyn Hosts,
    plan: &Plan,
    case: &Case,
    repetition: u32,
    pace: Pace,
    measurements: &mut Measurements,
) {
    for variant in plan.variants_of(case) {
        if interrupt::noted().is_some() {
            return;
        }
        let run_name = format!(
            "{} · {variant} · {}/{}",
            case.name,
            repetition + 1,
            plan.repetitions_of(case, pace.quick)
        );
        if pace.progress {
            errln!("  {run_name}");
        }
        match run_until_valid(hosts, case, *variant, pace, &run_name, measurements) {
            Ok(results) => {
                let samples = results.into_iter().map(|result| Sample {
                    case: case.name.clone(),
                    variant: *variant,
                    size_bytes: result.size_bytes,
                    repetition,
                    figures: result.figures,
                    series: result.series,
                });
                measurements.samples.extend(samples);
            }
            Err(error) => measurements.failed.push(format!("{run_name}: {error:#}")),
        }
    }
}

/// Runs a variant until the hosts were punctual, at most [`ATTEMPTS_MAX`] times. A late attempt is
/// dropped and recorded. Returns an empty vector if the last attempt was late as well. Lateness
/// does not matter to a workload in virtual time.
fn run_until_valid(
    hosts: &mut dyn Hosts,
    case: &Case,
    variant: Variant,
    pace: Pace,
    run_name: &str,
    measurements: &mut Measurements,
) -> anyhow::Result<Vec<Measurement>> {
    for attempt in 1..=ATTEMPTS_MAX {
        // Discards lateness from before this attempt.
        let _ = hosts.void_reasons();
        let results = run_variant(hosts, case, variant, pace)?;
        let reasons = hosts.void_reasons().join("; ");
        if reasons.is_empty() || case.workload.is_in_virtual_time() {
            return Ok(results);
        }
        let (verdict, list) = if attempt < ATTEMPTS_MAX {
            ("repeated", &mut measurements.repeated)
        } else {
            ("void", &mut measurements.void)
        };
        if pace.progress {
            errln!("    {verdict}: {reasons}");
        }
        list.push(format!("{run_name}: {reasons}"));
    }
    Ok(Vec::new())
}

/// Runs a variant once at each queue depth that it tries. Returns the best measurements.
fn run_variant(
    hosts: &dyn Hosts,
    case: &Case,
    variant: Variant,
    pace: Pace,
) -> anyhow::Result<Vec<Measurement>> {
    let mut running = Running::start(hosts, variant).context("cannot set up the variant")?;
    let mut best: Option<Vec<Measurement>> = None;
    for depth_bytes in variant.queue_depths_bytes(pace.quick) {
        if !running.set_queue_depth(*depth_bytes)? {
            break;
        }
        let mut results = measure(&running, case, pace)?;
        for result in &mut results {
            result
                .figures
                .insert("queue_bytes".into(), *depth_bytes as f64);
        }
        best = Some(match best {
            Some(previous) => better(previous, results),
            None => results,
        });
    }
    best.map_or_else(|| measure(&running, case, pace), Ok)
}

fn measure(running: &Running<'_>, case: &Case, pace: Pace) -> anyhow::Result<Vec<Measurement>> {
    let context = Context {
        running,
        events: &case.events,
        windows: &case.windows,
        quick: pace.quick,
    };
    let mut results = case.workload.measure(&context)?;
    for result in &mut results {
        add_ceilings(running, result);
    }
    Ok(results)
}

/// Returns the measurement with the higher goodput, for each message size.
fn better(first: Vec<Measurement>, second: Vec<Measurement>) -> Vec<Measurement> {
    let goodput = |result: &Measurement| result.figures.get("goodput_bps").copied().unwrap_or(0.0);
    first
        .into_iter()
        .zip(second)
        .map(|(a, b)| if goodput(&b) > goodput(&a) { b } else { a })
        .collect()
}

fn add_ceilings(running: &Running<'_>, measurement: &mut Measurement) {
    let rates = running.hosts.rates_bps();
    let links = match running.variant {
        Variant::Single | Variant::KumiOneLink => 1,
        _ => rates.len(),
    };
    measurement
        .figures
        .extend(ceilings(&rates[..links.min(rates.len())], running.framing));
    let gains: Figures = measurement
        .figures
        .iter()
        .filter_map(|(name, value)| {
            let window = name.strip_prefix("goodput")?.strip_suffix("_bps")?;
            Some((
                format!("gain{window}_ratio"),
                gain_ratio(*value, &measurement.figures)?,
            ))
        })
        .collect();
    measurement.figures.extend(gains);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better__two_queue_depths__keeps_the_best_of_each_size() {
        let run = |goodputs: [f64; 2]| {
            goodputs
                .map(|goodput| Measurement {
                    figures: Figures::from([("goodput_bps".into(), goodput)]),
                    ..Measurement::default()
                })
                .to_vec()
        };
        let best = better(run([1.0, 5.0]), run([2.0, 4.0]));
        let goodputs: Vec<f64> = best.iter().map(|row| row.figures["goodput_bps"]).collect();
        assert_eq!(goodputs, [2.0, 5.0]);
    }
}
