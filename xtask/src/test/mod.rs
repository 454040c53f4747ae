//! `cargo xtask test`: everything that `make test` runs, in stages, with one summary.
//!
//! A stage that fails does not stop the next ones, so one run shows all failures. Tests that this
//! machine cannot run are skipped by name, with the missing requirement.

mod needs;
mod steal;
mod tally;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use tally::Tally;

/// Stages in their order. Stages that fail quickly come first.
const STAGES: [&str; 8] = [
    "fmt", "clippy", "tidy", "docs", "unit", "deny", "fuzz", "network",
];

/// Time of a fuzz target without `--fuzz-seconds`, in seconds. It keeps `make test` below 15
/// minutes.
const FUZZ_SECONDS: u32 = 20;

/// Runs of a test whose failures are void, at most. The last one counts in any case.
const RUNS_MAX: usize = 4;

/// Options of the command line.
pub struct Options {
    only: Option<String>,
    fuzz_seconds: u32,
}

impl Options {
    /// Parses the flags. The error is a sentence for the user.
    pub fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            only: None,
            fuzz_seconds: FUZZ_SECONDS,
        };
        for pair in flags.chunks(2) {
            match pair {
                ["--only", stage] if STAGES.contains(stage) => options.only = Some((*stage).into()),
                ["--only", stage] => {
                    return Err(format!("no stage `{stage}`: expected one of {STAGES:?}"));
                }
                ["--fuzz-seconds", text] => {
                    options.fuzz_seconds = text
                        .parse()
                        .map_err(|_| format!("--fuzz-seconds: `{text}` is not a number"))?;
                }
                _ => return Err(format!("unknown flag `{}`", pair[0])),
            }
        }
        Ok(options)
    }

    fn includes(&self, stage: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == stage)
    }
}

/// Runs the stages and prints the summary. Fails if any test failed.
pub fn run(root: &Path, options: &Options) -> ExitCode {
    let mut tally = Tally::default();
    let start = Instant::now();
    let mut times = Vec::new();
    for stage in STAGES.into_iter().filter(|stage| options.includes(stage)) {
        println!("\n== {stage}");
        let stage_start = Instant::now();
        run_stage(stage, root, options, &mut tally);
        times.push(format!("{stage} {}", stage_start.elapsed().as_secs()));
    }
    let seconds = start.elapsed().as_secs();
    println!("\n== summary ({seconds} s: {})", times.join(", "));
    print!("{tally}");
    if tally.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_stage(stage: &str, root: &Path, options: &Options, tally: &mut Tally) {
    match stage {
        "fmt" => tool(root, tally, "fmt", &["fmt", "--all", "--check"]),
        "clippy" => {
            let args = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ];
            tool(root, tally, "clippy", &args);
        }
        "tidy" => {
            tally.record("tidy", super::tidy::run(root) == ExitCode::SUCCESS);
            results(root, tally);
        }
        "docs" => docs(root, tally),
        "unit" => unit(root, tally),
        "deny" => deny(root, tally),
        "fuzz" => fuzz(root, options.fuzz_seconds, tally),
        "network" => network(root, tally),
        _ => unreachable!("stages are checked when they are parsed"),
    }
}

/// Checks that the documents have the figures of the results. It needs Python 3.11 for `tomllib`.
fn results(root: &Path, tally: &mut Tally) {
    let name = "documents equal bench/results";
    let python = |args: &[&str]| {
        let mut command = Command::new("/usr/bin/python3");
        let status = command.current_dir(root).args(args).status();
        status.is_ok_and(|status| status.success())
    };
    if python(&["-c", "import tomllib"]) {
        tally.record(name, python(&["bench/figures/report.py", "--check"]));
    } else {
        tally.skip(name, "/usr/bin/python3 has no tomllib");
    }
}

