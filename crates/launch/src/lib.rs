//! `kumi oshrun`: starts the processing elements (PEs) of an OpenSHMEM program, on this host or on
//! several.
//!
//! ```text
//!  kumi oshrun ──┬── PE 0 … n-1                                   one host
//!                ├── agent, ssh ── kumi oshrun --worker ── PEs    each of several hosts
//! ```
//!
//! A worker reads its task from its standard input, which the launcher keeps open. When it ends,
//! the worker ends its PEs, so a launcher that is killed leaves none behind.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `output` replaces both

mod hosts;
mod processes;

use anyhow::Context;
use hosts::Host;
use kumi_command::{BadInput, interrupt};
use processes::{Exit, OnFailure, Processes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Arguments of `kumi oshrun`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of PEs; without it, the number that the hosts take, or 1.
    #[arg(short = 'n', long, visible_alias = "np", value_name = "COUNT")]
    count: Option<usize>,
    /// Hosts, such as a,b:4 for one PE on a and four on b. PEs fill the hosts in this order.
    #[arg(long, value_name = "LIST")]
    host: Option<String>,
    /// Command that starts a program on a host: it gets the host's name and a shell command.
    #[arg(
        long,
        value_name = "COMMAND",
        env = "KUMI_AGENT",
        default_value = "ssh"
    )]
    agent: String,
    /// Variable to set for all PEs; without a value, the one of this environment. Variables whose
    /// names begin with KUMI_ or SHMEM_ are always set.
    #[arg(short = 'x', long = "export", value_name = "NAME[=VALUE]")]
    exports: Vec<String>,
    /// Interface on whose addresses the hosts reach each other.
    #[arg(long, value_name = "NIC")]
    interface: Option<String>,
    /// Does not encrypt. Kernels with `kumi wind up` then execute puts, gets and atomic operations.
    #[arg(long)]
    trusted: bool,
    /// Lets the other PEs go on when one fails, as programs on shared memory with replicas do. The
    /// exit status is 0 if one ends well.
    #[arg(long)]
    keep_going: bool,
    /// Port at which PE 0 expects the others at the start; without it, one is chosen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Runs the PEs of one host, whose task is read from the standard input.
    #[arg(long, hide = true)]
    worker: bool,
    /// Program and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Args {
    fn on_failure(&self) -> OnFailure {
        match self.keep_going {
            true => OnFailure::KeepGoing,
            false => OnFailure::End,
        }
    }
}

/// PEs of one host.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// Numbers of the PEs.
    first: usize,
    count: usize,
    folder: PathBuf,
    program: Vec<String>,
    variables: BTreeMap<String, String>,
    #[serde(default)]
    on_failure: OnFailure,
}

/// Prefixes of variables that all PEs get.
const PREFIXES: [&str; 3] = ["KUMI_", "SHMEM_", "SMA_"];

/// Runs `kumi oshrun`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.worker {
        return work();
    }
    if args.program.is_empty() {
        return Err(BadInput("no program: expected `kumi oshrun -n 4 ./program`".into()).into());
    }
    interrupt::watch()?;
    let exit = match &args.host {
        None => launch_here(args)?,
        Some(list) => launch(args, &hosts::parse(list, args.count).map_err(BadInput)?)?,
    };
    Ok(exit.code())
}

fn launch_here(args: &Args) -> anyhow::Result<Exit> {
    let count = args.count.unwrap_or(1);
    if count == 0 {
        return Err(BadInput("--count 0: expected 1 or more".into()).into());
    }
    let mut variables = variables(args, count)?;
    let port = match args.port {
        Some(port) => port,
        None => TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .context("cannot find a free port")?
            .port(),
    };
    variables.insert("MASTER_ADDR".into(), "127.0.0.1".into());
    variables.insert("MASTER_PORT".into(), port.to_string());
    for name in ["KUMI_SHMEM_INTERFACE", "KUMI_INTERFACE"] {
        variables.entry(name.into()).or_insert("lo".into());
    }
    let mut processes = Processes::default();
    for pe in 0..count {
        let mut command = Command::new(&args.program[0]);
        command.args(&args.program[1..]).envs(&variables);
        command.env("RANK", pe.to_string());
        // The first one has the standard input.
        if pe > 0 {
            command.stdin(Stdio::null());
        }
        processes.start(format!("PE {pe}"), command)?;
    }
    processes.wait(args.on_failure(), || false)
}

