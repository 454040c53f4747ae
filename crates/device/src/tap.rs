//! Opens the TAP of a device, and removes it again if the setup fails.

use crate::control::{self, Request};
use crate::interface;
use crate::run_dir::RunDir;
use kumi_command::BadInput;
use kumi_sys::tap::Tap;
use std::io::{ErrorKind, Read};
use std::time::Duration;

/// Refuses to start a second daemon for a device.
///
/// # Errors
/// A daemon of the device answers.
pub fn refuse_if_running(dir: &RunDir, name: &str) -> Result<(), BadInput> {
    match control::ask(&dir.socket(), &Request::Show) {
        Ok(_) => Err(BadInput(format!(
            "{name} is already up; run `kumi link down {name}` first, or `kumi link add {name} \
             LINK`"
        ))),
        Err(_) => Ok(()),
    }
}

/// Guard that removes a new device again if its setup fails.
#[derive(Debug)]
pub struct Created {
    device: Option<String>,
}

impl Created {
    /// Returns a guard for the device `name`. It does nothing if the device `existed` before.
    pub fn new(name: &str, existed: bool) -> Self {
        Self {
            device: (!existed).then(|| name.to_owned()),
        }
    }

    /// Keeps the device.
    pub fn keep(mut self) {
        self.device = None;
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = interface::remove(device);
        }
    }
}

/// Attempts to open a TAP that is in use, and the time between them. The kernel may not have
/// cleaned up a killed daemon yet, which also held BPF programs.
const ATTEMPTS: u32 = 10;
const RETRY: Duration = Duration::from_millis(30);

/// Opens the TAP `name`, with several attempts while it is in use.
///
/// # Errors
/// The kernel refuses. The message contains the remedy.
pub fn open_tap(name: &str, multi_queue: bool) -> anyhow::Result<Tap> {
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        match Tap::open(name, multi_queue) {
            Err(error) if attempts > 0 && error.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(RETRY);
            }
            outcome => {
                return outcome.map_err(|error| anyhow::anyhow!(refusal(name, &error)));
            }
        }
    }
}

/// Returns the message for the kernel's refusal to open the TAP `name`.
fn refusal(name: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            format!("cannot create {name}: no /dev/net/tun; run `modprobe tun`")
        }
        ErrorKind::PermissionDenied => {
            format!("creating {name} needs CAP_NET_ADMIN; run as root")
        }
        ErrorKind::ResourceBusy => {
            format!("{name} is in use by another process; choose another name")
        }
        ErrorKind::InvalidInput => format!(
            "{name} exists and is not a TAP device of kumi; choose another name or run `ip link del {name}`"
        ),
        _ => format!("cannot create {name}: {error}"),
    }
}

/// Returns a random number of the kernel.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn random_u64() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;

    #[test]
    fn tap__refused_by_the_kernel__is_named_with_the_remedy() {
        for (kind, message) in [
            (
                ErrorKind::NotFound,
                "cannot create kumi7: no /dev/net/tun; run `modprobe tun`",
            ),
            (
                ErrorKind::PermissionDenied,
                "creating kumi7 needs CAP_NET_ADMIN; run as root",
            ),
            (
                ErrorKind::ResourceBusy,
                "kumi7 is in use by another process; choose another name",
            ),
            (
                ErrorKind::InvalidInput,
                "kumi7 exists and is not a TAP device of kumi; choose another name or run `ip link \
                 del kumi7`",
            ),
            (ErrorKind::OutOfMemory, "cannot create kumi7: out of memory"),
        ] {
            assert_eq!(refusal("kumi7", &kind.into()), message);
        }
    }

    #[test]
    fn device__already_up__is_refused_with_the_remedy() {
        let folder = std::env::temp_dir().join(format!("kumi-tap-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = RunDir::in_folder(folder.clone(), "kumi7");
        refuse_if_running(&dir, "kumi7").unwrap();
        let control = Control::listen(&dir.socket()).unwrap();
        let daemon = std::thread::spawn(move || {
            loop {
                if let Some(call) = control.next_call() {
                    return call.answer.send("{}".to_owned()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let error = refuse_if_running(&dir, "kumi7").unwrap_err();
        assert_eq!(
            error.0,
            "kumi7 is already up; run `kumi link down kumi7` first, or `kumi link add kumi7 LINK`"
        );
        daemon.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
