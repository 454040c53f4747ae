//! The daemon of `kumi tcp up`: takes processes of `kumi run` in, and lets them go when they end.
//!
//! It holds nothing that a connection needs: killed, it leaves the programs in place, and the next
//! `kumi tcp up` takes over. Stopped, it gives every live connection back to the kernel's own
//! congestion control and removes the programs.

use super::join::{Reply, Request, SOCKET};
use super::up::EXIT_RUNG;
use crate::BadInput;
use anyhow::Context;
use kumi_tcp::{Rank, Rung, Settings, TcpError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use std::io::{BufRead, BufReader, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 4096;
/// A client that says nothing for this long is let go.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

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
    if super::join::ask(&Request::Down).is_ok() {
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
    let rung = match kumi_tcp::installed() {
        Ok((there, rung)) if there == *settings => {
            println!("took over the TCP programs that a daemon before left in place");
            watch_adopted()?;
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
                eprintln!("kumi: warning: the kernel refuses a part: {refusal}");
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
    let listener = listen()?;
    std::thread::spawn(move || {
        let _ = signals.wait();
        end();
    });
    for client in listener.incoming().flatten() {
        std::thread::spawn(move || serve(&client));
    }
    Ok(ExitCode::SUCCESS)
}

fn announce(settings: &Settings, rung: Rung) {
    let without = settings.left_out();
    print!(
        "congestion control `kumi` is in place, rung {}",
        rung.name()
    );
    if !without.is_empty() {
        print!(", without {}", without.join(", "));
    }
    println!();
    if let Some(lost) = rung.lost() {
        println!("  lost on this kernel: {lost}");
    }
    println!("  one program             kumi run -- CMD");
    println!("  a systemd service       kumi tcp enable UNIT");
    println!("  every new connection    sysctl -w net.ipv4.tcp_congestion_control=kumi");
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

/// Removes everything and ends the process.
fn end() {
    if let Err(error) = kumi_tcp::remove() {
        eprintln!("kumi: {error}");
    }
    let _ = std::fs::remove_file(SOCKET);
    std::process::exit(0);
}

fn serve(client: &UnixStream) {
    let answer = |reply: &Reply, page: Option<&Rank>| {
        let mut text = serde_json::to_string(reply).unwrap_or_default();
        text.push('\n');
        let descriptors: Vec<i32> = page.iter().map(|rank| rank.page().as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let rights = if descriptors.is_empty() {
            &[][..]
        } else {
            &rights
        };
        let text = [IoSlice::new(text.as_bytes())];
        let none = None::<&()>;
        sendmsg(
            client.as_raw_fd(),
            &text,
            rights,
            MsgFlags::MSG_NOSIGNAL,
            none,
        )
    };
    let refuse = |error: String| {
        let _ = answer(
            &Reply {
                error: Some(error),
                ..Reply::default()
            },
            None,
        );
    };
    let Ok(peer) = getsockopt(client, PeerCredentials) else {
        return;
    };
    match request(client) {
        Ok(Request::Down | Request::HandOver) if peer.uid() != 0 => {
            refuse("only root may end the daemon".to_owned());
        }
        Ok(Request::Down) => {
            let _ = answer(&Reply::default(), None);
            end();
        }
        Ok(Request::HandOver) => {
            let _ = answer(&Reply::default(), None);
            let _ = std::fs::remove_file(SOCKET);
            std::process::exit(0);
        }
        Ok(Request::Join) => match join(peer.pid()) {
            Ok((rank, ended)) => {
                let reply = Reply {
                    rung: kumi_tcp::installed()
                        .ok()
                        .map(|(_, rung)| rung.name().to_owned()),
                    ..Reply::default()
                };
                if answer(&reply, Some(&rank)).is_ok() {
                    wait(&ended);
                }
                if let Err(error) = rank.place.leave() {
                    eprintln!("kumi: process {}: {error}", peer.pid());
                }
            }
            Err(error) => refuse(error.to_string()),
        },
        Err(error) => refuse(error.to_string()),
    }
}

fn request(client: &UnixStream) -> anyhow::Result<Request> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(client.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Ranks of one job come together, and a place in the table is taken in two steps.
static JOINING: Mutex<()> = Mutex::new(());

fn join(pid: i32) -> anyhow::Result<(Rank, OwnedFd)> {
    let _turn = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
    // Not positive: a process of another PID namespace that this one does not see.
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
    let pid = pid.context("the process is not visible from the daemon's PID namespace")?;
    let ended = kumi_sys::process::pidfd(pid)?;
    Ok((Rank::join(pid)?, ended))
}

/// Waits until the process of a pidfd has ended.
fn wait(ended: &OwnedFd) {
    let mut watched = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
    while poll(&mut watched, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
}

/// Sees to the processes that a daemon before had taken in.
fn watch_adopted() -> anyhow::Result<()> {
    for (place, ended) in kumi_tcp::adopted()? {
        std::thread::spawn(move || {
            wait(&ended);
            let _ = place.leave();
        });
    }
    Ok(())
}
