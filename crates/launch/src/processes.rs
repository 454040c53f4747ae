//! Processes that run and end together.

use anyhow::Context;
use kumi_command::{errln, interrupt};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
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

/// Reaction to the failure of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnFailure {
    /// The others are ended.
    #[default]
    End,
    /// The others go on. The job fails if none of them ends well.
    KeepGoing,
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

    /// Waits until all have ended. The others are ended when `is_abandoned` returns true, and after
    /// the first failure unless they are to go on.
    pub fn wait(
        mut self,
        on_failure: OnFailure,
        mut is_abandoned: impl FnMut() -> bool,
    ) -> anyhow::Result<Exit> {
        let mut exit = Exit(0);
        let mut has_ended_well = false;
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
                let failure = failure(status);
                has_ended_well |= failure.is_none();
                if let (Some((how, code)), false) = (failure, is_ending) {
                    errln!("kumi: {} {how}", process.name);
                    if exit == Exit(0) {
                        exit = Exit(code);
                    }
                    is_ending = on_failure == OnFailure::End;
                }
            }
            if running == 0 {
                let is_survived = on_failure == OnFailure::KeepGoing && has_ended_well;
                return Ok(if is_survived { Exit(0) } else { exit });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs shell scripts side by side.
    fn run(on_failure: OnFailure, scripts: &[&str]) -> Exit {
        let mut processes = Processes::default();
        for script in scripts {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            processes.start("a script".to_owned(), command).unwrap();
        }
        processes.wait(on_failure, || false).unwrap()
    }

    #[test]
    fn failure__of_a_process__ends_the_others_or_lets_them_go_on() {
        let long = "sleep 0.3";
        assert_eq!(run(OnFailure::End, &["true", long]), Exit(0));
        assert_eq!(run(OnFailure::End, &["exit 3", "sleep 60"]), Exit(3));
        assert_eq!(run(OnFailure::KeepGoing, &["kill -9 $$", long]), Exit(0));
        let all = ["exit 3", "sleep 0.2; exit 4"];
        assert_eq!(run(OnFailure::KeepGoing, &all), Exit(3));
    }
}
