//! The NAS Parallel Benchmarks themselves. Their licence is NASA's, so the user builds them:
//! `make CG CLASS=W NPROCS=16` in the folder of NPB 3.3 or 3.4 for MPI.

use super::Measurement;
use super::mpi::launch;
use crate::sample::Figures;
use crate::variant::Running;
use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// Variable with the folder of the built programs.
const FOLDER: &str = "KUMI_NPB";

/// Returns the command that runs the benchmark `args[0]` of the class `args[1]`.
pub fn command(
    running: &Running<'_>,
    rank_hosts: &[String],
    args: &[String],
) -> anyhow::Result<Vec<String>> {
    let [name, class] = args else {
        anyhow::bail!(
            "a NAS benchmark has two arguments, its name and its class, such as CG and W"
        );
    };
    let folder = std::env::var(FOLDER).with_context(|| {
        format!("{FOLDER} is not set: expected the folder with the built NAS benchmarks")
    })?;
    let path = find(Path::new(&folder), name, class, rank_hosts.len())?;
    launch(running, &path.to_string_lossy(), rank_hosts, &[])
}

/// Returns the program's file: NPB 3.3 builds one for each number of ranks, and 3.4 one for all.
fn find(folder: &Path, name: &str, class: &str, ranks: usize) -> anyhow::Result<PathBuf> {
    let name = name.to_lowercase();
    let files = [
        format!("{name}.{class}.{ranks}"),
        format!("{name}.{class}.x"),
    ];
    let paths = files.iter().map(|file| folder.join(file));
    let found = paths.into_iter().find(|path| path.exists());
    found.with_context(|| {
        let (folder, [first, second]) = (folder.display(), &files);
        format!(
            "{folder} has neither {first} nor {second}: make {name} CLASS={class} NPROCS={ranks}"
        )
    })
}

/// Returns the figures that a benchmark prints: its time, and whether its result is right.
pub fn figures(text: &str) -> anyhow::Result<Measurement> {
    // Headings begin with the same words, such as `Verification being performed for class S`.
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        Some(lines.find(|(key, _)| key.trim() == name)?.1.trim())
    };
    let missing = || {
        format!(
            "the benchmark printed no result; its last line: {}",
            last_line(text)
        )
    };
    let total_s: f64 = value("Time in seconds").with_context(missing)?.parse()?;
    let is_right = value("Verification").with_context(missing)? == "SUCCESSFUL";
    let mut figures = Figures::new();
    figures.insert("total_s".into(), total_s);
    figures.insert("results_wrong".into(), if is_right { 0.0 } else { 1.0 });
    Ok(Measurement {
        figures,
        series: None,
        size_bytes: None,
    })
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = " Verification being performed for class W\n Verification Successful\n \
                           CG Benchmark Completed.\n Class           =                        W\n \
                           Time in seconds =                     5.02\n \
                           Verification    =               SUCCESSFUL\n";

    #[test]
    fn figures__output_of_a_benchmark__are_its_time_and_whether_it_is_right() {
        let row = figures(PRINTED).unwrap();
        assert_eq!(row.figures["total_s"], 5.02);
        assert_eq!(row.figures["results_wrong"], 0.0);
        let row = figures(&PRINTED.replace("  SUCCESSFUL", "UNSUCCESSFUL")).unwrap();
        assert_eq!(row.figures["results_wrong"], 1.0);
        let error = figures(" Time step    1\nkilled\n").unwrap_err();
        let expected = "the benchmark printed no result; its last line: killed";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn find__benchmark_that_is_not_built__says_how_to_build_it() {
        let error = find(Path::new("/nowhere"), "CG", "W", 16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/nowhere has neither cg.W.16 nor cg.W.x: make cg CLASS=W NPROCS=16"
        );
    }
}
