//! `kumi topo learn`: a network file corrected by what transfers showed.

use anyhow::Context;
use kumi_topo::learn::{Came, corrected};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Arguments of `kumi topo learn`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The network file that the jobs were planned on.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// The folder in which jobs kept what they saw: `kumi run --learn FOLDER`.
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// Writes the corrected network into this file.
    #[arg(long, value_name = "FILE")]
    corrected: Option<PathBuf>,
}

/// A line of a host's file.
#[derive(Deserialize)]
struct Line {
    from: String,
    to: String,
    bps: f64,
}

/// Runs `kumi topo learn`. Whether all is as the file says.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    let network = super::read(&args.file)?;
    let came = read(&args.from)?;
    let (better, differences) = corrected(&network, &came);
    for difference in &differences {
        outln!("{difference}");
    }
    if let Some(file) = &args.corrected {
        let text = better.to_toml()?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    let (file, flows) = (args.file.display(), came.len());
    match differences.len() {
        0 => outln!("{flows} flows came as fast as {file} says"),
        1 => outln!("of {flows} flows some passed a link that is slower than {file} says"),
        many => {
            outln!("of {flows} flows some passed {many} links that are slower than {file} says")
        }
    }
    Ok(differences.is_empty())
}

/// What all hosts kept. A line that is cut short, by a full disk, is passed over.
fn read(folder: &Path) -> anyhow::Result<Vec<Came>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut came = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "ndjson")
        {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok());
        came.extend(lines.filter(|line| line.bps > 0.0).map(|line| Came {
            from: line.from,
            to: line.to,
            bps: line.bps,
        }));
    }
    Ok(came)
}
