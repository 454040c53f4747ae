//! Targets of a plan: the figures that are judged, what they are compared with, and the value that
//! they must reach.

use super::outcome::Op;
use super::variant::Variant;
use serde::Deserialize;

/// Statistic over the repetitions, which is a target's value at one message size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// Median of the repetitions.
    Median,
    /// Repetition that misses the target by most.
    Worst,
    /// Unfavourable end of a one-sided 95 % confidence interval of the mean. It serves targets
    /// within a few per cent, where the median of a noisy machine proves nothing.
    #[default]
    Bound,
}

/// A target: a figure, its divisor, and the value to compare with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name of the check, with the unit last.
    pub name: String,
    /// Case whose samples are judged.
    pub case: String,
    /// Variant whose samples are judged.
    pub variant: Variant,
    /// Figure of the judged samples.
    pub figure: String,
    /// Divisors of the figure, if any: `ceiling.plain`, `ceiling.framing`, `ceiling.best_link`, or
    /// variants. With several variants, the best one in each repetition is the divisor.
    #[serde(default)]
    pub over: Vec<String>,
    /// Variant whose figure is subtracted first. The difference is the part that the judged variant
    /// adds.
    #[serde(default)]
    pub minus: Option<Variant>,
    /// Figure of the samples in `over`, if it is another one.
    #[serde(default)]
    pub over_figure: Option<String>,
    /// Case of the samples in `over`, if it is another one.
    #[serde(default)]
    pub over_case: Option<String>,
    /// Smallest message size that is judged, in bytes. Each judged size must meet the target.
    #[serde(default)]
    pub from_bytes: Option<u64>,
    /// Largest message size that is judged, in bytes.
    #[serde(default)]
    pub to_bytes: Option<u64>,
    /// Upper limit of the rivals' `efficiency_ratio`. A message size counts only if the median of
    /// every variant in `over` is below the limit: where a rival does well, there is little to
    /// gain.
    #[serde(default)]
    pub over_below: Option<f64>,
    /// Further cases of the target. Its value is then the geometric mean of the medians of all
    /// cases.
    #[serde(default)]
    pub mean_with: Vec<String>,
    /// Further cases, each of which must meet the target. Its value is then that of the case that
    /// misses it by most.
    #[serde(default)]
    pub each_of: Vec<String>,
    /// Variants whose gains are added up. A gain is the factor over `over`: gains of 1.9 and 1.3
    /// add up to 2.2. The target's value is the judged variant's gain divided by that sum.
    #[serde(default)]
    pub gains: Vec<Variant>,
    /// True if figures are summed over message sizes before the comparison, for counts that may be
    /// 0.
    #[serde(default)]
    pub sum: bool,
    /// Statistic over the repetitions.
    #[serde(default)]
    pub statistic: Statistic,
    /// Relation of the value to the target in a check that passes.
    pub op: Op,
    /// Value that the target requires.
    pub value: f64,
}

/// Ceilings that a target may have as its divisor. [`crate::ceiling::ceilings`] computes them.
const CEILINGS: [&str; 3] = ["plain", "framing", "best_link"];

impl Target {
    /// Checks that the target's cases, variants and divisors exist, and that its keys agree.
    /// `cases` are the plan's, each with the variants that it runs.
    pub fn check(&self, cases: &[(&str, &[Variant])]) -> Result<(), String> {
        let name = &self.name;
        let find_case = |case_name: &str| {
            cases
                .iter()
                .find(|(known, _)| *known == case_name)
                .ok_or_else(|| {
                    let known: Vec<&str> = cases.iter().map(|(known, _)| *known).collect();
                    format!(
                        "target `{name}`: no case `{case_name}`; known cases: {}",
                        known.join(", ")
                    )
                })
        };
        let check_variant = |(case, variants): &(&str, &[Variant]), variant: Variant| {
            if variants.contains(&variant) {
                return Ok(());
            }
            let known: Vec<&str> = variants.iter().map(|variant| variant.name()).collect();
            Err(format!(
                "target `{name}`: case `{case}` does not run `{variant}`; it runs {}",
                known.join(", ")
            ))
        };
        let case = find_case(&self.case)?;
        check_variant(case, self.variant)?;
        for case_name in self.mean_with.iter().chain(&self.each_of) {
            check_variant(find_case(case_name)?, self.variant)?;
        }
        if !self.mean_with.is_empty() && !self.each_of.is_empty() {
            return Err(format!(
                "target `{name}`: `mean_with` and `each_of` exclude each other; keep one"
            ));
        }
        for variant in self.minus.iter().chain(&self.gains) {
            check_variant(case, *variant)?;
        }
        if !self.gains.is_empty() && self.figure.ends_with("_ratio") {
            let figure = &self.figure;
            return Err(format!(
                "target `{name}`: `gains` accepts rates (`_bps`) and times, not `{figure}`"
            ));
        }
        if !self.gains.is_empty() && self.over.is_empty() {
            return Err(format!(
                "target `{name}`: `gains` requires `over`, the divisor of each gain"
            ));
        }
        let rival_case = find_case(self.over_case.as_ref().unwrap_or(&self.case))?;
        for rival in &self.over {
            if let Some(ceiling) = rival.strip_prefix("ceiling.") {
                if !CEILINGS.contains(&ceiling) {
                    let known = CEILINGS.join(", ");
                    return Err(format!(
                        "target `{name}`: no ceiling `{ceiling}`; known ceilings: {known}"
                    ));
                }
                continue;
            }
            let variant: Variant = rival
                .parse()
                .map_err(|error| format!("target `{name}`: {error}"))?;
            check_variant(rival_case, variant)?;
        }
        Ok(())
    }
}
