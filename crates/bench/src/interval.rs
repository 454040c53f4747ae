//! Unfavourable end of a confidence interval.
//!
//! On a noisy machine, the median of three repetitions is off by 2 % one time in two. Some targets
//! have a margin of that size. Such targets are compared with a bound instead, which holds for
//! the mean with 95 % confidence (ADR 005).

use super::outcome::Op;

/// Student's t for a one-sided 95 % interval, for 1 to 10 degrees of freedom. Beyond the table, the
/// normal distribution's 1.645 is close enough.
const STUDENT_T: [f64; 10] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
];

/// Returns the unfavourable bound of the mean: mean ∓ t × deviation ÷ √count. It is the lower bound
/// for a target that must be reached, and the upper bound for one that must not be exceeded.
///
/// A single value is its own bound. A `--quick` run therefore proves little, as its number of
/// repetitions shows.
pub fn bound(values: &[f64], op: Op) -> f64 {
    let count = values.len();
    let mean = mean(values);
    if count < 2 {
        return mean;
    }
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1) as f64;
    let t = STUDENT_T.get(count - 2).copied().unwrap_or(1.645);
    let half_width = t * (variance / count as f64).sqrt();
    match op {
        Op::AtLeast => mean - half_width,
        Op::AtMost => mean + half_width,
        Op::Equal => mean,
    }
}

/// Returns the median; for an even number of values, the mean of the middle two. NaN without
/// values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// Returns the value that misses the target by most. NaN if any value is NaN, or without values.
pub fn worst(values: &[f64], op: Op) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let pick = if op == Op::AtLeast {
        f64::min
    } else {
        f64::max
    };
    values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound__scattered_values__lies_on_the_unfavourable_side() {
        let values = [0.96, 0.98, 1.00];
        let low = bound(&values, Op::AtLeast);
        let high = bound(&values, Op::AtMost);
        // mean 0.98, deviation 0.02, t(2) 2.920: 0.98 ∓ 2.920 × 0.02 ÷ √3
        assert!((low - 0.9463).abs() < 1e-4 && (high - 1.0137).abs() < 1e-4);
    }

    #[test]
    fn bound__one_value__is_that_value() {
        assert_eq!(bound(&[0.5], Op::AtLeast), 0.5);
        assert!(bound(&[], Op::AtLeast).is_nan());
    }

    #[test]
    fn median__odd_or_even_count__is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
