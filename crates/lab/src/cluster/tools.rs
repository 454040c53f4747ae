//! `ip`, `tc` and `ethtool`, run inside a namespace, a batch at a time.
//!
//! Batches because a lab of sixteen hosts is hundreds of commands, and starting a process costs
//! more than what most of them do.

use super::error::ClusterError;
use super::holder::Holder;
use std::io::Write;
use std::process::{Command, Stdio};

/// The package that has `program`, in Debian and Ubuntu.
fn package_of(program: &str) -> &'static str {
    match program {
        "ethtool" => "ethtool",
        "unshare" => "util-linux",
        _ => "iproute2",
    }
}

/// Runs `command` to its end with `input` on its standard input; `shown` is for the error.
fn run(
    mut command: Command,
    place: &str,
    program: &str,
    shown: &str,
    input: &str,
) -> Result<String, ClusterError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => ClusterError::NoProgram {
            program: program.to_owned(),
            package: package_of(program),
        },
        _ => ClusterError::Io {
            doing: format!("running {program} in {place}"),
            reason: source,
        },
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops at its first error closes the pipe; its status tells.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // `Command failed -:3` and `sh: 3: …`: name the line of the batch, not its number.
    let of_batch = message.rsplit_once("-:").map(|(_, number)| number.trim());
    let of_script = message
        .strip_prefix("sh: ")
        .and_then(|rest| Some(rest.split_once(':')?.0));
    let line = of_batch
        .or(of_script)
        .and_then(|number| number.parse::<usize>().ok())
        .and_then(|number| input.lines().nth(number.saturating_sub(1)));
    Err(ClusterError::Refused {
        place: place.to_owned(),
        command: line.map_or(shown.to_owned(), |line| format!("{program} {line}")),
        message: message.replace('\n', "; "),
    })
}

/// Runs a batch of `ip` or `tc` commands, one a line, inside `holder`.
///
/// # Errors
/// The first line that is refused, with the tool's words.
pub fn batch(holder: &Holder, program: &str, lines: &[String]) -> Result<(), ClusterError> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut command = holder.command(program);
    command.args(["-batch", "-"]);
    let mut input = lines.join("\n");
    input.push('\n');
    run(command, holder.name(), program, &lines[0], &input).map(drop)
}

/// Runs one command inside `holder` and returns what it printed.
///
/// # Errors
/// It is refused, with the tool's words.
pub fn one(holder: &Holder, program: &str, args: &[&str]) -> Result<String, ClusterError> {
    let mut command = holder.command(program);
    command.args(args);
    run(
        command,
        holder.name(),
        program,
        &format!("{program} {}", args.join(" ")),
        "",
    )
}

/// Runs the lines of `script` with `sh` inside `holder`, and returns what they printed; the first
/// that fails ends it.
///
/// # Errors
/// A line fails, with what it printed.
pub fn script(holder: &Holder, lines: &[String]) -> Result<String, ClusterError> {
    if lines.is_empty() {
        return Ok(String::new());
    }
    let mut command = holder.command("sh");
    command.args(["-e", "-s"]);
    run(command, holder.name(), "sh", &lines[0], &lines.join("\n"))
}

/// A line for [`script`] that sets `path`, below /proc/sys, to `value`. What the kernel does not
/// have is left out: an older one lacks some settings.
pub fn sysctl_line(path: &str, value: &str) -> String {
    format!("[ ! -e /proc/sys/{path} ] || echo '{value}' > /proc/sys/{path}")
}

/// Refuses early, by name, if a program that builds the network is missing.
///
/// # Errors
/// [`ClusterError::NoProgram`].
pub fn require(programs: &[&str]) -> Result<(), ClusterError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    match programs.iter().find(|program| !has(program)) {
        None => Ok(()),
        Some(program) => Err(ClusterError::NoProgram {
            program: (*program).to_owned(),
            package: package_of(program),
        }),
    }
}
