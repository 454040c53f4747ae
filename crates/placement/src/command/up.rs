//! `kumi wind up` and `down`: the daemon that lets the kernel execute requests.

use crate::{Program, Service, detach, is_attached};
use anyhow::{Context, bail};
use kumi_command::{BadInput, EXIT_BAD_INPUT, background, errln, out, outln};
use kumi_wind::kernel::{Reply, Request, SOCKET, ask, open_socket};
use nix::sys::signal::{SigSet, Signal};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time limit for the daemon to load the program and answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of `kumi wind up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices whose network is trusted: hosts in it may send requests, authenticated and not
    /// encrypted.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<String>,
    /// Limit of the memory of all regions together, such as 512M or 4G; by default a quarter of the
    /// host's memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Stays in the foreground.
    #[arg(long)]
    foreground: bool,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let factor: Option<u64> = match &text[digits.len()..] {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(factor);
    bytes
        .and_then(|(count, factor)| count.checked_mul(factor))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected a number of bytes, with or without K, M or G".to_owned())
}

/// Returns a quarter of the host's memory, in bytes.
fn default_memory() -> anyhow::Result<u64> {
    let info = nix::sys::sysinfo::sysinfo().context("cannot read the size of the memory")?;
    Ok(info.ram_total() / 4)
}

fn log() -> PathBuf {
    Path::new(SOCKET).with_extension("log")
}

/// Sends a request to the daemon.
pub fn request(request: &Request) -> anyhow::Result<Reply> {
    let socket = open_socket(Path::new(SOCKET))
        .context("no daemon runs here; `kumi wind up DEVICE` starts it")?;
    Ok(ask(socket.as_fd(), request, None)?.0)
}

fn is_running() -> bool {
    open_socket(Path::new(SOCKET)).is_ok()
}

/// Runs `kumi wind up`.
pub fn up(args: &Args) -> anyhow::Result<ExitCode> {
    for device in &args.devices {
        is_attached(device).map_err(|error| BadInput(error.to_string()))?;
    }
    if is_running() {
        return add_devices(args);
    }
    if args.foreground {
        return run(args);
    }
    start()
}

/// Attaches the running daemon's program to more devices, also in other network namespaces.
fn add_devices(args: &Args) -> anyhow::Result<ExitCode> {
    if args.memory.is_some() {
        let text = "the daemon runs already; `kumi wind down` ends it before --memory changes";
        return Err(BadInput(text.to_owned()).into());
    }
    let socket = open_socket(Path::new(SOCKET))?;
    let namespace = File::open("/proc/self/ns/net")?;
    for device in &args.devices {
        let device = device.clone();
        let request = Request::Attach { device };
        ask(socket.as_fd(), &request, Some(namespace.as_fd()))?;
    }
    announce(args);
    Ok(ExitCode::SUCCESS)
}

fn announce(args: &Args) {
    outln!(
        "the kernel executes requests that arrive at {}",
        args.devices.join(", ")
    );
    outln!("  for programs with sessions that are authenticated and not encrypted, as");
    outln!("  `kumi wind serve --trusted`; `kumi wind show` lists them");
}

fn start() -> anyhow::Result<ExitCode> {
    let path = log();
    let folder = path.parent().context("the path of the log has no folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}; run as root", folder.display()))?;
    let mut starting = background::start(&path)?;
    let began = Instant::now();
    loop {
        if let Some((status, output)) = starting.ended()? {
            if status.code() == Some(EXIT_BAD_INPUT.into()) {
                return Err(BadInput(output).into());
            }
            bail!("{output}");
        }
        if is_running() {
            out!("{}", starting.said());
            return Ok(ExitCode::SUCCESS);
        }
        if began.elapsed() > START_TIMEOUT {
            bail!("the daemon does not answer; see {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let memory = args.memory.map_or_else(default_memory, Ok)?;
    kumi_sys::process::raise_descriptor_limit();
    let program = Program::load()?;
    if let Some(folder) = Path::new(SOCKET).parent() {
        std::fs::create_dir_all(folder)?;
    }
    let service = Service::new(Path::new(SOCKET), &signals, program, memory);
    let mut service = service.with_context(|| format!("cannot listen on {SOCKET}"))?;
    for device in &args.devices {
        if let Err(error) = service.attach(device) {
            let _ = std::fs::remove_file(SOCKET);
            return Err(error.into());
        }
    }
    announce(args);
    let result = service.run();
    let _ = std::fs::remove_file(SOCKET);
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `kumi wind down`.
pub fn down() -> anyhow::Result<ExitCode> {
    if is_running() {
        request(&Request::Down).context("cannot end the daemon")?;
        let began = Instant::now();
        while Path::new(SOCKET).exists() {
            if began.elapsed() > START_TIMEOUT {
                bail!("the daemon does not end; see {}", log().display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        return Ok(ExitCode::SUCCESS);
    }
    // A daemon that was killed has left the program at its devices.
    let mut found = false;
    for device in nix::net::if_::if_nameindex()?.iter() {
        let name = device.name().to_string_lossy().into_owned();
        if is_attached(&name).unwrap_or(false) {
            detach(&name)?;
            outln!("removed the program that an earlier daemon left at {name}");
            found = true;
        }
    }
    let _ = std::fs::remove_file(SOCKET);
    if !found {
        errln!(
            "kumi: no daemon runs here, and no device of this network namespace has its program"
        );
    }
    Ok(ExitCode::from(u8::from(!found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size__with_and_without_a_unit__is_bytes_or_an_error() {
        assert_eq!(parse_size("7"), Ok(7));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        for wrong in ["", "0", "4T", "M", "-1", "1.5G", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
