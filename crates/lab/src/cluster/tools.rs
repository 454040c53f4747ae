//! Runs `ip`, `tc` and `ethtool` inside a namespace, in batches.
//!
//! A lab of sixteen hosts needs hundreds of commands, and starting a process costs more than most
//! of the commands.

use super::error::ClusterError;
use super::holder::Holder;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns PATH with the folders in which distributions keep ip and tc. An ordinary user's PATH
/// does not contain them.
fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(system);
    std::env::join_paths(folders).unwrap_or(path)
}

/// Returns the package that contains `program`, in Debian and Ubuntu.
fn package_of(program: &str) -> &'static str {
    match program {
        "ethtool" => "ethtool",
        "unshare" => "util-linux",
        _ => "iproute2",
    }
}

/// Runs `command` to its end with `input` on its standard input. Returns its standard output. An
/// error shows `command_text` if the failed line of the input is unknown.
fn run(
    mut command: Command,
    place: &str,
    program: &str,
    command_text: &str,
    input: &str,
) -> Result<String, ClusterError> {
    let io_error = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => ClusterError::NoProgram {
            program: program.to_owned(),
            package: package_of(program),
        },
        _ => ClusterError::Io {
            operation: format!("running {program} in {place}"),
            reason: source,
        },
    };
    let mut child = command
        .env("PATH", search_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io_error)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops at its first error closes the pipe. Its exit status reports the error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(io_error)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // `Command failed -:3` and `sh: 3: …` contain a line number. The error shows the line itself.
    let batch_line = message.rsplit_once("-:").map(|(_, number)| number.trim());
    let script_line = message
        .strip_prefix("sh: ")
        .and_then(|tail| Some(tail.split_once(':')?.0));
    let line = batch_line
        .or(script_line)
        .and_then(|number| number.parse::<usize>().ok())
        .and_then(|number| input.lines().nth(number.saturating_sub(1)));
    Err(ClusterError::Refused {
        place: place.to_owned(),
        command: line.map_or(command_text.to_owned(), |line| format!("{program} {line}")),
        message: message.replace('\n', "; "),
    })
}

/// Runs a batch of `ip` or `tc` commands, one per line, inside `holder`.
///
/// # Errors
/// If a line is refused. The error contains the first such line and the tool's message.
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

/// Runs one command inside `holder` and returns its standard output.
///
/// # Errors
/// If the command fails. The error contains the tool's message.
pub fn run_command(holder: &Holder, program: &str, args: &[&str]) -> Result<String, ClusterError> {
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

/// Runs `lines` with `sh` inside `holder`, and returns their standard output. The first line that
/// fails ends the script.
///
/// # Errors
/// If a line fails. The error contains its message.
pub fn script(holder: &Holder, lines: &[String]) -> Result<String, ClusterError> {
    if lines.is_empty() {
        return Ok(String::new());
    }
    let mut command = holder.command("sh");
    command.args(["-e", "-s"]);
    run(command, holder.name(), "sh", &lines[0], &lines.join("\n"))
}

/// Returns a line for [`script`] that sets `path`, below /proc/sys, to `value`. A path that the
/// kernel does not have is skipped, because older kernels lack some settings.
pub fn sysctl_line(path: &str, value: &str) -> String {
    format!("[ ! -e /proc/sys/{path} ] || echo '{value}' > /proc/sys/{path}")
}

/// Checks early that all `programs`, which build the network, are installed.
///
/// # Errors
/// [`ClusterError::NoProgram`] with the first program that is missing.
pub fn require(programs: &[&str]) -> Result<(), ClusterError> {
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path()).collect();
    let is_installed = |program: &str| folders.iter().any(|folder| folder.join(program).is_file());
    match programs.iter().find(|program| !is_installed(program)) {
        None => Ok(()),
        Some(program) => Err(ClusterError::NoProgram {
            program: (*program).to_owned(),
            package: package_of(program),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run__command_that_fails__shows_place_refused_line_and_reason() {
        let lines = "addr add 10.1.0.1/16 dev eth1\nlink set eth9 up\n";
        for (output, message) in [
            (
                "Cannot find device \"eth9\"\nCommand failed -:2\n",
                "in h1: `ip link set eth9 up` failed: Cannot find device \"eth9\"; \
                 Command failed -:2",
            ),
            (
                "sh: 1: refused",
                "in h1: `ip addr add 10.1.0.1/16 dev eth1` failed: sh: 1: refused",
            ),
            (
                "no such command",
                "in h1: `ip -batch -` failed: no such command",
            ),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", "printf %s \"$1\" >&2; exit 1", "sh", output]);
            let error = run(command, "h1", "ip", "ip -batch -", lines).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn program__absent__is_named_with_its_package() {
        let absent = "kumi-is-no-such-program";
        let message = format!("`{absent}` is not installed; run `apt-get install iproute2`");
        let error = run(Command::new(absent), "h1", absent, absent, "").unwrap_err();
        assert_eq!(error.to_string(), message);
        let error = require(&["sh", absent]).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(
            [package_of("unshare"), package_of("ethtool")],
            ["util-linux", "ethtool"]
        );
    }
}
