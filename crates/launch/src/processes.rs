//! Processes that run and end together.

use anyhow::Context;
use kumi_command::{errln, interrupt};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// Time that the other processes have after one has failed, until they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// Time between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(5);

/// Exit status of a program that a signal ended, as shells report it: 128 plus the signal.
const SIGNALLED: i32 = 128;

/// Outcome of a job: 0, or the exit status of the first process that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    pub fn code(self) -> ExitCode {
        ExitCode::from(self.0)
    }
}

struct Process {
    name: String,
    child: Child,
    is_running: bool,
    _tied: interrupt::Tied,
}

/// Processes. Dropping them kills those that still run.
#[derive(Default)]
pub struct Processes(Vec<Process>);

/// Returns how a process failed.
fn failure(status: ExitStatus) -> Option<(String, u8)> {
    if let Some(signal) = status.signal() {
        let name = Signal::try_from(signal).map_or("an unknown signal", Signal::as_str);
        return Some((format!("was ended by {name}"), (SIGNALLED + signal) as u8));
    }
    match status.code() {
        Some(0) | None => None,
        Some(code) => Some((format!("ended with status {code}"), code as u8)),
    }
}

impl Processes {
    /// Starts a process. It ends with this one.
    pub fn start(&mut self, name: String, mut command: Command) -> anyhow::Result<()> {
        kumi_sys::process::end_with_parent(&mut command);
        kumi_sys::process::unblock_signals_in(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{program}`"))?;
        self.0.push(Process {
            name,
            _tied: interrupt::tie(child.id()),
            child,
            is_running: true,
        });
        Ok(())
    }

    /// Returns the standard input of the process that was started last.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.0.last_mut()?.child.stdin.take()
    }

    /// Sends a signal to the processes that run.
    fn signal(&self, signal: Signal) {
        for process in self.0.iter().filter(|process| process.is_running) {
            let pid = nix::unistd::Pid::from_raw(process.child.id() as i32);
            // It has not been waited for, so the number is still its own.
            let _ = nix::sys::signal::kill(pid, signal);
        }
    }

    /// Waits until all have ended. After the first failure, or when `is_abandoned` returns true,
    /// the others are ended.
    pub fn wait(mut self, mut is_abandoned: impl FnMut() -> bool) -> anyhow::Result<Exit> {
        let mut exit = Exit(0);
        let mut deadline = None;
        let mut is_ending = false;
        loop {
            let mut running = 0;
            for process in self.0.iter_mut().filter(|process| process.is_running) {
                let Some(status) = process.child.try_wait()? else {
                    running += 1;
                    continue;
                };
                process.is_running = false;
                if let (Some((how, code)), false) = (failure(status), is_ending) {
                    errln!("kumi: {} {how}", process.name);
                    exit = Exit(code);
                    is_ending = true;
                }
            }
            if running == 0 {
                return Ok(exit);
            }
            is_ending |= is_abandoned();
            match deadline {
                None if is_ending => {
                    self.signal(Signal::SIGTERM);
                    deadline = Some(Instant::now() + GRACE);
                }
                Some(end) if Instant::now() >= end => self.signal(Signal::SIGKILL),
                _ => {}
            }
            interrupt::sleep(PAUSE)?;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + GRACE;
        for process in self.0.iter_mut().filter(|process| process.is_running) {
            while Instant::now() < end && matches!(process.child.try_wait(), Ok(None)) {
                std::thread::sleep(PAUSE);
            }
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
