//! Whose connections `kumi tcp trace` and `kumi tcp explain` look at, and for how long.

use crate::BadInput;
use anyhow::Context;
use kumi_tcp::trace::{Detail, Event, Trace, Watch};
use nix::sys::signal::{SigSet, Signal};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often is looked for events, and whether the end has come. Of 16 MB of events none is lost in it: that
/// would be ten million a second.
const TURN: Duration = Duration::from_millis(10);
/// After the command's end: acknowledgements and timeouts of what it sent last.
const AFTERMATH: Duration = Duration::from_millis(300);

/// What to look at.
#[derive(Debug, clap::Args)]
#[group(id = "watched")] // it stands in others' arguments, whose group has the structure's name too
pub struct Args {
    /// The connections a running process has and makes, and those of its children.
    #[arg(long, conflicts_with_all = ["cgroup", "command"])]
    pid: Option<u32>,
    /// The connections of every process in a cgroup, by its folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Ends after so many seconds; without it, with the command, or at Ctrl-C.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// A command to start and look at.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Looks at the connections until the end, and hands on every event. The exit status is the command's.
pub fn run(args: &Args, detail: Detail, mut each: impl FnMut(Event)) -> anyhow::Result<ExitCode> {
    let watch = match (&args.pid, &args.cgroup, args.command.is_empty()) {
        (Some(pid), _, _) => {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                return Err(BadInput(format!("--pid {pid}: there is no such process")).into());
            }
            Watch::Process(*pid)
        }
        (_, Some(folder), _) => Watch::Cgroup(folder.clone()),
        // The command is a child of ours.
        (_, _, false) => Watch::Process(std::process::id()),
        _ => {
            let want = "say what to look at: -- CMD, --pid PID or --cgroup FOLDER";
            return Err(BadInput(want.to_owned()).into());
        }
    };
    let mut trace = Trace::start(&watch, detail)?;
    let is_over = end_on_signals()?;
    let mut child = start(&args.command)?;
    let deadline = args
        .seconds
        .map(|s| Instant::now() + Duration::from_secs_f64(s.max(0.0)));
    let mut status = None;
    while status.is_none() {
        trace.poll(TURN, &mut each)?;
        if let Some(child) = &mut child {
            status = child.try_wait()?;
        } else if is_over.load(Ordering::Relaxed) {
            break;
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            break;
        }
    }
    let aftermath = Instant::now() + AFTERMATH;
    while status.is_some() && Instant::now() < aftermath {
        trace.poll(TURN, &mut each)?;
    }
    Ok(status.map_or(ExitCode::SUCCESS, exit_code))
}

fn start(command: &[OsString]) -> anyhow::Result<Option<Child>> {
    let Some((program, args)) = command.split_first() else {
        return Ok(None);
    };
    let child = Command::new(program)
        .args(args)
        .spawn()
        .with_context(|| program.to_string_lossy().into_owned())?;
    Ok(Some(child))
}

/// As a shell reports it: 128 and the signal, where a signal ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Becomes true when the user has had enough. A command that is looked at gets the signal itself.
fn end_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    });
    Ok(is_over)
}
