//! Derives checks from samples: compares every target of a plan with the measured figures.

use super::interval::{bound, median, worst};
use super::outcome::{Check, Op};
use super::plan::Plan;
use super::sample::Sample;
use super::target::{Statistic, Target};
use std::collections::BTreeSet;

/// Judges every target of `plan`. A target without samples is missed, not dropped: its value is
/// NaN.
pub fn judge(plan: &Plan, samples: &[Sample]) -> Vec<Check> {
    plan.targets
        .iter()
        .map(|target| {
            Check::new(
                &target.name,
                value(target, samples),
                target.op,
                target.value,
            )
        })
        .collect()
}

/// Returns the target's value: the statistic over repetitions, for the message size at which it is
/// worst.
fn value(target: &Target, samples: &[Sample]) -> f64 {
    if !target.mean_with.is_empty() {
        return geometric_mean(target, samples);
    }
    if !target.each_of.is_empty() {
        return worst_case(target, samples);
    }
    let totals;
    let samples = if target.sum {
        totals = sums(target, samples);
        &totals
    } else {
        samples
    };
    let sizes: BTreeSet<Option<u64>> = samples
        .iter()
        .filter(|sample| sample.case == target.case && sample.variant == target.variant)
        .map(|sample| sample.size_bytes)
        .filter(|size| is_judged(target, *size) && is_weakness(target, samples, *size))
        .collect();
    let by_size: Vec<f64> = sizes
        .into_iter()
        .map(|size| {
            let ratios = ratios(target, samples, size);
            match target.statistic {
                Statistic::Median => median(&ratios),
                Statistic::Worst => worst(&ratios, target.op),
                Statistic::Bound => bound(&ratios, target.op),
            }
        })
        .collect();
    worst(&by_size, target.op)
}

/// Sums the target's figures over the judged message sizes, for each case, variant and repetition.
fn sums(target: &Target, samples: &[Sample]) -> Vec<Sample> {
    let rival_figure = target.over_figure.as_ref().unwrap_or(&target.figure);
    let names: BTreeSet<&String> = [&target.figure, rival_figure].into();
    let mut sums: Vec<Sample> = Vec::new();
    for sample in samples
        .iter()
        .filter(|sample| is_judged(target, sample.size_bytes))
    {
        let is_same_run = |sum: &&mut Sample| {
            (&sum.case, sum.variant, sum.repetition)
                == (&sample.case, sample.variant, sample.repetition)
        };
        let figures = names.iter().map(|name| {
            let figure = sample.figures.get(*name).copied();
            ((*name).clone(), figure.unwrap_or(f64::NAN))
        });
        match sums.iter_mut().find(is_same_run) {
            Some(sum) => {
                for (name, figure) in figures {
                    *sum.figures.entry(name).or_default() += figure;
                }
            }
            None => sums.push(Sample {
                size_bytes: None,
                figures: figures.collect(),
                series: None,
                ..sample.clone()
            }),
        }
    }
    sums
}

/// Returns the geometric mean of the target's values in several cases. Each value is the median
/// over the repetitions.
fn geometric_mean(target: &Target, samples: &[Sample]) -> f64 {
    let cases: Vec<&String> = std::iter::once(&target.case)
        .chain(&target.mean_with)
        .collect();
    let logarithms = cases.iter().map(|case| {
        let case_target = Target {
            case: (*case).clone(),
            mean_with: Vec::new(),
            statistic: Statistic::Median,
            ..target.clone()
        };
        value(&case_target, samples).ln()
    });
    (logarithms.sum::<f64>() / cases.len() as f64).exp()
}

/// Returns the target's value in the case that misses it by most.
fn worst_case(target: &Target, samples: &[Sample]) -> f64 {
    let cases = std::iter::once(&target.case).chain(&target.each_of);
    let by_case: Vec<f64> = cases
        .map(|case| {
            let case_target = Target {
                case: case.clone(),
                each_of: Vec::new(),
                ..target.clone()
            };
            value(&case_target, samples)
        })
        .collect();
    worst(&by_case, target.op)
}

