//! `kumi bench`: plans with targets, run on the lab or on real machines.
//!
//! ```text
//! bench/plans/PLAN.toml ─► plan ─► interleave ─► samples ─► judge ─► report
//!                                  │                                 └► bench/results/PLAN.ndjson
//!                                  │  variant (single, rr, mptcp, kumi …)
//!                                  │  workload (stream, flow, ping-pong …)
//!                                  └► hosts (lab: namespaces · ssh: machines)
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `kumi_command::output` replaces both

pub mod ceiling;
mod counters;
pub mod demo;
mod event;
pub mod fidelity;
pub mod folder;
pub mod hosts;
mod interleave;
mod interval;
mod judge;
pub mod manifest;
pub mod outcome;
mod plan;
mod report;
mod sample;
mod target;
pub mod variant;
pub mod workload;

use crate::fidelity::Depth;
use folder::Folder;
use hosts::Hosts;
use interleave::{Measurements, Pace};
use kumi_command::{BadInput, interrupt};
use kumi_command::{errln, out, outln};
use kumi_lab::CpuLatency;
use kumi_lab::topology::{Topology, TopologyError};
use outcome::Outcome;
use plan::Plan;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Topology whose hosts the manifest describes in a check of the lab.
const FIDELITY_TOPOLOGY: &str = "two-links";

/// Arguments of `kumi bench`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    /// Plans to run, by name (`--list`) or as the path of a file.
    #[arg(value_name = "PLAN", conflicts_with_all = ["all", "list"])]
    plans: Vec<String>,
    /// Runs every plan.
    #[arg(long, conflicts_with = "list")]
    all: bool,
    /// Lists the plans with their claims, and runs nothing.
    #[arg(long)]
    list: bool,
    /// Prints one JSON object per plan, instead of the table.
    #[arg(short, long)]
    json: bool,
    /// Gives a first impression in half a minute: one short repetition, results not written.
    #[arg(long)]
    quick: bool,
    /// Uses this topology file instead of the plan's own.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    topology: Option<PathBuf>,
    /// Uses real machines over ssh, instead of the lab; data flows from the first to the second.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Configuration file of ssh for --hosts: users, keys, ports.
    #[arg(long, value_name = "FILE", requires = "hosts")]
    ssh_config: Option<PathBuf>,
    /// NICs that are combined on --hosts, the same on each.
    #[arg(
        long,
        value_name = "NIC,NIC",
        value_delimiter = ',',
        default_value = "eth1,eth2"
    )]
    over: Vec<String>,
    /// Folder with plans, topologies and results; by default a checkout's `bench`, elsewhere the
    /// plans and topologies embedded in kumi.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Folder for results; outside a checkout by default ~/.local/state/kumi/results.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
}