/// Starts a worker on each host.
fn launch(args: &Args, hosts: &[Host]) -> anyhow::Result<Exit> {
    let count = hosts.iter().map(|host| host.pes).sum();
    let mut variables = variables(args, count)?;
    let port = args.port.map_or_else(random_port, Ok)?;
    variables.insert("MASTER_ADDR".into(), hosts[0].name.clone());
    variables.insert("MASTER_PORT".into(), port.to_string());
    let program = args.program.iter().map(|word| {
        let word = word.to_str().map(str::to_owned);
        word.ok_or_else(|| BadInput("the program's arguments are not UTF-8".into()))
    });
    let program = program.collect::<Result<Vec<_>, _>>()?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut words = args.agent.split_whitespace();
    let agent = words
        .next()
        .ok_or_else(|| BadInput("--agent is empty: expected a command such as ssh".into()))?;
    let words: Vec<&str> = words.collect();
    let mut processes = Processes::default();
    let mut inputs = Vec::new();
    let mut first = 0;
    for host in hosts {
        let task = Task {
            first,
            count: host.pes,
            folder: std::env::current_dir()?,
            program: program.clone(),
            variables: variables.clone(),
            on_failure: args.on_failure(),
        };
        first += host.pes;
        let mut command = Command::new(agent);
        command.args(&words).arg(&host.name);
        command.arg(format!("{} oshrun --worker", own.display()));
        command.stdin(Stdio::piped());
        let name = format!("host {}", host.name);
        processes.start(name, command)?;
        let mut input = processes.take_input().context("no standard input")?;
        let line = serde_json::to_string(&task)? + "\n";
        // A worker that does not start is reported below.
        let _ = input.write_all(line.as_bytes());
        inputs.push(input);
    }
    processes.wait(args.on_failure(), || false)
}

/// Reads a task, and runs its PEs until they, or the standard input, end.
fn work() -> anyhow::Result<ExitCode> {
    interrupt::watch()?;
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    let mut byte = [0];
    // Byte by byte: nothing after the line is taken.
    while input.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    let task: Task = serde_json::from_slice(&line).context("the task is malformed")?;
    let (program, words) = task.program.split_first().context("the task is empty")?;
    let mut processes = Processes::default();
    for pe in task.first..task.first + task.count {
        let mut command = Command::new(program);
        command.args(words).envs(&task.variables);
        command.current_dir(&task.folder).stdin(Stdio::null());
        command.env("RANK", pe.to_string());
        processes.start(format!("PE {pe}"), command)?;
    }
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().lock().read(&mut byte), Ok(1)) {}
        let _ = sender.send(());
    });
    drop(input);
    let exit = processes.wait(task.on_failure, move || ended.try_recv().is_ok())?;
    Ok(exit.code())
}

/// Returns the variables of all PEs, without those of one.
fn variables(args: &Args, count: usize) -> anyhow::Result<BTreeMap<String, String>> {
    let known = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let is_wanted = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        (is_wanted || name == "LD_LIBRARY_PATH").then_some((name, value))
    });
    let mut variables: BTreeMap<_, _> = known.collect();
    for export in &args.exports {
        let (name, value) = match export.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (
                export.as_str(),
                std::env::var(export)
                    .map_err(|_| BadInput(format!("-x {export}: the variable is not set")))?,
            ),
        };
        variables.insert(name.to_owned(), value);
    }
    if let Some(interface) = &args.interface {
        // OpenSHMEM and shared memory have a variable each.
        for name in ["KUMI_SHMEM_INTERFACE", "KUMI_INTERFACE"] {
            variables.insert(name.into(), interface.clone());
        }
    }
    if args.trusted {
        variables.insert("KUMI_SHMEM_TRUSTED".into(), "1".into());
    }
    variables.insert("WORLD_SIZE".into(), count.to_string());
    if !variables.contains_key("KUMI_JOB_SECRET_FILE") {
        let secret = variables.entry("KUMI_JOB_SECRET".into());
        if let std::collections::btree_map::Entry::Vacant(vacant) = secret {
            let bytes = random::<16>()?;
            vacant.insert(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
    }
    Ok(variables)
}

fn random<const BYTES: usize>() -> anyhow::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut source = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns a port below those that the kernel hands out.
fn random_port() -> anyhow::Result<u16> {
    Ok(20_000 + u16::from_be_bytes(random()?) % 10_000)
}
