//! Bench plans: the cases to run, each on a topology, and the targets for their figures.
//!
//! A plan is data (`bench/plans/NAME.toml`): its cases, the variants that each case runs
//! interleaved, and its targets. The keys of the file are documented on the fields of the structs
//! below.

use super::GENERATED;
use super::event::{Event, Window};
use super::target::Target;
use super::variant::Variant;
use super::workload::Workload;
use kumi_command::BadInput;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

/// A bench plan.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan, equal to that of its file.
    pub name: String,
    /// Claim that the plan tests, in one sentence.
    pub shows: String,
    /// Figure of a paper that the plan reproduces, if any.
    #[serde(default)]
    pub paper: Option<String>,
    /// Topology of cases that name none: a file of `bench/topologies/` without its extension,
    /// `random-tree-SEED`, or `path-RATE-RTT-QUEUE[-LOSS]`.
    #[serde(default)]
    pub topology: Option<String>,
    /// Variants of cases that name none.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Runs of each variant in each case. The targets' statistics are taken over these runs.
    #[serde(default = "default_repetitions")]
    pub repetitions: u32,
    /// True if the processors of a virtual machine poll instead of halting while it measures. Their
    /// wake-up takes longer than a physical one's.
    #[serde(default = "default_kept_awake")]
    pub kept_awake: bool,
    /// Seed that is recorded in the manifest.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Reason why no result exists yet. `cargo xtask tidy` requires either a result or this reason.
    #[serde(default)]
    pub unmeasured: Option<String>,
    /// Environment variable that names a folder, without which the plan cannot run.
    #[serde(default)]
    pub variable: Option<String>,
    /// True if the plan runs the lab's own check (`kumi lab check`) instead of cases and targets.
    #[serde(default)]
    pub fidelity: bool,
    /// Cases to run.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// Targets to meet.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

impl Plan {
    /// Returns what is wrong with the variable that the plan needs. `value` reads a variable.
    pub fn missing_folder(&self, value: impl Fn(&str) -> Option<OsString>) -> Option<String> {
        let name = self.variable.as_deref()?;
        match value(name) {
            None => Some(format!("{name}, which is not set")),
            Some(folder) if !Path::new(&folder).is_dir() => Some(format!(
                "{name} to name a folder, and `{}` is none",
                folder.to_string_lossy()
            )),
            Some(_) => None,
        }
    }
}

fn default_repetitions() -> u32 {
    3
}

fn check_repetitions(repetitions: u32) -> Result<(), String> {
    match repetitions {
        0 => Err("invalid repetitions = 0: expected at least 1".into()),
        _ => Ok(()),
    }
}

fn default_kept_awake() -> bool {
    true
}

fn default_seed() -> u64 {
    7
}

/// One workload on one topology, with the changes of the network during the run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name, unique in the plan.
    pub name: String,
    /// Topology of this case, instead of the plan's.
    #[serde(default)]
    pub topology: Option<String>,
    /// Variants of this case, instead of the plan's.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Runs of each variant in this case, instead of the plan's number.
    #[serde(default)]
    pub repetitions: Option<u32>,
    /// Workload that the hosts run.
    pub workload: Workload,
    /// Changes of the network, in order of time.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// Periods whose goodput becomes a figure of its own.
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    /// True if `--quick` leaves out the case.
    #[serde(default)]
    pub slow: bool,
}

impl Plan {
    /// Parses and checks a plan. `file` is the name that errors show.
    pub fn parse(file: &str, text: &str) -> Result<Self, BadInput> {
        let plan: Self =
            toml::from_str(text).map_err(|error| BadInput(format!("{file}: {error}")))?;
        plan.check()
            .map_err(|problem| BadInput(format!("{file}: {problem}")))?;
        Ok(plan)
    }

    /// Returns the variants that `case` runs.
    pub fn variants_of<'a>(&'a self, case: &'a Case) -> &'a [Variant] {
        if case.variants.is_empty() {
            &self.variants
        } else {
            &case.variants
        }
    }

