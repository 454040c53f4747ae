//! `kumi topo learn`: corrects a network file by the goodput of transfers.

use anyhow::Context;
use kumi_command::{BadInput, outln};
use kumi_topo::learn::{Came, corrected};
use kumi_topo::source;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Arguments of `kumi topo learn`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Network file that the jobs were planned on.
    #[arg(default_value = super::FILE)]
    file: PathBuf,
    /// Folder in which jobs recorded goodput: `kumi run --learn FOLDER`.
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// Writes the corrected network into this file.
    #[arg(long, value_name = "FILE")]
    corrected: Option<PathBuf>,
}

/// One line of a host's file.
#[derive(Deserialize)]
struct Line {
    from: String,
    to: String,
    bps: f64,
}

/// Runs `kumi topo learn`. Returns true if no link differs from the file.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    let network = super::read(&args.file)?;
    let records = read(&args.from)?;
    let (corrected_network, differences) = corrected(&network, &records);
    for difference in &differences {
        outln!("{difference}");
    }
    if let Some(file) = &args.corrected {
        let text = corrected_network.to_toml()?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    let (file, flows) = (args.file.display(), records.len());
    match differences.len() {
        0 => outln!("no link is slower than {file} says, according to {flows} flows"),
        1 => outln!("1 link is slower than {file} says, according to {flows} flows"),
        count => outln!("{count} links are slower than {file} says, according to {flows} flows"),
    }
    Ok(differences.is_empty())
}

/// Reads the records of all hosts. A line that a full disk truncated is skipped.
fn read(folder: &Path) -> anyhow::Result<Vec<Came>> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        let folder = folder.display();
        BadInput(format!(
            "--from {folder}: cannot be read: {error}; expected the folder of `kumi run --learn`"
        ))
    })?;
    let mut records = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "ndjson")
        {
            continue;
        }
        let (_, text) = source::read(&path)?;
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok());
        records.extend(lines.filter(|line| line.bps > 0.0).map(|line| Came {
            from: line.from,
            to: line.to,
            bps: line.bps,
        }));
    }
    Ok(records)
}
