//! `kumi lab exec`, `shell` and `rsh`: run programs in a host.

use super::lab_error;
use anyhow::Context;
use kumi_lab::cluster::Roster;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Environment variable with the name of the lab, so that mpirun's agent finds the same lab.
const LAB_VARIABLE: &str = "KUMI_LAB";

/// Arguments of `kumi lab exec`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the lab; may be left out when only one is up.
    #[arg(long, env = LAB_VARIABLE)]
    lab: Option<String>,
    /// Name of the host.
    host: String,
    /// Command and its arguments.
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Arguments of `kumi lab shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// Name of the lab; may be left out when only one is up.
    #[arg(long, env = LAB_VARIABLE)]
    lab: Option<String>,
    /// Name of the host.
    host: String,
}

/// Arguments of `kumi lab rsh`.
#[derive(Debug, clap::Args)]
pub struct RshArgs {
    /// Name of the host.
    host: String,
    /// A shell command, in one argument or several.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Returns a command in a host, with an environment in which mpirun and `kumi oshrun` work by host
/// name.
fn enter(lab: Option<&str>, host: &str, program: &OsString) -> anyhow::Result<Command> {
    let roster = Roster::find(lab).map_err(lab_error)?;
    let program = program.to_string_lossy();
    let mut command = roster.command(host, &program).map_err(lab_error)?;
    let agent = format!("{} lab rsh", std::env::current_exe()?.display());
    command
        .env(LAB_VARIABLE, &roster.name)
        .env("KUMI_AGENT", &agent)
        .env("OMPI_MCA_plm_rsh_agent", agent)
        // Ranks outnumber cores, so a rank that spins would keep the others from running.
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        // Each host takes the machine for its own, so the hosts' ranks would all bind to the same
        // processor.
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Ok(command)
}

/// Replaces this process by `command`. Returns only if that fails.
fn replace_process(mut command: Command, host: &str) -> anyhow::Result<ExitCode> {
    let program = command.get_program().to_string_lossy().into_owned();
    Err(command.exec()).with_context(|| format!("running `{program}` in host {host}"))
}

/// Runs `kumi lab exec`.
pub fn exec(args: Args) -> anyhow::Result<ExitCode> {
    let mut command = enter(args.lab.as_deref(), &args.host, &args.command[0])?;
    command.args(&args.command[1..]);
    replace_process(command, &args.host)
}

/// Runs `kumi lab shell`.
pub fn shell(args: ShellArgs) -> anyhow::Result<ExitCode> {
    let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let command = enter(args.lab.as_deref(), &args.host, &shell)?;
    replace_process(command, &args.host)
}

/// Runs `kumi lab rsh`. As in rsh, the arguments are joined and passed to a shell.
pub fn rsh(args: RshArgs) -> anyhow::Result<ExitCode> {
    let lab = std::env::var(LAB_VARIABLE).ok();
    let mut command = enter(lab.as_deref(), &args.host, &"sh".into())?;
    command.arg("-c").arg(args.command.join(" "));
    replace_process(command, &args.host)
}