    /// Returns the topologies of the cases that run, each once, in the order of the cases. With
    /// `quick`, slow cases do not run.
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

    /// Returns the first variant that needs libkumi.so, if any.
    pub fn library_variant(&self) -> Option<Variant> {
        let mut variants = self.cases.iter().flat_map(|case| self.variants_of(case));
        variants
            .find(|variant| variant.needs_planning_library())
            .copied()
    }

    /// Returns the cases that run on `topology`.
    pub fn cases_on(&self, topology: &str, quick: bool) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(move |case| self.topology_of(case) == topology && !(quick && case.slow))
    }

    /// Returns the runs of each variant in a case.
    pub fn repetitions_of(&self, case: &Case, quick: bool) -> u32 {
        match quick {
            true => 1,
            false => case.repetitions.unwrap_or(self.repetitions),
        }
    }

    fn topology_of<'a>(&'a self, case: &'a Case) -> &'a str {
        case.topology
            .as_deref()
            .or(self.topology.as_deref())
            .unwrap_or_default()
    }

    fn check(&self) -> Result<(), String> {
        if self.cases.is_empty() && !self.fidelity {
            return Err("no [[case]]: expected at least one, or `fidelity = true`".into());
        }
        check_repetitions(self.repetitions)?;
        let mut names = BTreeSet::new();
        for case in &self.cases {
            if !names.insert(case.name.as_str()) {
                return Err(format!(
                    "duplicate case `{}`; give each case a unique name",
                    case.name
                ));
            }
            self.check_case(case)
                .map_err(|problem| format!("case `{}`: {problem}", case.name))?;
        }
        let cases: Vec<(&str, &[Variant])> = self
            .cases
            .iter()
            .map(|case| (case.name.as_str(), self.variants_of(case)))
            .collect();
        self.targets
            .iter()
            .try_for_each(|target| target.check(&cases))
    }

    fn check_case(&self, case: &Case) -> Result<(), String> {
        check_repetitions(case.repetitions.unwrap_or(1))?;
        if self.variants_of(case).is_empty() {
            let known = Variant::ALL.map(Variant::name).join(", ");
            return Err(format!(
                "no `variants` in the case or in the plan; known variants: {known}"
            ));
        }
        if case.topology.is_none() && self.topology.is_none() {
            return Err(format!(
                "no `topology` in the case or in the plan; write the name of one, its file, or \
                 one of {GENERATED}"
            ));
        }
        case.workload.check()?;
        case.events.iter().try_for_each(Event::check)?;
        case.windows.iter().try_for_each(Window::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::target::Statistic;
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
    fn plan__every_committed_plan__is_valid() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let bench = Folder::choose(None, &root);
        for name in bench.plan_names().expect("the folder is there") {
            let plan = bench.plan(&name).expect("is sound");
            assert_eq!(plan.name, name);
            for topology in plan.topologies(false) {
                if let Some(tree) = crate::generated(topology) {
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
    fn plan__valid_file__is_read() {
        let plan = Plan::parse("p.toml", PLAN).expect("is sound");
        assert_eq!(plan.repetitions, 3);
        assert_eq!(plan.targets[0].statistic, Statistic::Bound);
    }

    #[test]
    fn repetitions__case_with_its_own__has_them_instead_of_the_plans() {
        let text = PLAN.replacen("[[case]]", "[[case]]\nrepetitions = 9", 1);
        let plan = Plan::parse("p.toml", &text).expect("is sound");
        assert_eq!(plan.repetitions_of(&plan.cases[0], false), 9);
        assert_eq!(plan.repetitions_of(&plan.cases[0], true), 1);
    }

    /// Known variants, as messages list them.
    const VARIANTS: &str = "known variants: single, rr, rr-tuned, mptcp, ri2n, kumi, kumi-plain, \
        kumi-kernel, kumi-one-link, kumi-busy-poll, cubic, cubic-idle0, cubic-rto5, bbr, kumi-tcp, \
        kumi-tcp-rto, kumi-tcp-pce, kumi-tcp-no-phases, kumi-tcp-no-stall, kumi-tcp-no-band, \
        kumi-link-tcp, kumi-coll, kumi-coll-tcp, kumi-auto, kumi-coll-wind, \
        kumi-coll-wind-kernel, wind, wind-spin, wind-plain, wind-trusted, wind-kernel, udp, \
        udp-spin, tcp-spin, mpi-one-sided, mpi-flush, oshmem, ucx, dsm, dsm-updated, \
        dsm-messages, shmem, shmem-kernel, fabric-kumi, fabric-tcp, mpi-fabric-kumi, \
        mpi-fabric-tcp";

    #[test]
    fn plan__invalid_cases__are_named_with_what_is_accepted() {
        const SHOWS: &str = r#"shows = "something""#;
        const WORKLOAD: &str = r#"{ kind = "stream", seconds = 5 }"#;
        let with_event = |times: &str| {
            let change = "change = { carrier = false }";
            format!(
                "{WORKLOAD}\nevent = [{{ name = \"cut\", link = \"h2:eth2\", {change}, {times} }}]"
            )
        };
        let again = |every_s: &str| {
            let reverse = "reverse = { carrier = true }, count = 2";
            with_event(&format!(
                "at_s = 1.0, again = {{ every_s = {every_s}, {reverse} }}"
            ))
        };
        let with_window = |ends: &str| format!("{WORKLOAD}\nwindow = [{{ name = \"w\", {ends} }}]");
        let window_message = |ends: &str| {
            format!(
                "case `tcp`: window `w`: invalid {ends}: expected 0 to 86400 seconds, from_s below \
                 to_s"
            )
        };
        for (old, new, message) in [
            (
                SHOWS,
                format!("{SHOWS}\nrepetitions = 0"),
                "invalid repetitions = 0: expected at least 1".to_owned(),
            ),
            (
                WORKLOAD,
                format!("{WORKLOAD}\nrepetitions = 0"),
                "case `tcp`: invalid repetitions = 0: expected at least 1".to_owned(),
            ),
            (
                "[[target]]",
                format!("[[case]]\nname = \"tcp\"\nworkload = {WORKLOAD}\n[[target]]"),
                "duplicate case `tcp`; give each case a unique name".to_owned(),
            ),
            (
                r#"variants = ["single", "kumi"]"#,
                String::new(),
                format!("case `tcp`: no `variants` in the case or in the plan; {VARIANTS}"),
            ),
            (
                r#"topology = "two-links""#,
                String::new(),
                "case `tcp`: no `topology` in the case or in the plan; write the name of one, its \
                 file, or one of random-tree-SEED, path-RATE-RTT-QUEUE[-LOSS]"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                "{ kind = \"pattern\", pattern = \"one-way\", exchange = \"request-response\", \
                 sizes_bytes = [1], seconds = 1, flows = 2 }"
                    .to_owned(),
                "case `tcp`: invalid flows = 2: expected 1, because only exchange `streaming` has \
                 more"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                "{ kind = \"simulated\", operation = \"alltoal\", hosts = 8, sizes_bytes = [1], \
                 port_queue = \"64KiB\" }"
                    .to_owned(),
                "case `tcp`: invalid operation `alltoal`: expected one of gather, scatter, bcast, \
                 reduce, allgather, reduce_scatter, allreduce, alltoall, gatherv, scatterv, \
                 allgatherv, alltoallv"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                with_event("at_s = -1.0"),
                "case `tcp`: event `cut`: invalid at_s = -1: expected 0 to 86400 seconds"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                with_event("at_s = inf"),
                "case `tcp`: event `cut`: invalid at_s = inf: expected 0 to 86400 seconds"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                again("-0.5"),
                "case `tcp`: event `cut`: invalid every_s = -0.5: expected 0 to 86400 seconds"
                    .to_owned(),
            ),
            (
                WORKLOAD,
                with_window("from_s = 5.0, to_s = 2.0"),
                window_message("from_s = 5, to_s = 2"),
            ),
            (
                WORKLOAD,
                with_window("from_s = 5.0, to_s = inf"),
                window_message("from_s = 5, to_s = inf"),
            ),
        ] {
            let text = PLAN.replacen(old, &new, 1);
            assert_ne!(text, PLAN, "{old}");
            assert_eq!(problem(&text), format!("p.toml: {message}"));
        }
        assert_eq!(
            problem("name = \"p\"\nshows = \"something\""),
            "p.toml: no [[case]]: expected at least one, or `fidelity = true`"
        );
    }

    #[test]
    fn plan__invalid_targets__are_named_with_what_is_accepted() {
        const OVER: &str = r#"over = ["single"]"#;
        const FIGURE: &str = r#"figure = "goodput_bps""#;
        let unknown = format!("no variant `bonding`; {VARIANTS}");
        for (old, new, message) in [
            (
                r#"case = "tcp""#,
                r#"case = "udp""#,
                "no case `udp`; known cases: tcp",
            ),
            (
                OVER,
                r#"mean_with = ["udp"]"#,
                "no case `udp`; known cases: tcp",
            ),
            (
                OVER,
                "over = [\"single\"]\nover_case = \"udp\"",
                "no case `udp`; known cases: tcp",
            ),
            (
                r#"variant = "kumi""#,
                r#"variant = "mptcp""#,
                "case `tcp` does not run `mptcp`; it runs single, kumi",
            ),
            (
                OVER,
                r#"over = ["mptcp"]"#,
                "case `tcp` does not run `mptcp`; it runs single, kumi",
            ),
            (
                OVER,
                r#"minus = "rr""#,
                "case `tcp` does not run `rr`; it runs single, kumi",
            ),
            (
                OVER,
                "over = [\"single\"]\ngains = [\"rr\"]",
                "case `tcp` does not run `rr`; it runs single, kumi",
            ),
            (OVER, r#"over = ["bonding"]"#, unknown.as_str()),
            (
                OVER,
                r#"over = ["ceiling.plan"]"#,
                "no ceiling `plan`; known ceilings: plain, framing, best_link",
            ),
            (
                OVER,
                r#"gains = ["single"]"#,
                "`gains` requires `over`, the divisor of each gain",
            ),
            (
                FIGURE,
                "figure = \"jain_ratio\"\ngains = [\"single\"]",
                "`gains` accepts rates (`_bps`) and times, not `jain_ratio`",
            ),
        ] {
            let text = PLAN.replacen(old, new, 1);
            let expected = format!("p.toml: target `goodput_vs_single`: {message}");
            assert_eq!(problem(&text), expected, "{new}");
        }
    }

    #[test]
    fn plan__unknown_words__are_named_with_their_line_and_the_known_ones() {
        for (old, new, line, message) in [
            (
                r#"["single", "kumi"]"#,
                r#"["bonding"]"#,
                5,
                "unknown variant `bonding`, expected one of `single`, `rr`, `rr-tuned`",
            ),
            (
                r#"kind = "stream""#,
                r#"kind = "strem""#,
                8,
                "unknown variant `strem`, expected one of `stream`, `flow`, `integrity`",
            ),
            (
                r#"op = ">=""#,
                r#"op = "=>""#,
                15,
                "unknown variant `=>`, expected one of `>=`, `<=`, `==`",
            ),
        ] {
            let problem = problem(&PLAN.replacen(old, new, 1));
            let place = format!("p.toml: TOML parse error at line {line}, ");
            assert!(problem.starts_with(&place), "{problem}");
            assert!(problem.contains(message), "{problem}");
        }
    }

    #[test]
    fn plan__unknown_key__is_named_with_its_line() {
        let text = PLAN.replace("figure =", "figur =");
        assert!(problem(&text).contains("line 13") && problem(&text).contains("figur"));
    }
}
