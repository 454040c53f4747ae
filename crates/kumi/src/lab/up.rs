//! `kumi lab up`: starts a lab.

use super::lab_error;
use anyhow::Context;
use kumi_command::{BadInput, interrupt};
use kumi_command::{errln, outln};
use kumi_lab::cluster::control::{Answer, Client, Request};
use kumi_lab::cluster::supervisor::{self, Signals};
use kumi_lab::cluster::{self, Roster};
use kumi_lab::topology::FabricChoice;
use kumi_lab::{Cluster, Topology, UpOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Arguments of `kumi lab up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Topology file, network file of `kumi topo`, or name of a built-in topology, such as
    /// `two-links`.
    file: PathBuf,
    /// Name of the lab, if not the topology's.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Fabric, if not the topology's: auto, kernel or emulator.
    #[arg(long, value_parser = parse_fabric)]
    fabric: Option<FabricChoice>,
    /// Seed of all random events on an emulated fabric.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Takes down a lab of the same name first.
    #[arg(long)]
    replace: bool,
    /// Stays in the foreground; Ctrl-C takes the lab down.
    #[arg(long)]
    foreground: bool,
    /// Prints the roster as JSON.
    #[arg(short, long)]
    json: bool,
}

/// Longest name of a lab, in characters, as in a topology file.
const NAME_CHARS_MAX: usize = 40;

/// Checks a name by the rule for names in a topology file.
fn parse_name(text: &str) -> Result<String, String> {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(is_accepted);
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "expected 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_` or `.`, a letter or digit \
             first"
        )
    })
}

fn parse_fabric(text: &str) -> Result<FabricChoice, String> {
    match text {
        "auto" => Ok(FabricChoice::Auto),
        "kernel" => Ok(FabricChoice::Kernel),
        "emulator" => Ok(FabricChoice::Emulator),
        _ => Err("expected auto, kernel or emulator".to_owned()),
    }
}

/// Reads the file, checks the options, and takes down a lab of the same name if `--replace` is
/// given.
fn prepare(args: &Args) -> anyhow::Result<(Topology, UpOptions)> {
    let topology = crate::topo::lab(&args.file)?;
    if args.fabric == Some(FabricChoice::Kernel) && !topology.fits_kernel() {
        let message = "invalid --fabric `kernel`: it does not emulate delay, jitter, reordering or shared buffers, which this topology has; omit it or use `emulator`";
        return Err(BadInput(message.to_owned()).into());
    }
    let name = args.name.clone().unwrap_or_else(|| topology.name.clone());
    if cluster::running_labs().map_err(lab_error)?.contains(&name) {
        if !args.replace {
            return Err(lab_error(kumi_lab::ClusterError::NameTaken { name }));
        }
        let roster = Roster::find(Some(&name)).map_err(lab_error)?;
        Client::connect(&roster)?
            .request(&Request::Down)?
            .map_err(anyhow::Error::msg)?;
    }
    Ok((
        topology,
        UpOptions {
            name: Some(name),
            fabric: args.fabric,
            seed: args.seed,
        },
    ))
}

/// Runs `kumi lab up`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (topology, options) = prepare(&args)?;
    if args.foreground {
        let signals = Signals::block()?;
        let cluster = Cluster::up(&topology, options).map_err(lab_error)?;
        let (name, hosts) = (cluster.name().to_owned(), topology.hosts.len());
        supervisor::serve(cluster, &signals, |cluster| {
            show(&cluster.roster(), args.json);
            outln!("Ctrl-C takes it down.");
            Ok(())
        })?;
        errln!("kumi: lab {name} is down: {hosts} hosts, their devices and processes");
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["lab", "supervise", "--seed", &args.seed.to_string()])
        .arg(&args.file);
    if let Some(name) = &options.name {
        command.args(["--name", name]);
    }
    if let Some(fabric) = args.fabric {
        command.args(["--fabric", &format!("{fabric:?}").to_lowercase()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    kumi_sys::netns::new_session_on_exec(&mut command);
    interrupt::watch()?;
    let mut child = command
        .spawn()
        .context("cannot start the lab's supervisor")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The supervisor checks for the signal only after it has built the lab, and then takes it
        // down.
        let _guard = interrupt::tie(child.id());
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if let Err(interruption) = interrupt::check() {
        child.wait()?;
        interrupt::undone(|| format!("lab {}", options.name.as_deref().unwrap_or_default()));
        return Err(interruption.into());
    }
    match serde_json::from_str(&line) {
        Ok(Answer::Ok(roster)) => {
            show(&serde_json::from_value(roster)?, args.json);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Answer::Error(sentence)) => anyhow::bail!(sentence),
        Err(_) => anyhow::bail!(
            "the lab's supervisor ended without a message; run `kumi lab up --foreground` to see why"
        ),
    }
}

/// Owns a lab in the background. Prints one line on standard output: the roster or an error.
pub fn supervise(args: Args) -> anyhow::Result<ExitCode> {
    let outcome = (|| {
        let signals = Signals::block()?;
        let (topology, options) = prepare(&args)?;
        let cluster = Cluster::up(&topology, options).map_err(lab_error)?;
        supervisor::serve(cluster, &signals, |cluster| {
            let answer = Answer::Ok(serde_json::to_value(cluster.roster())?);
            // If `up` was interrupted, its end of the pipe is closed. The write then fails, and the
            // lab goes down again.
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&answer)?)?;
            let null = std::fs::File::options().write(true).open("/dev/null")?;
            nix::unistd::dup2_stdout(&null)?;
            std::env::set_current_dir("/")
        })?;
        anyhow::Ok(())
    })();
    if let Err(error) = outcome {
        outln!(
            "{}",
            serde_json::to_string(&Answer::Error(format!("{error:#}")))?
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the roster of the lab.
fn show(roster: &Roster, json: bool) {
    if json {
        outln!("{}", serde_json::to_string(roster).unwrap_or_default());
        return;
    }
    outln!(
        "lab {} is up: {} hosts, {} fabric",
        roster.name,
        roster.hosts.len(),
        roster.fabric
    );
    outln!(
        "{:<16} {:<18} {:<24} link",
        "nic",
        "ipv4",
        "ipv6 link-local"
    );
    for nic in &roster.nics {
        outln!(
            "{:<16} {:<18} {:<24} {}",
            nic.name(),
            format!("{}/{}", nic.ipv4, nic.prefix_len),
            nic.ipv6_link_local.to_string(),
            nic.link + 1
        );
    }
    for note in &roster.notes {
        outln!("note: {note}");
    }
    if let Some(host) = roster.hosts.first() {
        outln!(
            "try: kumi lab exec --lab {} {} -- ping -c 3 {}",
            roster.name,
            host.name,
            roster
                .hosts
                .last()
                .map_or("localhost", |last| last.name.as_str())
        );
    }
}
