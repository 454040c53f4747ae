//! A process that runs on a host while another one is measured.

use super::Hosts;
use anyhow::Context;
use kumi_command::interrupt::{self, Tied};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

/// A running process. Dropping it ends the process.
#[derive(Debug)]
pub struct Background {
    child: Child,
    output: BufReader<ChildStdout>,
    description: String,
    _tie: Tied,
}

impl Background {
    /// Starts `argv` on `host`, for at most `seconds_max` seconds.
    pub fn start(
        hosts: &dyn Hosts,
        host: &str,
        argv: &[&str],
        seconds_max: u32,
    ) -> anyhow::Result<Self> {
        let description = format!("on {host}: {}", argv.join(" "));
        interrupt::check()?;
        let mut child = hosts
            .bounded_tied_command(host, argv, seconds_max)
            .stdout(Stdio::piped())
            // The process is ended on purpose. Its complaints about that are of no interest.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| description.clone())?;
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Ok(Self {
            _tie: interrupt::tie(child.id()),
            child,
            output,
            description,
        })
    }

    /// Reads the process's next line. Servers print one when they listen.
    pub fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .with_context(|| self.description.clone())?;
        anyhow::ensure!(
            !line.is_empty(),
            "{}: ended before it was ready",
            self.description
        );
        Ok(line.trim_end().to_string())
    }

    /// Ends the process and returns the rest of its output.
    pub fn stop(mut self) -> anyhow::Result<String> {
        self.terminate();
        let mut text = String::new();
        self.output
            .read_to_string(&mut text)
            .with_context(|| self.description.clone())?;
        Ok(text)
    }

    /// Waits until the process ends by itself, and returns the rest of its output. Fails if the
    /// process fails.
    pub fn finish(mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        self.output
            .read_to_string(&mut text)
            .with_context(|| self.description.clone())?;
        let status = self.child.wait()?;
        anyhow::ensure!(
            status.success(),
            "{}: {status}: {}",
            self.description,
            text.trim()
        );
        Ok(text)
    }
}

impl Background {
    fn terminate(&mut self) {
        // The child is `timeout`, which passes SIGTERM on to the command. SIGKILL would end
        // `timeout` alone, and a stream that goes on sending would spoil the next measurement.
        if let Ok(None) = self.child.try_wait() {
            let pid = Pid::from_raw(self.child.id() as i32);
            let _ = signal::kill(pid, Signal::SIGTERM);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.terminate();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::fake::Fake;

    #[test]
    fn background__process_that_ends_early__is_shown_with_its_host() {
        let start = |script: &str| {
            let hosts = Fake::new(1, script);
            Background::start(&hosts, "h1", &["iperf3", "-s"], 5).unwrap()
        };
        assert_eq!(
            start("exit 1").line().unwrap_err().to_string(),
            "on h1: iperf3 -s: ended before it was ready"
        );
        let error = start("echo no port; exit 4").finish().unwrap_err();
        assert_eq!(
            error.to_string(),
            "on h1: iperf3 -s: exit status: 4: no port"
        );
    }
}
