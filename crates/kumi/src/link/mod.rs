//! `kumi link`: one virtual Ethernet device over several physical links.

pub mod service;
mod show;
mod up;

use anyhow::Context;
use kumi_command::outln;
use kumi_command::output::Output;
use kumi_device::config::{DatapathChoice, DeviceConfig, Preset};
use kumi_device::control::{self, Request};
use kumi_device::run_dir::RunDir;
use kumi_device::states::{no_answer, not_running};
use kumi_device::{config, datapath, interface, key, metrics};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `kumi link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Creates a device and runs it in the background.
    Up(up::Args),
    /// Stops and removes a device.
    Down {
        /// Name of the device.
        device: String,
    },
    /// Shows devices, their links and peers.
    Show(show::Args),
    /// Adds an interface to a running device.
    Add {
        /// Name of the device.
        device: String,
        /// Name of the interface.
        link: String,
    },
    /// Removes an interface from a running device.
    Del {
        /// Name of the device.
        device: String,
        /// Name of the interface.
        link: String,
    },
    /// Fixes the rate of a link, or measures it again.
    Set {
        /// Name of the device.
        device: String,
        /// Name of the interface.
        link: String,
        /// Rate, for example 950mbit or 2.5gbit; `auto` measures it.
        #[arg(long, value_parser = parse_rate)]
        rate: Rate,
    },
    /// Changes the carrier of a running device's frames, until its daemon ends.
    Datapath {
        /// Name of the device.
        device: String,
        /// The daemon (user), or the kernel. Only a device that was started with `--datapath
        /// kernel` has both.
        #[arg(value_enum)]
        carrier: DatapathChoice,
    },
    /// Prints the events of a device, one JSON object per line, until interrupted.
    Events {
        /// Name of the device.
        device: String,
    },
    /// Prints the counters of all devices as OpenMetrics text.
    Metrics,
    /// Creates a cluster key file.
    Keygen {
        /// Path of the file.
        #[arg(default_value = config::KEY_FILE)]
        file: PathBuf,
    },
}

/// Rate in bits per second; `None` for a measured rate.
#[derive(Debug, Clone, Copy)]
struct Rate(Option<u64>);

fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "auto" {
        return Ok(Rate(None));
    }
    let message = "expected a positive number with kbit, mbit or gbit, such as 950mbit, or auto";
    let bps = bits_per_second(text).ok_or(message)?;
    Ok(Rate(Some(bps)))
}

/// Parses a rate, for example 250mbit. Returns bits per second.
pub fn parse_fixed_rate(text: &str) -> Result<u64, String> {
    let message = "expected a positive number with kbit, mbit or gbit, such as 250mbit";
    bits_per_second(text).ok_or_else(|| message.to_owned())
}

/// Returns a rate in bits per second, at least 1; `None` if `text` is not a rate.
fn bits_per_second(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let unit_start = lower.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = lower.split_at(unit_start);
    let factor = match unit {
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return None,
    };
    let bps = number.parse::<f64>().ok()? * factor;
    (bps >= 1.0).then_some(bps as u64)
}

/// Runs `kumi link`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Up(args) => return up::run(args),
        Verb::Down { device } => down(&device)?,
        Verb::Show(args) => return show::run(&args),
        Verb::Add { device, link } => change(&device, &Request::Add { link })?,
        Verb::Del { device, link } => change(&device, &Request::Del { link })?,
        Verb::Set { device, link, rate } => {
            change(
                &device,
                &Request::Set {
                    link,
                    rate_bps: rate.0,
                },
            )?;
        }
        Verb::Datapath { device, carrier } => change(&device, &Request::Datapath { carrier })?,
        Verb::Events { device } => events(&device)?,
        Verb::Metrics => return metrics::run(),
        Verb::Keygen { file } => {
            key::generate(&file)?;
            outln!(
                "{}: copy it to every node of the cluster, readable by root only",
                file.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a device until it ends.
fn run_device(config: DeviceConfig) -> anyhow::Result<()> {
    match config.preset {
        Preset::Kumi => kumi_device::run(config),
        Preset::Ri2n => kumi_ri2n::run(config),
    }
}

fn change(device: &str, request: &Request) -> anyhow::Result<()> {
    let socket = RunDir::of(device)?.socket();
    let answer = control::ask(&socket, request);
    answer.map(drop).map_err(|error| no_answer(device, error))
}

fn down(device: &str) -> anyhow::Result<()> {
    let dir = RunDir::of(device)?;
    if control::ask(&dir.socket(), &Request::Down).is_ok() {
        // The daemon removes the socket after the device.
        for _ in 0..200 {
            if !dir.socket().exists() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        anyhow::bail!(
            "{device} did not end when requested; see {}",
            dir.log().display()
        );
    }
    if !dir.node().exists() {
        return Err(not_running(device));
    }
    // A daemon that crashed leaves its device in place, so that connections survive a restart.
    let _ = interface::index(device).map(|index| datapath::clean(index, &[]));
    interface::remove(device).context("cannot remove the device that a daemon left")?;
    dir.clear();
    Ok(())
}

fn events(device: &str) -> anyhow::Result<()> {
    let socket = RunDir::of(device)?.socket();
    let stream = control::stream(&socket, &Request::Events);
    let stream = stream.map_err(|error| no_answer(device, error))?;
    let mut out = Output;
    for line in stream.lines() {
        let line = line?;
        if let Some(refusal) = control::refusal(&line) {
            anyhow::bail!("{device}: {refusal}");
        }
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    Ok(())
}
