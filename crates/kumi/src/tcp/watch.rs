//! Whose connections `kumi tcp trace` and `kumi tcp explain` look at, and for how long.

use crate::BadInput;
use anyhow::Context;
use kumi_tcp::trace::{Detail, Event, Trace, Watch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// How often is looked for events, and whether the end has come. Of 16 MB of events none is lost in it: that
/// would be ten million a second.
const TURN: Duration = Duration::from_millis(10);
/// After the command's end: acknowledgements and timeouts of what it sent last.
const AFTERMATH: Duration = Duration::from_millis(300);
/// How long a command may take to end when it is asked to.
const STOP_TIME: Duration = Duration::from_secs(2);
/// `SI_KERNEL` of signal(7): who sent the signal is the terminal.
const SI_KERNEL: i32 = 0x80;

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
    /// Ends after this many seconds, and the command with it (SIGTERM). Without it, ends with the command or the
    /// process, or at Ctrl-C.
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
    let watched = match &watch {
        Watch::Process(pid) if args.pid.is_some() => Some(kumi_sys::process::pidfd(*pid)?),
        _ => None,
    };
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut trace = Trace::start(&watch, detail)?;
    let mut observed = Observed {
        command: start(&args.command)?.map(Started::new),
        process: watched,
        deadline: args
            .seconds
            .map(|s| Instant::now() + Duration::from_secs_f64(s.max(0.0))),
    };
    let end = loop {
        trace.poll(TURN, &mut each)?;
        if let Some(end) = observed.end(signals.read_signal()?)? {
            break end;
        }
    };
    let aftermath = Instant::now() + AFTERMATH;
    while !matches!(end, End::Asked) && Instant::now() < aftermath {
        trace.poll(TURN, &mut each)?;
    }
    Ok(match end {
        End::Command(status) => exit_code(status),
        End::Process | End::Asked => ExitCode::SUCCESS,
    })
}

/// Why the observation ends.
enum End {
    /// The command has ended.
    Command(ExitStatus),
    /// The process that `--pid` names has ended.
    Process,
    /// A signal, or `--seconds`, and there is no command to wait for.
    Asked,
}

/// What decides how long is looked.
struct Observed {
    command: Option<Started>,
    process: Option<OwnedFd>,
    deadline: Option<Instant>,
}

impl Observed {
    /// Whether the observation ends now. `signal` is passed on to the command.
    fn end(&mut self, signal: Option<siginfo>) -> anyhow::Result<Option<End>> {
        let is_due = self.deadline.is_some_and(|at| Instant::now() > at);
        if let Some(command) = &mut self.command {
            if let Some(signal) = signal {
                command.pass_on(&signal);
            }
            if is_due {
                command.stop();
            }
            return Ok(command.child.try_wait()?.map(End::Command));
        }
        if signal.is_some() || is_due || crate::output::has_failed() {
            return Ok(Some(End::Asked));
        }
        let has_ended = |process: &OwnedFd| {
            let mut watched = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        Ok(self
            .process
            .as_ref()
            .is_some_and(has_ended)
            .then_some(End::Process))
    }
}

/// The command, and what it was told.
struct Started {
    child: Child,
    /// When it is killed, as it was asked to end; it does not block, nor wait for a terminal.
    killed_at: Option<Instant>,
}

impl Started {
    fn new(child: Child) -> Self {
        Self {
            child,
            killed_at: None,
        }
    }

    fn send(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Passes a signal on, unless it comes from the terminal: the command has that one itself. Nothing else
    /// follows; a command that goes on is looked at further.
    fn pass_on(&self, signal: &siginfo) {
        let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
        match Signal::try_from(number) {
            Ok(passed_on) if signal.ssi_code != SI_KERNEL => self.send(passed_on),
            _ => {}
        }
    }

    /// Asks the command to end, and kills it when it has not after a while.
    fn stop(&mut self) {
        match self.killed_at {
            None => {
                self.send(Signal::SIGTERM);
                self.killed_at = Some(Instant::now() + STOP_TIME);
            }
            Some(at) if Instant::now() > at => self.send(Signal::SIGKILL),
            Some(_) => {}
        }
    }
}

fn start(command: &[OsString]) -> anyhow::Result<Option<Child>> {
    let Some((program, args)) = command.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.args(args);
    // Those that this process waits for by a descriptor are blocked.
    kumi_sys::process::unblock_signals_in(&mut command);
    let child = command
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