/// Runs `kumi bench`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = Folder::choose(args.folder.as_deref(), Path::new(""));
    let names = if args.all || args.list {
        folder.plan_names()?
    } else {
        args.plans.clone()
    };
    let plans: Vec<Plan> = names
        .iter()
        .map(|name| folder.plan(name))
        .collect::<Result<_, _>>()?;
    if args.list {
        for plan in &plans {
            let note = plan
                .unmeasured
                .as_ref()
                .map_or(String::new(), |reason| format!(" (not run: {reason})"));
            outln!("{:<16} {}{note}", plan.name, plan.shows);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let keeps_results = !args.quick && args.topology.is_none() && args.hosts.is_empty();
    let results = match keeps_results {
        true => Some(folder.results(args.results.as_deref())?),
        false => None,
    };
    let place = Place {
        args: &args,
        folder,
        results,
    };
    interrupt::watch()?;
    let mut all_met = true;
    for plan in &plans {
        if let Some(missing) = plan.missing_folder(|name| std::env::var_os(name)) {
            let why = format!("plan `{}` needs {missing}", plan.name);
            anyhow::ensure!(args.all, BadInput(why));
            errln!("skipped: {why}");
            continue;
        }
        let is_held = args.hosts.is_empty() && plan.kept_awake;
        let latency = is_held.then(CpuLatency::hold_on_virtual_machine);
        let kept_awake = latency.as_ref().is_some_and(CpuLatency::is_held);
        if kept_awake {
            errln!(
                "the processors of this virtual machine poll instead of halting while it measures"
            );
        }
        all_met &= run_plan(&place, plan, kept_awake)?;
        if kumi_command::output::has_failed() {
            break; // the output of further plans would be lost
        }
    }
    Ok(if all_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Source of plans and destination of their results.
struct Place<'a> {
    args: &'a Args,
    folder: Folder,
    /// Folder for results; `None` if they are not kept.
    results: Option<PathBuf>,
}

/// Runs one plan. Returns whether it was valid and met all its targets.
fn run_plan(place: &Place<'_>, plan: &Plan, kept_awake: bool) -> anyhow::Result<bool> {
    let args = place.args;
    let pace = Pace {
        quick: args.quick,
        progress: true,
    };
    let (measurements, mut manifest, outcome) = if plan.fidelity {
        check_lab(place, plan)?
    } else {
        let (measurements, manifest) = measure(place, plan, pace)?;
        let outcome = Outcome {
            rows: report::rows(&measurements.samples),
            checks: judge::judge(plan, &measurements.samples),
            void: measurements.void.clone(),
        };
        (measurements, manifest, outcome)
    };
    manifest.kept_awake = kept_awake;
    let object = report::json(plan, &manifest, &outcome, &measurements);
    let result_file = match &place.results {
        Some(folder) => Some(report::write(folder, plan, &object, &measurements.samples)?),
        None => None,
    };
    if args.json {
        outln!("{object}");
    } else {
        out!("{}", report::table(plan, &outcome, &measurements));
    }
    if let Some(file) = result_file {
        errln!("result: {}", std::path::absolute(file)?.display());
    }
    let is_valid = outcome.void.is_empty() && measurements.failed.is_empty();
    Ok(is_valid && outcome.checks.iter().all(|check| check.pass))
}

/// Runs the lab's own check as a plan.
fn check_lab(
    place: &Place<'_>,
    plan: &Plan,
) -> anyhow::Result<(Measurements, manifest::Manifest, Outcome)> {
    let args = place.args;
    let manifest = {
        let hosts = open(place, FIDELITY_TOPOLOGY)?;
        manifest::Manifest::collect(&*hosts, plan.seed, args.quick)?
    };
    let depth = if args.quick {
        Depth::Quick
    } else {
        Depth::Full
    };
    let outcome = crate::fidelity::run(depth)?;
    Ok((Measurements::default(), manifest, outcome))
}

/// Checks that a plan whose variants need libkumi.so finds it, before it runs for minutes without
/// them.
fn check_library(plan: &Plan, find: impl Fn() -> Result<PathBuf, String>) -> Result<(), BadInput> {
    let Some(variant) = plan.library_variant() else {
        return Ok(());
    };
    match find() {
        Ok(_) => Ok(()),
        Err(problem) => Err(BadInput(format!(
            "plan `{}` runs `{variant}`: {problem}; `make build` builds it",
            plan.name
        ))),
    }
}

/// Runs a plan's cases, topology by topology. Each topology is brought up once.
fn measure(
    place: &Place<'_>,
    plan: &Plan,
    pace: Pace,
) -> anyhow::Result<(Measurements, manifest::Manifest)> {
    if place.args.hosts.is_empty() {
        check_library(plan, kumi_command::library::planning_library)?;
    }
    let mut measurements = Measurements::default();
    let mut manifest = None;
    for topology in plan.topologies(pace.quick) {
        let mut hosts = open(place, topology)?;
        if manifest.is_none() {
            manifest = Some(manifest::Manifest::collect(&*hosts, plan.seed, pace.quick)?);
        }
        let cases: Vec<_> = plan.cases_on(topology, pace.quick).collect();
        let runs = |case| plan.repetitions_of(case, pace.quick);
        for repetition in 0..cases.iter().map(|case| runs(case)).max().unwrap_or(0) {
            for case in cases.iter().filter(|case| repetition < runs(case)) {
                interleave::run_case(&mut *hosts, plan, case, repetition, pace, &mut measurements);
                interrupt::check()?;
            }
        }
    }
    let manifest = manifest.ok_or_else(|| {
        let cases: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
        BadInput(format!(
            "plan `{}`: --quick leaves out slow cases, and all are slow ({}); omit --quick",
            plan.name,
            cases.join(", ")
        ))
    })?;
    Ok((measurements, manifest))
}

/// Opens the hosts for a topology: real machines if the command line names them, else a lab.
fn open(place: &Place<'_>, topology: &str) -> anyhow::Result<Box<dyn Hosts>> {
    let args = place.args;
    if !args.hosts.is_empty() {
        return Ok(Box::new(hosts::ssh::Ssh::new(
            args.hosts.clone(),
            args.over.clone(),
            args.ssh_config.clone(),
        )?));
    }
    let topology = match (&args.topology, generated(topology)) {
        (Some(file), _) => folder::read_topology(file)?,
        (None, Some(topology)) => topology.map_err(|error| BadInput(error.to_string()))?,
        (None, None) => place.folder.topology(topology)?,
    };
    Ok(Box::new(hosts::lab::Lab::up(&topology)?))
}

/// Number of hosts in a plan's random trees.
const RANDOM_HOSTS: usize = 64;

/// Forms of the names of generated topologies, as messages list them.
const GENERATED: &str = "random-tree-SEED, path-RATE-RTT-QUEUE[-LOSS]";

/// Returns the generated topology of that name, whose form is one of [`GENERATED`]. `None` if the
/// name is that of a file.
fn generated(name: &str) -> Option<Result<Topology, TopologyError>> {
    let Some(seed) = name.strip_prefix("random-tree-") else {
        return Topology::single_path(name);
    };
    Some(Topology::random_tree(seed.parse().ok()?, RANDOM_HOSTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn missing_folder__unset_or_no_folder__is_named() {
        let text = r#"
            name = "p"
            shows = "something"
            topology = "two-links"
            variable = "KUMI_NPB"
            variants = ["cubic"]
            [[case]]
            name = "tcp"
            workload = { kind = "stream", seconds = 5 }
            "#;
        let plan = Plan::parse("p.toml", text).expect("is sound");
        let missing = |value: Option<&str>| plan.missing_folder(|_| value.map(Into::into));
        assert_eq!(missing(None).unwrap(), "KUMI_NPB, which is not set");
        assert_eq!(
            missing(Some("/no/such")).unwrap(),
            "KUMI_NPB to name a folder, and `/no/such` is none"
        );
        assert_eq!(missing(Some("/")), None);
    }

    #[test]
    fn check_library__missing__is_refused_if_a_variant_needs_it() {
        let missing = || Err("libkumi.so not found in /opt".to_owned());
        for (variant, message) in [
            ("kumi-tcp", None),
            (
                "kumi-auto",
                Some(
                    "plan `p` runs `kumi-auto`: libkumi.so not found in /opt; `make build` \
                     builds it",
                ),
            ),
        ] {
            let text = format!(
                r#"
                name = "p"
                shows = "something"
                topology = "two-links"
                variants = ["cubic", "{variant}"]
                [[case]]
                name = "tcp"
                workload = {{ kind = "stream", seconds = 5 }}
                "#
            );
            let plan = Plan::parse("p.toml", &text).expect("is sound");
            let checked = check_library(&plan, missing).map_err(|error| error.to_string());
            assert_eq!(checked.err().as_deref(), message);
            assert!(check_library(&plan, || Ok(PathBuf::new())).is_ok());
        }
    }

    #[test]
    fn quick__plan_with_slow_cases_only__is_refused_with_their_names() {
        let text = r#"
            name = "p"
            shows = "something"
            topology = "two-links"
            variants = ["single"]
            [[case]]
            name = "long"
            workload = { kind = "stream", seconds = 500 }
            slow = true
        "#;
        let plan = Plan::parse("p.toml", text).unwrap();
        let args = Command::try_parse_from(["bench", "--quick", "p"])
            .unwrap()
            .args;
        let place = Place {
            args: &args,
            folder: Folder::Embedded,
            results: None,
        };
        let pace = Pace {
            quick: true,
            progress: false,
        };
        let error = measure(&place, &plan, pace).err().unwrap();
        assert_eq!(
            error.to_string(),
            "plan `p`: --quick leaves out slow cases, and all are slow (long); omit --quick"
        );
    }
}
