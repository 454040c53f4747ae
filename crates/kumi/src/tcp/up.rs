//! `kumi tcp up`: installs the programs and starts the daemon that serves `kumi run`.

use super::{EXIT_TIER, daemon};
use anyhow::{Context, bail};
use kumi_command::background;
use kumi_command::{BadInput, EXIT_BAD_INPUT, errln, out};
use kumi_tcp::{Mechanism, Preset, Settings};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time limit for the daemon to load the programs and answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of `kumi tcp up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Mechanisms to leave out.
    #[arg(long, value_name = "MECHANISM", value_delimiter = ',', value_parser = mechanism())]
    without: Vec<String>,
    /// Only the mechanisms of a column of GridMPI's measurements: std (none), rto (short-rto), pce
    /// (paced-restart and first-target) or all.
    #[arg(long, value_name = "COLUMN", conflicts_with = "without", value_parser = preset(), hide_possible_values = true)]
    preset: Option<String>,
    /// Age, in seconds, up to which a connection trusts the remembered state of its path.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    memory: u64,
    /// Rate at which a connection to an unknown host starts, such as 250mbit; half of the
    /// bottleneck rate is suitable. Without it, such a connection uses slow start. A known host's
    /// connection starts at half of its measured rate.
    #[arg(long, value_name = "RATE", value_parser = crate::link::parse_fixed_rate)]
    first_rate: Option<u64>,
    /// Floor of the retransmission timeout, in milliseconds; by default the kernel's shortest.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=200))]
    rto_min: Option<u64>,
    /// Limit of bytes that a program has written and the kernel has not sent.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(4096..))]
    unsent_max: u32,
    /// Fails, with exit status 3, unless the kernel accepts every part.
    #[arg(long)]
    require: bool,
    /// Replaces the installed programs by this build's, under traffic. Live connections keep the
    /// old programs until they close, and new ones get these.
    #[arg(long)]
    replace: bool,
    /// Stays in the foreground.
    #[arg(long)]
    foreground: bool,
}

fn mechanism() -> clap::builder::PossibleValuesParser {
    Mechanism::ALL.map(Mechanism::name).into()
}

fn preset() -> clap::builder::PossibleValuesParser {
    Preset::ALL.map(Preset::name).into()
}

impl Args {
    fn settings(&self) -> Settings {
        let mut settings = Settings {
            memory_max: Duration::from_secs(self.memory),
            first_rate_bps: self.first_rate.unwrap_or(0),
            unsent_bytes_max: self.unsent_max,
            ..Settings::default()
        };
        if let Some(ms) = self.rto_min {
            // The kernel would refuse a shorter one for each connection, without any message.
            settings.rto_min = settings.rto_min.max(Duration::from_millis(ms));
        }
        let is_chosen = |preset: &Preset| self.preset.as_deref() == Some(preset.name());
        if let Some(preset) = Preset::ALL.into_iter().find(is_chosen) {
            settings.mechanisms = preset.mechanisms().to_vec();
        }
        settings
            .mechanisms
            .retain(|mechanism| !self.without.iter().any(|name| name == mechanism.name()));
        settings
    }
}

/// Runs `kumi tcp up`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The background daemon gets the same arguments. This command has replaced the programs before
    // it starts the daemon, so the daemon must not replace them again.
    if args.replace && (!args.foreground || daemon::is_running()) {
        kumi_tcp::replace(&args.settings())?;
        daemon::hand_over()?;
    }
    if args.foreground {
        return daemon::run(&args.settings(), args.require);
    }
    if daemon::is_running() {
        return Err(kumi_tcp::TcpError::Installed.into());
    }
    let path = daemon::log();
    let folder = path.parent().context("the path of the log has no folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}; run as root", folder.display()))?;
    let mut starting = background::start(&path)?;
    let start = Instant::now();
    loop {
        if let Some((status, output)) = starting.ended()? {
            if status.code() == Some(EXIT_TIER.into()) {
                errln!("kumi: {output}");
                return Ok(ExitCode::from(EXIT_TIER));
            }
            if status.code() == Some(EXIT_BAD_INPUT.into()) {
                return Err(BadInput(output).into());
            }
            bail!("{output}");
        }
        if daemon::is_running() {
            out!("{}", starting.said());
            return Ok(ExitCode::SUCCESS);
        }
        if start.elapsed() > START_TIMEOUT {
            bail!("the daemon does not answer; see {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
