//! Python programs with a rank on every host, started without a launcher.
//!
//! The programs are in `bench/workloads/`. They are embedded in the binary, with Kumihimo's own
//! package.

use super::coll_bound;
use super::mpi_programs::{self, add_excess};
use super::ranks;
use super::{Context, Measurement};
use anyhow::Context as _;
use serde_json::Value;

/// Python of the distribution. Another one on the `PATH` may lack PyTorch and NumPy.
const PYTHON: &str = "/usr/bin/python3";

/// A Python program of `bench/workloads/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PythonProgram {
    /// Collectives of a PyTorch program between hosts.
    Torch,
    /// Collectives of a group of libkumi.
    Group,
    /// Ranks that are lost, one after the other.
    Failure,
}

/// Every module of the Python package: path and text.
const PACKAGE: [(&str, &str); 8] = [
    (
        "kumi/__init__.py",
        include_str!("../../../../bindings/python/kumi/__init__.py"),
    ),
    (
        "kumi/_arrays.py",
        include_str!("../../../../bindings/python/kumi/_arrays.py"),
    ),
    (
        "kumi/_library.py",
        include_str!("../../../../bindings/python/kumi/_library.py"),
    ),
    (
        "kumi/_works.py",
        include_str!("../../../../bindings/python/kumi/_works.py"),
    ),
    (
        "kumi/coll.py",
        include_str!("../../../../bindings/python/kumi/coll.py"),
    ),
    (
        "kumi/dsm.py",
        include_str!("../../../../bindings/python/kumi/dsm.py"),
    ),
    (
        "kumi/torch.py",
        include_str!("../../../../bindings/python/kumi/torch.py"),
    ),
    (
        "kumi/wind.py",
        include_str!("../../../../bindings/python/kumi/wind.py"),
    ),
];

impl PythonProgram {
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Torch => (
                "torch_coll.py",
                include_str!("../../../../bench/workloads/torch_coll.py"),
            ),
            Self::Group => (
                "group_coll.py",
                include_str!("../../../../bench/workloads/group_coll.py"),
            ),
            Self::Failure => (
                "group_failure.py",
                include_str!("../../../../bench/workloads/group_failure.py"),
            ),
        }
    }
}

/// Runs PyTorch's collectives and returns rank 0's lines as figures.
pub fn measure_torch(context: &Context<'_>, args: &[String]) -> anyhow::Result<Vec<Measurement>> {
    measure(context, PythonProgram::Torch, args)
}

/// Runs a group's collectives and returns rank 0's lines as figures.
pub fn measure_group(context: &Context<'_>, args: &[String]) -> anyhow::Result<Vec<Measurement>> {
    measure(context, PythonProgram::Group, args)
}

fn measure(
    context: &Context<'_>,
    program: PythonProgram,
    args: &[String],
) -> anyhow::Result<Vec<Measurement>> {
    let text = run(context, program, args)?;
    let network = context.running.hosts.network()?;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let line: Value = serde_json::from_str(line).context("invalid line of the program")?;
        let mut row = mpi_programs::figures(&line);
        let operation = match line["operation"].as_str().unwrap_or_default() {
            "gather_object" => "gather",
            "ddp" => "allreduce",
            name => name,
        };
        coll_bound::add(&mut row, &network, operation)?;
        add_excess(&mut row);
        rows.push(row);
    }
    anyhow::ensure!(
        !rows.is_empty(),
        "the program printed no figures, which are lines of JSON: {}",
        text.trim()
    );
    Ok(rows)
}

/// Loses `losses` ranks, job by job. Each job has its own seed.
pub fn measure_failure(context: &Context<'_>, losses: u32) -> anyhow::Result<Vec<Measurement>> {
    let mut row = Measurement::default();
    let figures = &mut row.figures;
    let mut seed = 0;
    while figures.get("losses").copied().unwrap_or(0.0) < f64::from(losses) {
        seed += 1;
        let args = [context.running.device.clone(), seed.to_string()];
        let text = run(context, PythonProgram::Failure, &args)?;
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let before = figures.get("losses").copied();
        for line in lines {
            let line: Value = serde_json::from_str(line).context("invalid line of the program")?;
            let number = |name: &str| line[name].as_f64().unwrap_or(f64::INFINITY);
            for count_name in ["losses", "wrong", "misnamed"] {
                *figures.entry(count_name.into()).or_default() += number(count_name);
            }
            let fault = line["fault"].as_str().unwrap_or_default();
            for time_name in [
                "error_after_ms".to_owned(),
                format!("error_after_{fault}_ms"),
            ] {
                let longest_ms = figures.entry(time_name).or_default();
                *longest_ms = longest_ms.max(number("error_after_ms"));
            }
            let longest_ms = figures.entry("going_on_after_ms".into()).or_default();
            *longest_ms = longest_ms.max(number("going_on_after_ms"));
        }
        anyhow::ensure!(
            figures.get("losses").copied() > before,
            "no rank was lost: {text}"
        );
    }
    Ok(vec![row])
}

/// Runs a rank on every host and returns the output of all ranks.
fn run(context: &Context<'_>, program: PythonProgram, args: &[String]) -> anyhow::Result<String> {
    let running = context.running;
    let hosts = running.hosts;
    let folder = format!("/tmp/kumi-bench-python-{}", std::process::id());
    let (name, source) = program.file();
    for host in hosts.names() {
        let files = PACKAGE.iter().copied().chain([(name, source)]);
        for (file, text) in files {
            let write = format!("mkdir -p {folder}/kumi && cat > {folder}/{file}");
            hosts.feed(host, &["sh", "-c", &write], text.as_bytes())?;
        }
    }
    let variables = [
        format!("PYTHONPATH={folder}"),
        "PYTHONDONTWRITEBYTECODE=1".to_owned(),
        "OMP_NUM_THREADS=1".to_owned(),
        format!("GLOO_SOCKET_IFNAME={}", running.device),
        format!("TP_SOCKET_IFNAME={}", running.device),
    ];
    let script = format!("{folder}/{name}");
    let mut argv: Vec<&str> = vec![PYTHON, &script];
    argv.extend(args.iter().map(String::as_str));
    let has_losses = program == PythonProgram::Failure;
    let output = ranks::run(context, hosts.names().len(), &variables, &argv, has_losses);
    for host in hosts.names() {
        if program == PythonProgram::Failure {
            // Brings up links that the program took down.
            hosts.run(host, &["ip", "link", "set", &running.device, "up"])?;
        }
        let _ = hosts.run(host, &["rm", "-rf", &folder]);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::fake::{Fake, SOUND};
    use crate::variant::{Running, Variant};
    use std::path::Path;

    #[test]
    fn torch__program_without_figures__is_refused_with_its_output() {
        let fake = Fake::new(2, SOUND);
        let running = Running::start(&fake, Variant::Single).unwrap();
        let context = Context {
            running: &running,
            events: &[],
            windows: &[],
            quick: true,
        };
        let error = measure_torch(&context, &[]).unwrap_err();
        let expected = "the program printed no figures, which are lines of JSON: 1\n1";
        assert_eq!(error.to_string(), expected);
    }

    /// Guards against a missing module, which kept every rank of coll-torch from starting.
    #[test]
    fn python_package__embedded_files__include_every_module_of_the_bindings() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python/kumi");
        let files = std::fs::read_dir(folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut modules: Vec<String> = names
            .filter(|name| name.ends_with(".py"))
            .map(|name| format!("kumi/{name}"))
            .collect();
        modules.sort();
        assert_eq!(modules, PACKAGE.map(|(name, _)| name));
    }
}