fn is_judged(target: &Target, size_bytes: Option<u64>) -> bool {
    let Some(size) = size_bytes else { return true };
    target.from_bytes.is_none_or(|from| size >= from) && target.to_bytes.is_none_or(|to| size <= to)
}

/// Returns whether every rival's median efficiency at a size is below the target's `over_below`.
/// Only then does the target count at that size.
fn is_weakness(target: &Target, samples: &[Sample], size_bytes: Option<u64>) -> bool {
    let Some(limit) = target.over_below else {
        return true;
    };
    target.over.iter().all(|name| {
        let efficiencies: Vec<f64> = matching(samples, &target.case, name, size_bytes)
            .filter_map(|sample| sample.figures.get("efficiency_ratio").copied())
            .collect();
        median(&efficiencies) < limit
    })
}

/// Returns one value per repetition: the figure divided by that of the best rival in the same
/// repetition. Without rivals, the value is the figure itself. With `gains`, it is the gain over
/// the rival divided by [`sum_of_gains`].
fn ratios(target: &Target, samples: &[Sample], size_bytes: Option<u64>) -> Vec<f64> {
    let rival_case = target.over_case.as_ref().unwrap_or(&target.case);
    let rival_figure = target.over_figure.as_ref().unwrap_or(&target.figure);
    matching(samples, &target.case, target.variant.name(), size_bytes)
        .map(|sample| {
            let figure = sample
                .figures
                .get(&target.figure)
                .copied()
                .unwrap_or(f64::NAN);
            let figure = figure - subtrahend(target, samples, sample);
            if target.over.is_empty() {
                return figure;
            }
            let rivals: Vec<f64> = target
                .over
                .iter()
                .filter_map(|name| match name.strip_prefix("ceiling.") {
                    Some(kind) => sample.figures.get(&format!("ceiling_{kind}_bps")).copied(),
                    None => matching(samples, rival_case, name, size_bytes)
                        .filter(|rival| rival.repetition == sample.repetition)
                        .find_map(|rival| rival.figures.get(rival_figure).copied()),
                })
                .collect();
            let baseline = best(&rivals, rival_figure);
            if target.gains.is_empty() {
                figure / baseline
            } else {
                gain(&target.figure, figure, baseline)
                    / sum_of_gains(target, samples, sample, baseline)
            }
        })
        .collect()
}

/// Returns the factor by which a figure is better than `baseline`: a quotient of rates, or the
/// inverse quotient of times.
fn gain(name: &str, figure: f64, baseline: f64) -> f64 {
    if is_rate(name) {
        figure / baseline
    } else {
        baseline / figure
    }
}

/// Returns the factor over `baseline` that results if the gains of the target's `gains` variants
/// add up, which is 1 + Σ (gain − 1).
fn sum_of_gains(target: &Target, samples: &[Sample], sample: &Sample, baseline: f64) -> f64 {
    let gains = target.gains.iter().map(|variant| {
        matching(samples, &target.case, variant.name(), sample.size_bytes)
            .filter(|candidate| candidate.repetition == sample.repetition)
            .find_map(|candidate| candidate.figures.get(&target.figure).copied())
            .map_or(f64::NAN, |figure| {
                gain(&target.figure, figure, baseline) - 1.0
            })
    });
    1.0 + gains.sum::<f64>()
}

/// Returns the value that the target subtracts from a figure: the same figure of another variant in
/// the same repetition.
fn subtrahend(target: &Target, samples: &[Sample], sample: &Sample) -> f64 {
    let Some(variant) = target.minus else {
        return 0.0;
    };
    matching(samples, &target.case, variant.name(), sample.size_bytes)
        .filter(|candidate| candidate.repetition == sample.repetition)
        .find_map(|candidate| candidate.figures.get(&target.figure).copied())
        .unwrap_or(f64::NAN)
}