/// Builds the documentation as a book, and checks spelling, types of the Python package, and style
/// of Python and C.
fn docs(root: &Path, tally: &mut Tally) {
    let c_files = list_files(root, &["*.c", "*.h"]);
    let format = ["--dry-run", "--Werror"].map(str::to_owned);
    let format = [&format[..], &c_files].concat();
    let strings = |strings: &[&str]| strings.iter().map(|string| (*string).to_owned()).collect();
    let checks: [(&str, Vec<String>, &str); 6] = [
        ("mdbook", strings(&["build", "docs"]), ""),
        (
            "codespell",
            strings(&["--quiet-level=2", "--config=.codespellrc"]),
            "",
        ),
        ("mypy", Vec::new(), "bindings/python"),
        ("ruff", strings(&["check", "--quiet"]), ""),
        ("ruff", strings(&["format", "--check", "--quiet"]), ""),
        ("clang-format", format, ""),
    ];
    for (program, arguments, folder) in checks {
        let mut command = Command::new(program);
        let folder = root.join(folder);
        match command.current_dir(folder).args(arguments).status() {
            Ok(status) => tally.record(program, status.success()),
            Err(_) => tally.skip(program, &format!("{program} is not installed")),
        }
    }
}

/// Returns the files of the repository whose names match `patterns`.
fn list_files(root: &Path, patterns: &[&str]) -> Vec<String> {
    let git = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(patterns)
        .output();
    let text = git.map(|git| String::from_utf8_lossy(&git.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Checks the dependencies against `deny.toml`. It needs the dependencies of every platform. A
/// build downloads only those of this one, so the others are fetched once.
fn deny(root: &Path, tally: &mut Tally) {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(root).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let metadata = ["metadata", "--offline", "--locked", "--format-version=1"];
    if !cargo(&metadata) && !cargo(&["fetch", "--locked"]) {
        tally.skip(
            "cargo deny",
            "crates of other platforms cannot be downloaded (`cargo fetch --locked`)",
        );
        return;
    }
    let checks = ["deny", "--offline", "check", "bans", "licenses", "sources"];
    tool(root, tally, "deny", &checks);
}

/// Runs `cargo SUBCOMMAND` as one test, or skips it if the subcommand is not installed.
fn tool(root: &Path, tally: &mut Tally, subcommand: &str, args: &[&str]) {
    let is_installed = Command::new("cargo")
        .args([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_installed {
        tally.skip(
            &format!("cargo {subcommand}"),
            &format!("cargo-{subcommand} is not installed"),
        );
        return;
    }
    let passed = Command::new("cargo")
        .current_dir(root)
        .args(args)
        .status()
        .is_ok_and(|status| status.success());
    tally.record(&format!("cargo {subcommand}"), passed);
}

/// Runs all tests that require nothing of the machine.
fn unit(root: &Path, tally: &mut Tally) {
    let arguments = ["--workspace", "--locked", "--no-fail-fast"];
    let lines = cargo_test(root, &arguments, tally, |_| None);
    // Ignored tests with a requirement belong to the network stage. The others are skipped.
    for (name, reason) in tally::ignored_tests(&lines) {
        if needs::parse(&reason).is_none() {
            tally.skip(&name, &reason);
        }
    }
}

/// Runs tests marked `#[ignore = "needs …"]`, one at a time, because they share the machine's
/// processors and network. One that fails while the hypervisor takes processors runs again.
fn network(root: &Path, tally: &mut Tally) {
    let sources = needs::find_ignored(root);
    let mut skip = BTreeSet::new();
    for (name, reason) in &sources {
        match needs::parse(reason) {
            None => {
                skip.insert(name.clone());
            }
            Some(requirements) => {
                let lacks: Result<Vec<_>, _> = requirements
                    .iter()
                    .map(|need| needs::find_lack(need))
                    .collect();
                match lacks {
                    Ok(lacks) => {
                        if let Some(lack) = lacks.into_iter().flatten().next() {
                            tally.skip(name, &lack);
                            skip.insert(name.clone());
                        }
                    }
                    Err(error) => tally.record(&format!("{name}: {error}"), false),
                }
            }
        }
    }
    if skip.len() == sources.len() {
        return;
    }
    let common = ["--workspace", "--locked", "--no-fail-fast", "--"];
    let common = [&common[..], &["--ignored", "--test-threads=1"]].concat();
    let mut args = common.clone();
    for name in &skip {
        args.extend(["--skip", name]);
    }
    let watch = steal::Watch::start();
    let void_share =
        |began| Some(watch.largest_share(began)).filter(|share| *share > steal::SHARE_MAX);
    let mut void_before = tally.void.len();
    cargo_test(root, &args, tally, void_share);
    for run in 2..=RUNS_MAX {
        let names: Vec<String> = tally.void[void_before..]
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        if names.is_empty() {
            return;
        }
        void_before = tally.void.len();
        println!("\n== network, run {run}: {names:?} failed without all processors");
        let mut args = [&common[..], &["--exact"]].concat();
        args.extend(names.iter().map(String::as_str));
        match run {
            RUNS_MAX => cargo_test(root, &args, tally, |_| None),
            _ => cargo_test(root, &args, tally, void_share),
        };
    }
}

/// Runs `cargo test`, passes its output on, and counts each test by its line. A run that fails
/// without a failed test is itself a failure: it did not build, or it crashed. `void_share` has the
/// time at which the test before ended.
fn cargo_test(
    root: &Path,
    args: &[&str],
    tally: &mut Tally,
    void_share: impl Fn(Instant) -> Option<f64>,
) -> Vec<String> {
    let failures_before = tally.failures();
    let outcome = Command::new("cargo")
        .current_dir(root)
        .arg("test")
        .args(args)
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = outcome else {
        tally.record("cargo test starts", false);
        return Vec::new();
    };
    let output = child.stdout.take().expect("stdout is piped");
    let mut lines = Vec::new();
    let mut began = Instant::now();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        println!("{line}");
        if tally.count_line(&line, || void_share(began)) {
            began = Instant::now();
        }
        lines.push(line);
    }
    tally.keep_outputs(&lines);
    let is_success = child.wait().is_ok_and(|status| status.success());
    if !is_success && tally.failures() == failures_before {
        tally.record("cargo test", false);
    }
    lines
}

/// Runs each fuzz target on stable Rust, two at a time (`fuzz/README.md`).
fn fuzz(root: &Path, seconds: u32, tally: &mut Tally) {
    if !root.join("fuzz/Cargo.toml").exists() {
        tally.skip("fuzz", "there is no fuzz/ yet");
        return;
    }
    // Built with the whole workspace, the driver uses the libraries of the stage before.
    let build = ["build", "--quiet", "--locked", "--workspace", "--bin"];
    let built = Command::new("cargo")
        .current_dir(root)
        .args(build)
        .arg("kumi-fuzz")
        .status();
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), std::path::PathBuf::from);
    let driver = target.join("debug/kumi-fuzz");
    tally.record(
        "fuzz driver builds",
        built.is_ok_and(|status| status.success()),
    );
    let listing = Command::new(&driver)
        .current_dir(root)
        .arg("--list")
        .output();
    let Some(listing) = listing.ok().filter(|listing| listing.status.success()) else {
        tally.record("fuzz driver lists its targets", false);
        return;
    };
    let targets = String::from_utf8_lossy(&listing.stdout).into_owned();
    let targets: Vec<&str> = targets.lines().collect();
    for pair in targets.chunks(2) {
        let runs: Vec<_> = pair
            .iter()
            .map(|target| {
                let seconds = seconds.to_string();
                let run = Command::new(&driver)
                    .current_dir(root)
                    .args([target, "--seconds", &seconds])
                    .spawn();
                (target, run)
            })
            .collect();
        for (target, run) in runs {
            let passed = run
                .and_then(|mut run| run.wait())
                .is_ok_and(|status| status.success());
            tally.record(&format!("fuzz {target}"), passed);
        }
    }
}
