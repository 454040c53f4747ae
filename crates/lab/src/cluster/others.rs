//! Processor time that programs outside the lab take during a measurement.
//!
//! A build beside a run takes processors away, as a hypervisor does. Steal does not show this. The
//! waits of the hosts' processes do not show it either, because these have often ended when they
//! are inspected.

use super::holder::Holder;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Sampling interval of the processes. The time that a process takes between the last sample and
/// its end is missed. A sample takes some milliseconds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Parent of all kernel threads. They do not count, because their work may be for the lab.
const KTHREADD: u32 = 2;

/// A running count of processor time. It ends when the value is dropped.
#[derive(Debug)]
pub struct Others {
    ticks: Arc<AtomicU64>,
    _end: Sender<()>,
}

/// Process id and start time, which together identify a process.
type Identity = (u32, u64);

impl Others {
    /// Starts to count processes that are neither in the networks of `hosts` nor descendants of
    /// this process.
    pub fn count(hosts: &[Holder]) -> Self {
        let networks: HashSet<PathBuf> = hosts
            .iter()
            .filter_map(|host| network(host.pid()))
            .collect();
        let ticks = Arc::new(AtomicU64::new(0));
        let (end, end_receiver) = channel();
        let thread_ticks = Arc::clone(&ticks);
        std::thread::spawn(move || {
            let mut previous = outsiders(&networks);
            while let Err(RecvTimeoutError::Timeout) = end_receiver.recv_timeout(SAMPLE_INTERVAL) {
                let current = outsiders(&networks);
                thread_ticks.fetch_add(growth(&previous, &current), Ordering::Relaxed);
                previous = current;
            }
        });
        Self { ticks, _end: end }
    }

    /// Returns the processor time counted so far, in the ticks of /proc/stat.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

/// Returns the ticks that the processes in `current` took since `previous`. A new process counts
/// with all of its ticks.
fn growth(previous: &HashMap<Identity, u64>, current: &HashMap<Identity, u64>) -> u64 {
    let growth = current.iter().map(|(process, ticks)| {
        let previous_ticks = previous.get(process).copied().unwrap_or(0);
        ticks.saturating_sub(previous_ticks)
    });
    growth.sum()
}

fn network(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Returns the processor time of every process outside the lab, in ticks.
fn outsiders(networks: &HashSet<PathBuf>) -> HashMap<Identity, u64> {
    let own: HashSet<u32> = kumi_sys::process::family(std::process::id())
        .into_iter()
        .collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // A process that has ended has no network any more, and may have been one of the lab.
        if own.contains(&pid) || networks.contains(&network(pid)?) {
            return None;
        }
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (parent, start_time, ticks) = times(&stat)?;
        (pid != KTHREADD && parent != KTHREADD).then_some(((pid, start_time), ticks))
    });
    processes.collect()
}

/// Parses proc(5)'s `stat`. Returns the parent, the start time, and the ticks of user and system
/// time together.
fn times(stat: &str) -> Option<(u32, u64, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Indices count from the third field, the state.
    let (parent, user, system, start_time) = (number(1)?, number(11)?, number(12)?, number(19)?);
    Some((u32::try_from(parent).ok()?, start_time, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn times__process_name_with_spaces_and_parentheses__are_parsed_correctly() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 30 12 0 0 20 0 1 0 555 1 1";
        assert_eq!(times(stat), Some((1, 555, 42)));
    }

    #[test]
    fn outsiders__process_that_has_ended_and_was_not_reaped__is_none() {
        // `sleep` does not wait for the child that the shell before it began.
        let script = "sh -c 'true & exec sleep 20' >/dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        let parent = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let deadline = Instant::now() + Duration::from_secs(10);
        let children = format!("/proc/{parent}/task/{parent}/children");
        let ended = loop {
            let child = fs::read_to_string(&children).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            if stat.is_ok_and(|stat| stat.contains(") Z ")) {
                break child.trim().parse::<u32>().unwrap();
            }
            assert!(Instant::now() < deadline, "`{child}` does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let found = outsiders(&HashSet::new());
        assert!(found.keys().all(|(pid, _)| *pid != ended));
        let parent = nix::unistd::Pid::from_raw(parent.parse().unwrap());
        nix::sys::signal::kill(parent, Signal::SIGKILL).unwrap();
    }

    #[test]
    fn outsiders__child_and_unrelated_process__include_only_the_unrelated_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // The intermediate shell ends at once, so the loop is no child of this process. It is busy
        // until it has been counted.
        let script = "timeout 20 sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        let stranger: u32 = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let others = Others::count(&[]);
        let pids: HashSet<u32> = outsiders(&HashSet::new())
            .into_keys()
            .map(|(pid, _)| pid)
            .collect();
        assert!(pids.contains(&stranger) && !pids.contains(&child.id()));
        assert!(!pids.contains(&std::process::id()) && !pids.contains(&KTHREADD));
        let start = Instant::now();
        while others.ticks() == 0 && start.elapsed() < Duration::from_secs(15) {
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        assert!(others.ticks() > 0);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(stranger as i32), Signal::SIGTERM)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
