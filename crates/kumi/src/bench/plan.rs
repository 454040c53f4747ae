//! A bench plan: what is run on which topology, and what must come out.
//!
//! A plan is data (`bench/plans/NAME.toml`): its cases, the variants that every case runs interleaved,
//! and its targets. The file's keys are documented here, on the fields they become.

use super::outcome::Op;
use super::variant::Variant;
use super::workload::Workload;
use crate::BadInput;
use kumi_lab::topology::LinkChange;
use serde::Deserialize;
use std::collections::BTreeSet;

/// One plan.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The plan's name, that of its file.
    pub name: String,
    /// One sentence: the claim that the plan tests.
    pub shows: String,
    /// The paper's figure it reproduces, if it does one.
    #[serde(default)]
    pub paper: Option<String>,
    /// Topology of cases that name none: a file of `bench/topologies/`, without its ending.
    #[serde(default)]
    pub topology: Option<String>,
    /// Variants of cases that name none.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// How often each case runs each variant; the targets' statistics are over these.
    #[serde(default = "three")]
    pub repetitions: u32,
    /// Seed of everything random, recorded in the manifest.
    #[serde(default = "seven")]
    pub seed: u64,
    /// Why there is no result yet; `cargo xtask tidy` demands the one or the other.
    #[serde(default)]
    pub unmeasured: Option<String>,
    /// The lab's own check (`kumi lab check`) in place of cases and targets.
    #[serde(default)]
    pub fidelity: bool,
    /// What is run.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// What must come out.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

fn three() -> u32 {
    3
}

fn seven() -> u64 {
    7
}

/// One workload on one topology, with what happens to the network meanwhile.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name, unique in the plan.
    pub name: String,
    /// Instead of the plan's topology.
    #[serde(default)]
    pub topology: Option<String>,
    /// Instead of the plan's variants.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// What the hosts do.
    pub workload: Workload,
    /// What happens to the network, in the order of time.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// Stretches of time whose goodput becomes a figure of its own.
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    /// Whether `--quick` leaves the case out.
    #[serde(default)]
    pub slow: bool,
}

/// A change of a link while a case runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Seconds after the workload's first byte.
    pub at_s: f64,
    /// Name: the figure `gap_NAME_ms` is the longest silence that begins within a second of it, and
    /// `detected_NAME_ms` the time until the sending device has taken the link out of use for good, and
    /// `late_retransmits_NAME` what a flow sends again from the third round trip to 1.5 s after it.
    pub name: String,
    /// The end whose link changes, as `h2:eth2`.
    pub link: String,
    /// What changes, in the lab's words: `{ carrier = false }`, `{ faults = { loss = 0.01 } }`.
    pub change: LinkChange,
    /// How often it happens again, in turn with its reverse, every `every_s`.
    #[serde(default)]
    pub again: Option<Again>,
}

/// An event that repeats: a link that flaps.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// Seconds between a change and its reverse.
    pub every_s: f64,
    /// The change in between.
    pub reverse: LinkChange,
    /// How many changes in all.
    pub count: u32,
}

/// A stretch of time: its goodput is the figure `goodput_NAME_bps`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name of the figure's middle part.
    pub name: String,
    /// Seconds after the first byte.
    pub from_s: f64,
    /// Seconds after the first byte.
    pub to_s: f64,
}

/// What a target's value is drawn from, over repetitions and message sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The repetitions' median.
    Median,
    /// The repetition that misses by most.
    Worst,
    /// The unfavourable end of a one-sided 95 % confidence interval of the mean: for targets
    /// within a few per cent, where the median of a noisy machine proves nothing.
    #[default]
    Bound,
}