fn matching<'a>(
    samples: &'a [Sample],
    case: &'a str,
    variant: &'a str,
    size_bytes: Option<u64>,
) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| {
        sample.case == case && sample.variant.name() == variant && sample.size_bytes == size_bytes
    })
}

/// Returns whether a larger value of the figure is better.
fn is_rate(figure: &str) -> bool {
    figure.ends_with("_bps")
}

/// Returns the rivals' best figure: the highest rate or the shortest time.
fn best(rivals: &[f64], figure: &str) -> f64 {
    let op = if is_rate(figure) {
        Op::AtMost
    } else {
        Op::AtLeast
    };
    worst(rivals, op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Figures;
    use crate::variant::Variant;

    fn plan(statistic: &str, over: &str) -> Plan {
        let text = format!(
            r#"
            name = "p"
            shows = "something"
            topology = "two-links"
            variants = ["single", "mptcp", "kumi"]
            [[case]]
            name = "tcp"
            workload = {{ kind = "stream", seconds = 5 }}
            [[target]]
            name = "ratio"
            case = "tcp"
            variant = "kumi"
            figure = "goodput_bps"
            over = [{over}]
            statistic = "{statistic}"
            op = ">="
            value = 1.9
            "#
        );
        Plan::parse("p.toml", &text).expect("is sound")
    }

    fn sample(variant: Variant, repetition: u32, goodput_bps: f64) -> Sample {
        Sample {
            case: "tcp".into(),
            variant,
            size_bytes: None,
            repetition,
            figures: Figures::from([
                ("goodput_bps".into(), goodput_bps),
                ("ceiling_plain_bps".into(), 4.0),
            ]),
            series: None,
        }
    }

    #[test]
    fn judge__sizes_where_a_rival_does_well__do_not_count() {
        let mut plan = plan("median", "\"single\"");
        plan.targets[0].over_below = Some(0.65);
        let sized = |variant, size_bytes, goodput_bps, efficiency| {
            let mut sample = sample(variant, 0, goodput_bps);
            sample.size_bytes = Some(size_bytes);
            let name = "efficiency_ratio".into();
            sample.figures.insert(name, efficiency);
            sample
        };
        let samples = [
            sized(Variant::Single, 2048, 1.0, 0.3),
            sized(Variant::Kumi, 2048, 2.0, 0.6),
            sized(Variant::Single, 32768, 2.0, 0.7),
            sized(Variant::Kumi, 32768, 2.0, 0.7),
        ];
        assert_eq!(judge(&plan, &samples)[0].value, 2.0);
    }

    #[test]
    fn judge__ratio__is_paired_by_repetition() {
        let samples = [
            sample(Variant::Single, 0, 1.0),
            sample(Variant::Kumi, 0, 2.0),
            sample(Variant::Single, 1, 0.5),
            sample(Variant::Kumi, 1, 1.0),
        ];
        let checks = judge(&plan("bound", "\"single\""), &samples);
        assert_eq!((checks[0].value, checks[0].pass), (2.0, true));
    }

    #[test]
    fn judge__gains__are_added_up() {
        let mut plan = plan("median", "\"single\"");
        plan.targets[0].gains = vec![Variant::Mptcp, Variant::Rr];
        let samples = [
            sample(Variant::Single, 0, 1.0),
            sample(Variant::Mptcp, 0, 1.9),
            sample(Variant::Rr, 0, 1.3),
            sample(Variant::Kumi, 0, 1.1),
        ];
        // The gains add up to a factor of 2.2.
        assert!((judge(&plan, &samples)[0].value - 0.5).abs() < 1e-9);
    }

    #[test]
    fn judge__sum__adds_sizes_before_it_compares() {
        let mut plan = plan("median", "\"single\"");
        plan.targets[0].sum = true;
        let sized = |variant, size, count| Sample {
            size_bytes: Some(size),
            ..sample(variant, 0, count)
        };
        let samples = [
            sized(Variant::Single, 1, 0.0),
            sized(Variant::Single, 2, 10.0),
            sized(Variant::Kumi, 1, 2.0),
            sized(Variant::Kumi, 2, 3.0),
        ];
        assert_eq!(judge(&plan, &samples)[0].value, 0.5);
    }

    #[test]
    fn judge__minus_another_variant__is_the_difference() {
        let mut plan = plan("median", "");
        plan.targets[0].over.clear();
        plan.targets[0].minus = Some(Variant::Single);
        let samples = [
            sample(Variant::Single, 0, 1.5),
            sample(Variant::Kumi, 0, 4.0),
        ];
        assert_eq!(judge(&plan, &samples)[0].value, 2.5);
        assert!(judge(&plan, &samples[1..])[0].value.is_nan());
    }

    #[test]
    fn judge__several_rivals__the_best_counts() {
        let samples = [
            sample(Variant::Single, 0, 1.0),
            sample(Variant::Mptcp, 0, 1.6),
            sample(Variant::Kumi, 0, 2.0),
        ];
        let checks = judge(&plan("worst", "\"single\", \"mptcp\""), &samples);
        assert_eq!(checks[0].value, 1.25);
        assert!(!checks[0].pass);
    }

    #[test]
    fn judge__ceiling__is_taken_from_the_same_sample() {
        let checks = judge(
            &plan("median", "\"ceiling.plain\""),
            &[sample(Variant::Kumi, 0, 3.0)],
        );
        assert_eq!(checks[0].value, 0.75);
    }

    #[test]
    fn judge__repetition_without_a_value__counts_as_the_worst() {
        let mut unmeasured = sample(Variant::Kumi, 1, 2.0);
        unmeasured.figures.clear();
        let mut plan = plan("worst", "");
        plan.targets[0].over.clear();
        let checks = judge(&plan, &[sample(Variant::Kumi, 0, 3.0), unmeasured]);
        assert!(checks[0].value.is_nan() && !checks[0].pass);
    }

    #[test]
    fn judge__several_cases__give_their_geometric_mean() {
        let mut plan = plan("median", "\"single\"");
        plan.targets[0].mean_with = vec!["other".into()];
        let mut samples = vec![
            sample(Variant::Single, 0, 1.0),
            sample(Variant::Kumi, 0, 2.0),
        ];
        let extra = |variant, goodput_bps| Sample {
            case: "other".into(),
            ..sample(variant, 0, goodput_bps)
        };
        samples.extend([extra(Variant::Single, 1.0), extra(Variant::Kumi, 8.0)]);
        let value = judge(&plan, &samples)[0].value;
        assert!((value - 4.0).abs() < 1e-9, "{value}");
        assert!(
            judge(&plan, &samples[..2])[0].value.is_nan(),
            "a case is missing"
        );
    }

    #[test]
    fn judge__each_of_several_cases__gives_the_worst() {
        let mut plan = plan("median", "\"single\"");
        plan.targets[0].each_of = vec!["other".into()];
        let other = |variant, goodput_bps| Sample {
            case: "other".into(),
            ..sample(variant, 0, goodput_bps)
        };
        let samples = [
            sample(Variant::Single, 0, 1.0),
            sample(Variant::Kumi, 0, 2.0),
            other(Variant::Single, 2.0),
            other(Variant::Kumi, 3.0),
        ];
        let check = &judge(&plan, &samples)[0];
        assert_eq!((check.value, check.pass), (1.5, false));
        assert!(judge(&plan, &samples[..2])[0].value.is_nan());
    }

    #[test]
    fn judge__target_without_samples__is_missed() {
        let checks = judge(&plan("bound", "\"single\""), &[]);
        assert!(checks[0].value.is_nan() && !checks[0].pass);
        let unpaired = judge(
            &plan("bound", "\"single\""),
            &[sample(Variant::Kumi, 0, 3.0)],
        );
        assert!(unpaired[0].value.is_nan() && !unpaired[0].pass);
    }
}
