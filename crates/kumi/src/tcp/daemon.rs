//! The daemon of `kumi tcp up`. It accepts processes of `kumi run`, and removes them when they end.
//!
//! No connection depends on it. If it is killed, the programs stay in place, and the next
//! `kumi tcp up` takes over. If it is stopped, it returns every live connection to the kernel's own
//! congestion control and removes the programs.

use super::EXIT_TIER;
use anyhow::Context;
use kumi_command::BadInput;
use kumi_command::{errln, out, outln};
use kumi_tcp::daemon::Service;
use kumi_tcp::daemon::client::{Request, SOCKET, ask};
use kumi_tcp::{Mechanism, Settings, TcpError, Tier};
use nix::sys::signal::{SigSet, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Returns the path of the daemon's log.
pub fn log() -> PathBuf {
    Path::new(SOCKET).with_extension("log")
}

/// Returns whether a daemon accepts connections.
pub fn is_running() -> bool {
    UnixStream::connect(SOCKET).is_ok()
}

/// Stops the daemon, which removes the programs. Without a daemon, removes the programs that one
/// left.
pub fn down() -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(TcpError::NotPermitted.into());
    }
    if is_running() {
        ask(&Request::Down).context("cannot stop the daemon")?;
        return wait_for_end();
    }
    kumi_tcp::remove().context("cannot remove the TCP programs")?;
    let _ = std::fs::remove_file(SOCKET);
    Ok(())
}

/// Stops the daemon, if one runs, and leaves the programs to another one.
pub fn hand_over() -> anyhow::Result<()> {
    if !is_running() {
        return Ok(());
    }
    ask(&Request::HandOver).context("cannot stop the running daemon")?;
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
        "the daemon did not stop within 10 s; see {}",
        log().display()
    );
}

/// Runs the daemon until a signal or a request ends it.
///
/// If the installation lacks a part and `requires_all` is set, the result is [`EXIT_TIER`]. A new
/// installation is then removed; one that an earlier daemon left stays, because sockets use it.
pub fn run(settings: &Settings, requires_all: bool) -> anyhow::Result<ExitCode> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let mut adopted = None;
    let tier = match kumi_tcp::installed() {
        Ok((current, tier)) if current == *settings => {
            if requires_all && tier != Tier::Full {
                let limits = tier.lost().unwrap_or_default();
                errln!("kumi: capability tier {}: {limits}", tier.name());
                return Ok(ExitCode::from(EXIT_TIER));
            }
            outln!("took over the TCP programs that an earlier daemon left in place");
            adopted = Some(kumi_tcp::adopted()?);
            tier
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
            if requires_all && installed.tier != Tier::Full {
                kumi_tcp::remove()?;
                return Ok(ExitCode::from(EXIT_TIER));
            }
            installed.tier
        }
        Err(error) => return Err(error.into()),
    };
    announce(settings, tier);
    kumi_sys::process::raise_descriptor_limit();
    let is_adopted = adopted.is_some();
    let mut service = Service::new(listen()?, &signals, tier, adopted.unwrap_or_default())?;
    if settings.has(Mechanism::ShortBursts) {
        service = service.with_short_bursts(is_adopted);
    }
    let must_remove = service.run()?;
    if must_remove {
        kumi_tcp::remove().unwrap_or_else(|error| errln!("kumi: {error}"));
    }
    let _ = std::fs::remove_file(SOCKET);
    Ok(ExitCode::SUCCESS)
}

fn announce(settings: &Settings, tier: Tier) {
    let omitted = settings.left_out();
    let installed = match tier.has_control() {
        true => "congestion control `kumi` is installed",
        false => "socket options are set by `kumi`",
    };
    out!("{installed}, capability tier {}", tier.name());
    if !omitted.is_empty() {
        out!(", without {}", omitted.join(", "));
    }
    outln!();
    if let Some(limits) = tier.lost() {
        outln!("  limits on this kernel: {limits}");
    }
    outln!("  one program             kumi run -- CMD");
    outln!("  a systemd service       kumi tcp enable UNIT");
    if tier.has_control() {
        outln!("  every new connection    sysctl -w net.ipv4.tcp_congestion_control=kumi");
    }
}

fn listen() -> anyhow::Result<UnixListener> {
    let _ = std::fs::remove_file(SOCKET);
    if let Some(folder) = Path::new(SOCKET).parent() {
        std::fs::create_dir_all(folder)?;
    }
    let listener =
        UnixListener::bind(SOCKET).with_context(|| format!("cannot listen on {SOCKET}"))?;
    // Programs of any user may join. They gain only the congestion control of their own sockets.
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