/// One target: a figure, what it is divided by, and the value it is held against.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The check's name, unit last.
    pub name: String,
    /// The case it looks at.
    pub case: String,
    /// The variant it judges.
    pub variant: Variant,
    /// The figure of that variant's samples.
    pub figure: String,
    /// What the figure is divided by, if by anything: `ceiling.plain`, `ceiling.framing`,
    /// `ceiling.best_link`, or variants, the best of which in each repetition counts.
    #[serde(default)]
    pub over: Vec<String>,
    /// A variant whose figure is taken away from it first: what the variant adds.
    #[serde(default)]
    pub minus: Option<Variant>,
    /// The figure of `over`'s samples, where it is another one.
    #[serde(default)]
    pub over_figure: Option<String>,
    /// The case of `over`'s samples, where it is another one.
    #[serde(default)]
    pub over_case: Option<String>,
    /// Message sizes from here on, in bytes; each must hold the target.
    #[serde(default)]
    pub from_bytes: Option<u64>,
    /// Message sizes up to here, in bytes.
    #[serde(default)]
    pub to_bytes: Option<u64>,
    /// Only message sizes count at which no variant of `over` has this `efficiency_ratio`, by the median of
    /// the repetitions: where a rival does well there is little to win.
    #[serde(default)]
    pub over_below: Option<f64>,
    /// Cases whose medians, with this case's, are taken as one value: their geometric mean.
    #[serde(default)]
    pub mean_with: Vec<String>,
    /// Variants whose gains are added up: the value is the figure's gain over `over` against the sum of
    /// theirs, both as times what `over` does (1.9 and 1.3 alone are 2.2 together).
    #[serde(default)]
    pub gains: Vec<Variant>,
    /// Whether message sizes are added up before anything is compared: for counts, which may be 0.
    #[serde(default)]
    pub sum: bool,
    /// Over the repetitions.
    #[serde(default)]
    pub statistic: Statistic,
    /// How the value relates to the target when it holds.
    pub op: Op,
    /// The target.
    pub value: f64,
}

impl Plan {
    /// Parses and checks a plan's text; `file` is for the error.
    pub fn parse(file: &str, text: &str) -> Result<Self, BadInput> {
        let plan: Self =
            toml::from_str(text).map_err(|error| BadInput(format!("{file}: {error}")))?;
        plan.check()
            .map_err(|problem| BadInput(format!("{file}: {problem}")))?;
        Ok(plan)
    }

    /// The variants that `case` runs.
    pub fn variants_of<'a>(&'a self, case: &'a Case) -> &'a [Variant] {
        if case.variants.is_empty() {
            &self.variants
        } else {
            &case.variants
        }
    }

    /// The topologies of the cases that run, each once, in the order of the cases.
    pub fn topologies(&self, quick: bool) -> Vec<&str> {
        let mut topologies = Vec::new();
        for case in self.cases.iter().filter(|case| !(quick && case.slow)) {
            let topology = self.topology_of(case);
            if !topologies.contains(&topology) {
                topologies.push(topology);
            }
        }
        topologies
    }

