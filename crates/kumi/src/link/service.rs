//! `kumi up -c FILE`: runs the devices of a configuration file as one service in the foreground.

use kumi_command::BadInput;
use kumi_command::{errln, outln};
use kumi_device::check;
use kumi_device::config::DeviceConfig;
use kumi_device::control::{self, Request};
use kumi_device::run_dir::RunDir;
use nix::sys::signal::{SigSet, Signal};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest time for which the request to end a device is repeated while the device starts, and the
/// interval between attempts.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `kumi up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file.
    #[arg(
        short,
        long,
        default_value = "/etc/kumi/kumi.toml",
        env = "KUMI_CONFIG"
    )]
    config: PathBuf,
    /// Checks the file and exits.
    #[arg(long)]
    check: bool,
}

/// Contents of the configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Multilink devices.
    #[serde(default)]
    link: Vec<DeviceConfig>,
}

fn read(path: &Path) -> anyhow::Result<File> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read {name}: {error}; set --config")))?;
    let file: File = toml::from_str(&text)
        .map_err(|error| BadInput(format!("{name}: {}", error.to_string().trim())))?;
    if file.link.is_empty() {
        return Err(BadInput(format!("{name}: no [[link]] table: expected at least one")).into());
    }
    Ok(file)
}

/// Returns all mistakes of `file`. `find` returns the mistakes of one device by itself.
fn mistakes(file: &File, find: impl Fn(&DeviceConfig) -> Vec<String>) -> Vec<String> {
    let mut messages = Vec::new();
    for (index, device) in file.link.iter().enumerate() {
        let mut device_messages = find(device);
        let earlier = &file.link[..index];
        if earlier.iter().any(|entry| entry.name == device.name) {
            device_messages.push("configured twice; give each device its own name".to_owned());
        }
        device_messages.extend(
            earlier
                .iter()
                .filter_map(|entry| check::shared_port(device, entry)),
        );
        messages.extend(
            device_messages
                .iter()
                .map(|mistake| format!("link `{}`: {mistake}", device.name)),
        );
    }
    messages
}

/// Returns an error with all mistakes, each preceded by the name of the file.
fn refuse(path: &Path, mistakes: Vec<String>) -> Result<(), BadInput> {
    let messages = mistakes
        .iter()
        .map(|mistake| format!("{}: {mistake}", path.display()));
    BadInput::of_all(messages.collect())
}

/// Runs `kumi up`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = read(&args.config)?;
    if args.check {
        let all = kumi_sys::netlink::link::interfaces()?;
        refuse(
            &args.config,
            mistakes(&file, |device| check::mistakes(device, &all)),
        )?;
    }
    refuse(&args.config, mistakes(&file, DeviceConfig::mistakes))?;
    if args.check {
        outln!(
            "{}: {} devices, no mistakes",
            args.config.display(),
            file.link.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<String> = file.link.iter().map(|device| device.name.clone()).collect();
    end_on_signals(names)?;
    let threads: Vec<_> = file
        .link
        .into_iter()
        .map(|config| {
            (
                config.name.clone(),
                std::thread::spawn(move || super::run_device(config)),
            )
        })
        .collect();
    let mut outcome = Ok(ExitCode::SUCCESS);
    for (name, thread) in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome = Err(error.context(name)),
            Err(_) => {
                outcome = Err(anyhow::anyhow!(
                    "{name}: the device's thread panicked; see the message above"
                ))
            }
        }
    }
    outcome
}

/// Handles SIGINT and SIGTERM in a thread.
///
/// SIGINT (Ctrl-C) removes the devices and leaves the system as it was found. SIGTERM, which a
/// service manager also sends for a restart, ends this process only. The devices stay with their
/// addresses, and connections over them survive until the next start.
pub fn end_on_signals(devices: Vec<String>) -> anyhow::Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    std::thread::spawn(move || {
        let names = devices.join(", ");
        if signals.wait() == Ok(Signal::SIGINT) {
            errln!("kumi: SIGINT: taking {names} down, with its addresses");
            devices.iter().for_each(|device| take_down(device));
        } else {
            errln!(
                "kumi: SIGTERM: {names} stays for the next start, with its addresses; `kumi link down` removes it"
            );
            std::process::exit(0);
        }
    });
    Ok(())
}

/// Ends a device of this process. Retries until its control socket accepts the request.
fn take_down(device: &str) {
    let deadline = Instant::now() + START_TIME_MAX;
    let ask = || control::ask(&RunDir::of(device)?.socket(), &Request::Down);
    while let Err(error) = ask() {
        if Instant::now() > deadline {
            errln!(
                "kumi: {device} does not answer: {error:#}; `kumi link down {device}` removes it"
            );
            std::process::exit(1);
        }
        std::thread::sleep(START_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_text(text: &str) -> String {
        let path =
            std::env::temp_dir().join(format!("kumi-conf-{:?}", std::thread::current().id()));
        std::fs::write(&path, text).unwrap();
        let outcome = read(&path)
            .and_then(|file| Ok(refuse(&path, mistakes(&file, DeviceConfig::mistakes))?));
        let message = outcome.map_or_else(|error| error.to_string(), |()| String::new());
        std::fs::remove_file(&path).unwrap();
        message
    }

    #[test]
    fn configuration__mistakes__are_all_reported_by_name() {
        assert_eq!(
            error_text("[[link]]\nname = \"kumi0\"\nover = [\"eth1\", \"eth2\"]\n"),
            ""
        );
        let unknown = error_text("[[link]]\nname = \"kumi0\"\novr = [\"eth1\"]\n");
        assert!(
            unknown.contains("line 3") && unknown.contains("ovr") && unknown.contains("over"),
            "{unknown}"
        );
        assert!(error_text("").contains("no [[link]] table"));
        let device = |name: &str, interface: &str| {
            format!("[[link]]\nname = \"{name}\"\nover = [\"{interface}\"]\nmtu = 100\n")
        };
        let errors = error_text(&(device("kumi0", "eth1") + &device("kumi1", "eth1")));
        assert_eq!(errors.lines().count(), 3, "two MTUs and one port: {errors}");
        assert!(
            errors.contains("link `kumi1`: port 24870: kumi0 has"),
            "{errors}"
        );
        assert!(error_text("[[link]]\nname = \"kumi0\"\nover = []\n").contains("0 interfaces"));
    }
}
