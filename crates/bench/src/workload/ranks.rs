//! Programs with a rank on every host, started without a launcher.

use super::Context;
use anyhow::Context as _;
use kumi_command::interrupt;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// Port of the next run. Each run has its own, because the previous run's may not be free yet.
static PORTS: AtomicU16 = AtomicU16::new(29_500);

/// Longest time of a run, in seconds.
const RUN_SECONDS_MAX: u32 = 110;

/// Runs `program` on the first `count` hosts, with the variables of its rank. Returns the output of
/// all ranks. With `has_losses`, a rank may fail without a traceback, and its errors are output.
pub fn run(
    context: &Context<'_>,
    count: usize,
    variables: &[String],
    program: &[&str],
    has_losses: bool,
) -> anyhow::Result<String> {
    let running = context.running;
    let hosts = running.hosts;
    let first = &hosts.names()[0];
    let master = hosts.address(first, &running.device)?;
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    let (mut ranks, mut ties) = (Vec::new(), Vec::new());
    for (rank, host) in hosts.names().iter().take(count).enumerate() {
        let own = [
            format!("KUMI_INTERFACE={}", running.device),
            format!("MASTER_ADDR={master}"),
            format!("MASTER_PORT={port}"),
            format!("RANK={rank}"),
            format!("WORLD_SIZE={count}"),
        ];
        let mut argv: Vec<&str> = vec!["env"];
        argv.extend(variables.iter().chain(&own).map(String::as_str));
        argv.extend(running.prefix.iter().map(String::as_str));
        argv.extend(program);
        interrupt::check()?;
        let child = hosts
            .bounded_command(host, &argv, RUN_SECONDS_MAX)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting a rank on {host}"))?;
        ties.push(interrupt::tie(child.id()));
        ranks.push(child);
    }
    collect_output(&mut ranks, has_losses)
}

/// Waits until all ranks have ended, and returns their output. With `has_losses`, a rank may
/// fail without a traceback.
fn collect_output(ranks: &mut [Child], has_losses: bool) -> anyhow::Result<String> {
    let readers = ranks.iter_mut().map(|rank| {
        let (mut stdout, mut stderr) = (rank.stdout.take(), rank.stderr.take());
        std::thread::spawn(move || {
            let (mut output, mut errors) = (String::new(), String::new());
            // Output that cannot be read counts as absent.
            let _ = stdout.as_mut().map(|pipe| pipe.read_to_string(&mut output));
            let _ = stderr.as_mut().map(|pipe| pipe.read_to_string(&mut errors));
            (output, errors)
        })
    });
    let readers: Vec<_> = readers.collect();
    let mut failures = Vec::new();
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            failures.push(format!("rank {rank}: {status}"));
        }
    }
    let (mut output, mut errors) = (String::new(), String::new());
    for (text, error_text) in readers.into_iter().filter_map(|reader| reader.join().ok()) {
        output += &text;
        errors += &error_text;
    }
    let is_lost_only = has_losses && !errors.contains("Traceback");
    if has_losses {
        output += &errors;
    }
    anyhow::ensure!(
        failures.is_empty() || is_lost_only,
        "{}: {}",
        failures.join(", "),
        errors.trim()
    );
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn rank__that_fails__is_named_with_its_status_and_errors() {
        let rank = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped());
            command.stderr(Stdio::piped()).spawn().unwrap()
        };
        let ranks = || [rank("echo 1"), rank("echo unknown operation >&2; exit 2")];
        let error = collect_output(&mut ranks(), false).unwrap_err();
        let expected = "rank 1: exit status: 2: unknown operation";
        assert_eq!(error.to_string(), expected);
        let output = collect_output(&mut ranks(), true).unwrap();
        assert_eq!(output, "1\nunknown operation\n");
    }
}