    /// The cases that run on `topology`.
    pub fn cases_on(&self, topology: &str, quick: bool) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(move |case| self.topology_of(case) == topology && !(quick && case.slow))
    }

    fn topology_of<'a>(&'a self, case: &'a Case) -> &'a str {
        case.topology
            .as_deref()
            .or(self.topology.as_deref())
            .unwrap_or_default()
    }

    fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for case in &self.cases {
            if !names.insert(case.name.as_str()) {
                return Err(format!(
                    "case `{}` is there twice; give each its own name",
                    case.name
                ));
            }
            if self.variants_of(case).is_empty() {
                return Err(format!(
                    "case `{}`: no variants here nor in the plan",
                    case.name
                ));
            }
            if case.topology.is_none() && self.topology.is_none() {
                return Err(format!(
                    "case `{}`: no topology here nor in the plan",
                    case.name
                ));
            }
        }
        if let Some(case) = self.cases.iter().find(|case| !case.workload.is_sound()) {
            return Err(format!(
                "case `{}`: `flows` are side by side in `streaming` only; leave it out",
                case.name
            ));
        }
        self.targets
            .iter()
            .try_for_each(|target| self.check_target(target))
    }

    fn check_target(&self, target: &Target) -> Result<(), String> {
        let name = &target.name;
        let case_named = |wanted: &str| {
            self.cases
                .iter()
                .find(|case| case.name == wanted)
                .ok_or_else(|| {
                    let known: Vec<&str> =
                        self.cases.iter().map(|case| case.name.as_str()).collect();
                    format!(
                        "target `{name}`: no case `{wanted}`; there are: {}",
                        known.join(", ")
                    )
                })
        };
        let case = case_named(&target.case)?;
        for other in &target.mean_with {
            case_named(other)?;
        }
        if !self.variants_of(case).contains(&target.variant) {
            let variant = target.variant;
            return Err(format!(
                "target `{name}`: case `{}` does not run `{variant}`",
                case.name
            ));
        }
        let mut besides = target.minus.iter().chain(&target.gains);
        if let Some(other) = besides.find(|other| !self.variants_of(case).contains(other)) {
            let case = &case.name;
            return Err(format!(
                "target `{name}`: case `{case}` does not run `{other}`"
            ));
        }
        if !target.gains.is_empty() && target.figure.ends_with("_ratio") {
            let figure = &target.figure;
            return Err(format!(
                "target `{name}`: `gains` adds up rates (`_bps`) and times, not `{figure}`"
            ));
        }
        if !target.gains.is_empty() && target.over.is_empty() {
            return Err(format!(
                "target `{name}`: `gains` needs `over`, which they are gains over"
            ));
        }
        let over_case = case_named(target.over_case.as_ref().unwrap_or(&target.case))?;
        for over in target
            .over
            .iter()
            .filter(|over| !over.starts_with("ceiling."))
        {
            let variant: Variant = over
                .parse()
                .map_err(|error| format!("target `{name}`: {error}"))?;
            if !self.variants_of(over_case).contains(&variant) {
                let case = &over_case.name;
                return Err(format!(
                    "target `{name}`: case `{case}` does not run `{variant}`"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::folder::Folder;
    use std::path::Path;

    const PLAN: &str = r#"
        name = "p"
        shows = "something"
        topology = "two-links"
        variants = ["single", "kumi"]
        [[case]]
        name = "tcp"
        workload = { kind = "stream", seconds = 5 }
        [[target]]
        name = "goodput_vs_single"
        case = "tcp"
        variant = "kumi"
        figure = "goodput_bps"
        over = ["single"]
        op = ">="
        value = 1.85
    "#;

    #[test]
    fn plan__every_committed_plan__is_sound() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let bench = Folder::choose(None, &root);
        for name in bench.plan_names().expect("the folder is there") {
            let plan = bench.plan(&name).expect("is sound");
            assert_eq!(plan.name, name);
            for topology in plan.topologies(false) {
                if let Some(tree) = crate::bench::random_tree(topology) {
                    tree.expect("is sound");
                    continue;
                }
                bench.topology(topology).expect("is sound");
            }
        }
    }

    fn problem(text: &str) -> String {
        Plan::parse("p.toml", text).expect_err("must be refused").0
    }

    #[test]
    fn plan__sound_file__is_read() {
        let plan = Plan::parse("p.toml", PLAN).expect("is sound");
        assert_eq!(plan.repetitions, 3);
        assert_eq!(plan.targets[0].statistic, Statistic::Bound);
    }

    #[test]
    fn plan__flows_of_a_pattern_that_waits__are_refused() {
        let workload = "{ kind = \"pattern\", pattern = \"one-way\", exchange = \"request-response\", sizes_bytes = [1], seconds = 1, flows = 2 }";
        let text = PLAN.replace("{ kind = \"stream\", seconds = 5 }", workload);
        assert!(problem(&text).contains("`flows`"));
    }

    #[test]
    fn plan__gains_of_a_ratio__are_refused() {
        let text = PLAN.replace(
            "figure = \"goodput_bps\"",
            "figure = \"jain_ratio\"\ngains = [\"single\"]",
        );
        assert!(problem(&text).contains("jain_ratio"));
    }

    #[test]
    fn plan__unknown_key__is_named_with_its_line() {
        let text = PLAN.replace("figure =", "figur =");
        assert!(problem(&text).contains("line 13") && problem(&text).contains("figur"));
    }

    #[test]
    fn plan__target_of_an_absent_case_or_variant__is_refused() {
        assert!(
            problem(&PLAN.replace("case = \"tcp\"", "case = \"udp\"")).contains("no case `udp`")
        );
        let text = PLAN.replace("over = [\"single\"]", "over = [\"mptcp\"]");
        assert!(problem(&text).contains("does not run `mptcp`"));
    }
}
