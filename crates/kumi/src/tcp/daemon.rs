//! The daemon of `kumi tcp up`: takes processes of `kumi run` in, and lets them go when they end.
//!
//! It holds nothing that a connection needs: killed, it leaves the programs in place, and the next
//! `kumi tcp up` takes over. Stopped, it gives every live connection back to the kernel's own
//! congestion control and removes the programs.

use super::join::{Request, SOCKET};
use super::service::Service;
use super::up::EXIT_RUNG;
use crate::BadInput;
use anyhow::Context;
use kumi_tcp::{Rung, Settings, TcpError};
use nix::sys::signal::{SigSet, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What the daemon says.
pub fn log() -> PathBuf {
    Path::new(SOCKET).with_extension("log")
}

/// Whether a daemon answers.
pub fn is_running() -> bool {
    UnixStream::connect(SOCKET).is_ok()
}

/// Ends the daemon, and with it the programs; without a daemon, the programs it left.
pub fn down() -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(TcpError::NotPermitted.into());
    }
    if is_running() {
        super::join::ask(&Request::Down).context("the daemon")?;
        return wait_for_end();
    }
    kumi_tcp::remove().context("kumi tcp down")?;
    let _ = std::fs::remove_file(SOCKET);
    Ok(())
}

/// Ends the daemon, if there is one, and leaves the programs to another.
pub fn hand_over() -> anyhow::Result<()> {
    if !is_running() {
        return Ok(());
    }
    super::join::ask(&Request::HandOver).context("the running daemon")?;
    wait_for_end()
}

fn wait_for_end() -> anyhow::Result<()> {
    for _ in 0..1000 {
        if !Path::new(SOCKET).exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!(
        "the daemon was told to end and has not; see {}",
        log().display()
    );
}

/// Runs the daemon until it is told to end.
pub fn run(settings: &Settings, requires_all: bool) -> anyhow::Result<ExitCode> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let mut adopted = Vec::new();
    let rung = match kumi_tcp::installed() {
        Ok((there, rung)) if there == *settings => {
            outln!("took over the TCP programs that a daemon before left in place");
            adopted = kumi_tcp::adopted()?;
            rung
        }
        Ok(_) => {
            return Err(BadInput(
                "TCP programs with other settings are installed; `kumi tcp down` removes them"
                    .to_owned(),
            )
            .into());
        }
        Err(TcpError::Absent) => {
            let installed = kumi_tcp::install(settings)?;
            if let Some(refusal) = &installed.refusal {
                errln!("kumi: warning: the kernel refuses a part: {refusal}");
            }
            if requires_all && installed.rung != Rung::Full {
                kumi_tcp::remove()?;
                return Ok(ExitCode::from(EXIT_RUNG));
            }
            installed.rung
        }
        Err(error) => return Err(error.into()),
    };
    announce(settings, rung);
    kumi_sys::process::raise_descriptor_limit();
    let must_remove = Service::new(listen()?, &signals, rung, adopted)?.run()?;
    if must_remove {
        kumi_tcp::remove().unwrap_or_else(|error| errln!("kumi: {error}"));
    }
    let _ = std::fs::remove_file(SOCKET);
    Ok(ExitCode::SUCCESS)
}

fn announce(settings: &Settings, rung: Rung) {
    let without = settings.left_out();
    out!(
        "congestion control `kumi` is in place, rung {}",
        rung.name()
    );
    if !without.is_empty() {
        out!(", without {}", without.join(", "));
    }
    outln!();
    if let Some(lost) = rung.lost() {
        outln!("  lost on this kernel: {lost}");
    }
    outln!("  one program             kumi run -- CMD");
    outln!("  a systemd service       kumi tcp enable UNIT");
    outln!("  every new connection    sysctl -w net.ipv4.tcp_congestion_control=kumi");
}

fn listen() -> anyhow::Result<UnixListener> {
    let _ = std::fs::remove_file(SOCKET);
    if let Some(folder) = Path::new(SOCKET).parent() {
        std::fs::create_dir_all(folder)?;
    }
    let listener = UnixListener::bind(SOCKET).context(SOCKET)?;
    // Any user's programs may join: they gain nothing but their own sockets' congestion control.
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
