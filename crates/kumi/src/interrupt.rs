//! Ctrl-C while something is set up that must be undone.
//!
//! A signal is noted, and the programs that are being waited for are ended. The wait then fails, and
//! what was set up is undone as the values drop, as after any other error; a signal needs no list of
//! its own of what there is to undo. Setting up and undoing are not interrupted ([`shield`]): half of
//! either would be left behind.

use anyhow::Context;
use kumi_sys::process::pidfd;
use kumi_sys::termination::{Termination, send};
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The command was told to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0}")]
pub struct Interrupted(pub Signal);

/// What is noted of signals, and of the programs that are waited for.
struct Desk {
    noted: Mutex<Noted>,
    comes: Condvar,
}

struct Noted {
    signal: Option<Signal>,
    /// Programs that are waited for, by the number of their tie.
    tied: BTreeMap<u64, OwnedFd>,
    next: u64,
}

static DESK: Desk = Desk::new();

thread_local! {
    static SHIELDS: Cell<u32> = const { Cell::new(0) };
}

impl Desk {
    const fn new() -> Self {
        Self {
            noted: Mutex::new(Noted {
                signal: None,
                tied: BTreeMap::new(),
                next: 0,
            }),
            comes: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes `signal` and ends what is tied. Returns the signal that came before it, if one did.
    fn note(&self, signal: Signal) -> Option<Signal> {
        let mut noted = self.lock();
        if noted.signal.is_some() {
            return noted.signal;
        }
        noted.signal = Some(signal);
        for process in noted.tied.values() {
            let _ = send(process, Signal::SIGTERM); // else it has ended
        }
        self.comes.notify_all();
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
        let mut noted = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let (Some(signal), 0) = (noted.signal, SHIELDS.get()) {
                return Err(Interrupted(signal));
            }
            if left.is_zero() {
                return Ok(());
            }
            let woken = self.comes.wait_timeout(noted, left);
            noted = woken.map_or_else(|poisoned| poisoned.into_inner().0, |(noted, _)| noted);
        }
    }

    /// The number of the tie; `None` under a shield, or if the program has ended.
    fn tie(&self, pid: u32) -> Option<u64> {
        let process = pidfd(pid).ok().filter(|_| SHIELDS.get() == 0)?;
        let mut noted = self.lock();
        if noted.signal.is_some() {
            let _ = send(&process, Signal::SIGTERM);
        }
        let number = noted.next;
        noted.next += 1;
        noted.tied.insert(number, process);
        Some(number)
    }
}

/// From now on, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process.
pub fn watch() -> anyhow::Result<()> {
    let termination = Termination::watch().context("watching for signals")?;
    std::thread::spawn(move || {
        while let Ok(signal) = termination.next() {
            match DESK.note(signal) {
                None => errln!("kumi: {signal}: stopping, and undoing what was set up"),
                Some(first) => errln!("kumi: {first} was heard; undoing takes a moment"),
            }
        }
    });
    Ok(())
}

/// The signal that told the command to end, if one did.
pub fn noted() -> Option<Signal> {
    DESK.lock().signal
}

/// Fails once the command was told to end, except under a shield.
pub fn check() -> Result<(), Interrupted> {
    DESK.check()
}

/// Sleeps, and fails as soon as the command is told to end.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    DESK.sleep(time)
}

/// Says what has been undone, if that is because the command was told to end.
pub fn undone(what: impl FnOnce() -> String) {
    if noted().is_some() {
        errln!("kumi: undone: {}", what());
    }
}

/// Keeps this thread's setting up or undoing from being interrupted, as long as the value lives.
#[derive(Debug)]
pub struct Shield(());

/// See [`Shield`].
pub fn shield() -> Shield {
    SHIELDS.set(SHIELDS.get() + 1);
    Shield(())
}

impl Drop for Shield {
    fn drop(&mut self) {
        SHIELDS.set(SHIELDS.get() - 1);
    }
}

/// A program that ends (SIGTERM) when the command is told to end, as long as the value lives.
#[derive(Debug)]
pub struct Tied(Option<u64>);

/// Ties the child `pid`, which has not been waited for. Under a shield it is not tied.
pub fn tie(pid: u32) -> Tied {
    Tied(DESK.tie(pid))
}

impl Drop for Tied {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            DESK.lock().tied.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn signal__while_a_program_and_a_sleep_last__ends_both_but_not_what_is_shielded() {
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
            let woken = scope.spawn(|| desk.sleep(Duration::from_secs(60)));
            assert_eq!(desk.note(Signal::SIGINT), None);
            assert!(woken.join().unwrap().is_err());
        });
        assert_eq!(tied.wait().unwrap().signal(), Some(15));
        assert_eq!(desk.note(Signal::SIGTERM), Some(Signal::SIGINT));
        let said = desk.check().unwrap_err().to_string();
        assert_eq!(said, "interrupted by SIGINT");
        let _shield = shield();
        desk.check().unwrap();
        desk.sleep(Duration::from_millis(1)).unwrap();
        assert!(untied.try_wait().unwrap().is_none());
        untied.kill().unwrap();
        untied.wait().unwrap();
    }
}
