//! Handles Ctrl-C while a command has something set up that must be undone.
//!
//! A signal is recorded, and the programs that the command waits for are terminated. The wait then
//! fails. The values drop as after any other error, and undo the setup. So signals need no list of
//! things to undo. Setup and undo themselves are not interrupted ([`shield`]), because half of
//! either would be left behind.

use crate::errln;
use anyhow::Context;
use kumi_sys::process::pidfd;
use kumi_sys::termination::{Termination, send};
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Error of a command that a signal interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0}")]
pub struct Interrupted(pub Signal);

/// State that the signal thread shares with the commands.
struct Desk {
    state: Mutex<State>,
    signal_noted: Condvar,
}

struct State {
    signal: Option<Signal>,
    /// Pidfds of the programs that the command waits for, by tie number.
    programs: BTreeMap<u64, OwnedFd>,
    next_number: u64,
}

static DESK: Desk = Desk::new();

thread_local! {
    static SHIELDS: Cell<u32> = const { Cell::new(0) };
}

impl Desk {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                signal: None,
                programs: BTreeMap::new(),
                next_number: 0,
            }),
            signal_noted: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records `signal` and terminates the tied programs. Returns the earlier signal, if there was
    /// one; a second signal has no effect.
    fn note(&self, signal: Signal) -> Option<Signal> {
        let mut state = self.lock();
        if state.signal.is_some() {
            return state.signal;
        }
        state.signal = Some(signal);
        for process in state.programs.values() {
            let _ = send(process, Signal::SIGTERM); // fails if it has ended
        }
        self.signal_noted.notify_all();
        None
    }

    fn check(&self) -> Result<(), Interrupted> {
        match self.lock().signal {
            Some(signal) if SHIELDS.get() == 0 => Err(Interrupted(signal)),
            _ => Ok(()),
        }
    }

    fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if let (Some(signal), 0) = (state.signal, SHIELDS.get()) {
                return Err(Interrupted(signal));
            }
            if remaining.is_zero() {
                return Ok(());
            }
            let outcome = self.signal_noted.wait_timeout(state, remaining);
            state = outcome.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }

    /// Returns the number of the tie. Returns `None` under a shield, or if the program has ended.
    fn tie(&self, pid: u32) -> Option<u64> {
        let process = pidfd(pid).ok().filter(|_| SHIELDS.get() == 0)?;
        let mut state = self.lock();
        if state.signal.is_some() {
            let _ = send(&process, Signal::SIGTERM);
        }
        let number = state.next_number;
        state.next_number += 1;
        state.programs.insert(number, process);
        Some(number)
    }
}

/// Starts a thread that records SIGINT, SIGTERM and SIGHUP. They no longer end the process.
pub fn watch() -> anyhow::Result<()> {
    let termination = Termination::watch().context("cannot watch for signals")?;
    std::thread::spawn(move || {
        while let Ok(signal) = termination.next() {
            match DESK.note(signal) {
                None => errln!("kumi: {signal}: stopping, and undoing what was set up"),
                Some(first) => errln!("kumi: {first} was received; undoing takes a moment"),
            }
        }
    });
    Ok(())
}

/// Returns the first signal received, if any.
pub fn noted() -> Option<Signal> {
    DESK.lock().signal
}

/// Fails once a signal has been received, except under a shield.
pub fn check() -> Result<(), Interrupted> {
    DESK.check()
}

/// Sleeps for `time`. Fails as soon as a signal is received, except under a shield.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    DESK.sleep(time)
}

/// Prints a message about undone work, if a signal is the reason.
pub fn undone(work: impl FnOnce() -> String) {
    if noted().is_some() {
        errln!("kumi: undone: {}", work());
    }
}

/// Protects setup or undo in this thread from interruption while the value lives.
#[derive(Debug)]
pub struct Shield(());

/// Creates a [`Shield`]. Shields nest.
pub fn shield() -> Shield {
    SHIELDS.set(SHIELDS.get() + 1);
    Shield(())
}

impl Drop for Shield {
    fn drop(&mut self) {
        SHIELDS.set(SHIELDS.get() - 1);
    }
}

/// A program that is sent SIGTERM when the command is interrupted, while the value lives.
#[derive(Debug)]
pub struct Tied(Option<u64>);

/// Ties the child `pid`, which has not been waited for. Does nothing under a shield.
pub fn tie(pid: u32) -> Tied {
    Tied(DESK.tie(pid))
}

impl Drop for Tied {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            DESK.lock().programs.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn signal__program_and_sleep_running__ends_both_but_not_a_shielded_program() {
        let desk = Desk::new();
        let sleeper = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut tied, mut untied) = (sleeper(), sleeper());
        assert_eq!(desk.tie(tied.id()), Some(0));
        {
            let _shield = shield();
            assert_eq!(desk.tie(untied.id()), None);
        }
        desk.check().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| desk.sleep(Duration::from_secs(60)));
            assert_eq!(desk.note(Signal::SIGINT), None);
            assert!(thread.join().unwrap().is_err());
        });
        assert_eq!(tied.wait().unwrap().signal(), Some(15));
        assert_eq!(desk.note(Signal::SIGTERM), Some(Signal::SIGINT));
        let message = desk.check().unwrap_err().to_string();
        assert_eq!(message, "interrupted by SIGINT");
        let _shield = shield();
        desk.check().unwrap();
        desk.sleep(Duration::from_millis(1)).unwrap();
        assert!(untied.try_wait().unwrap().is_none());
        untied.kill().unwrap();
        untied.wait().unwrap();
    }
}
