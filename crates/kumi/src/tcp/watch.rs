//! Selects the connections that `kumi tcp trace` and `kumi tcp explain` observe, and the duration.

use anyhow::Context;
use kumi_command::BadInput;
use kumi_tcp::TcpError;
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

/// Interval at which events are read and the end is checked. The ring buffer of 16 MB loses nothing
/// in it, unless ten million events come per second.
const TURN: Duration = Duration::from_millis(10);
/// Time for which events are read after the end: acknowledgements and timeouts of the last data.
const AFTERMATH: Duration = Duration::from_millis(300);
/// Time limit for the command to end after SIGTERM.
const STOP_TIME: Duration = Duration::from_secs(2);
/// Longest time of `--seconds`: 30 years, far less than the clock can represent.
const SECONDS_MAX: f64 = 1e9;
/// `si_code` of a signal from the kernel (sigaction(2)), such as Ctrl-C on the terminal.
const SI_KERNEL: i32 = 0x80;

/// Selection of the connections.
#[derive(Debug, clap::Args)]
#[group(id = "watched")] // other `Args` contain it, and their default group id is `Args` too
pub struct Args {
    /// Observes the connections that a running process has and makes, and those of its children.
    #[arg(long, conflicts_with_all = ["cgroup", "command"])]
    pid: Option<u32>,
    /// Observes the connections of all processes in a cgroup, given by its folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Ends after this many seconds, and ends the command with SIGTERM. By default, it ends with
    /// the command or the process, or at Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Command to start and observe.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("expected a number of seconds from 0 to {SECONDS_MAX}, such as 10"))
}

/// Returns the selected connections.
pub fn selection(args: &Args) -> Result<Watch, BadInput> {
    match (&args.pid, &args.cgroup, args.command.is_empty()) {
        (Some(pid), _, _) => {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                return Err(BadInput(format!("--pid {pid}: there is no such process")));
            }
            Ok(Watch::Process(*pid))
        }
        (_, Some(folder), _) => Ok(Watch::Cgroup(folder.clone())),
        // The command is a child of this process.
        (_, _, false) => Ok(Watch::Process(std::process::id())),
        _ => {
            let message = "nothing to observe: give -- CMD, --pid PID or --cgroup FOLDER";
            Err(BadInput(message.to_owned()))
        }
    }
}

/// Observes the connections until the end, and calls `handle` for every event. Returns the
/// command's exit status.
pub fn run(args: &Args, detail: Detail, mut handle: impl FnMut(Event)) -> anyhow::Result<ExitCode> {
    let watch = selection(args)?;
    let process = match &watch {
        Watch::Process(pid) if args.pid.is_some() => Some(kumi_sys::process::pidfd(*pid)?),
        _ => None,
    };
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut trace = Trace::start(&watch, detail).map_err(|error| match error {
        TcpError::NotCgroup { .. } => BadInput(format!("--cgroup: {error}")).into(),
        error => anyhow::Error::from(error),
    })?;
    let mut observation = Observation {
        command: start(&args.command)?.map(RunningCommand::new),
        process,
        deadline: args.seconds.map(|time| Instant::now() + time),
    };
    let end = loop {
        trace.poll(TURN, &mut handle)?;
        if let Some(end) = observation.end(signals.read_signal()?)? {
            break end;
        }
    };
    let aftermath = Instant::now() + AFTERMATH;
    while !matches!(end, End::Request) && Instant::now() < aftermath {
        trace.poll(TURN, &mut handle)?;
    }
    Ok(match end {
        End::Command(status) => exit_code(status),
        End::Process | End::Request => ExitCode::SUCCESS,
    })
}

/// Reason for the end of the observation.
enum End {
    /// The command has ended.
    Command(ExitStatus),
    /// The process that `--pid` names has ended.
    Process,
    /// A signal came or `--seconds` passed, and there is no command to wait for.
    Request,
}

/// State that determines the end of the observation.
struct Observation {
    command: Option<RunningCommand>,
    process: Option<OwnedFd>,
    deadline: Option<Instant>,
}

impl Observation {
    /// Returns the reason if the observation ends now. `signal` is passed on to the command.
    fn end(&mut self, signal: Option<siginfo>) -> anyhow::Result<Option<End>> {
        let is_due = self
            .deadline
            .is_some_and(|deadline| Instant::now() > deadline);
        if let Some(command) = &mut self.command {
            if let Some(signal) = signal {
                command.forward(&signal);
            }
            if is_due {
                command.stop();
            }
            return Ok(command.child.try_wait()?.map(End::Command));
        }
        if signal.is_some() || is_due || kumi_command::output::has_failed() {
            return Ok(Some(End::Request));
        }
        let has_ended = |process: &OwnedFd| {
            let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        Ok(self
            .process
            .as_ref()
            .is_some_and(has_ended)
            .then_some(End::Process))
    }
}

/// The command, and the time at which it is killed.
struct RunningCommand {
    child: Child,
    /// Deadline for the command's end, set when SIGTERM is sent. After it, the command is killed.
    kill_at: Option<Instant>,
}

impl RunningCommand {
    fn new(child: Child) -> Self {
        Self {
            child,
            kill_at: None,
        }
    }

    fn send(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Passes a signal on, unless it comes from the terminal, which sends it to the command as
    /// well. If the command continues, it stays under observation.
    fn forward(&self, signal: &siginfo) {
        let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
        match Signal::try_from(number) {
            Ok(known_signal) if signal.ssi_code != SI_KERNEL => self.send(known_signal),
            _ => {}
        }
    }

    /// Sends SIGTERM to the command, and SIGKILL if it has not ended after [`STOP_TIME`].
    fn stop(&mut self) {
        match self.kill_at {
            None => {
                self.send(Signal::SIGTERM);
                self.kill_at = Some(Instant::now() + STOP_TIME);
            }
            Some(deadline) if Instant::now() > deadline => self.send(Signal::SIGKILL),
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
    // This process blocks the signals that it reads from a descriptor, and a child inherits that.
    kumi_sys::process::unblock_signals_in(&mut command);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
    Ok(Some(child))
}

/// Returns the exit code as a shell reports it: 128 plus the signal if a signal ended the command.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command__absent__is_named() {
        let error = start(&["/no/such/program".into()]).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot start /no/such/program: No such file or directory (os error 2)"
        );
    }
}
