//! Opens the TAP of a device, and removes it again if the setup fails.

use crate::control::{self, Request};
use crate::interface;
use crate::run_dir::RunDir;
use kumi_command::BadInput;
use kumi_sys::tap::Tap;
use std::io::{ErrorKind, Read};

/// Refuses to start a second daemon for a device.
///
/// # Errors
/// A daemon of the device answers.
pub fn refuse_if_running(dir: &RunDir, name: &str) -> Result<(), BadInput> {
    match control::ask(&dir.socket(), &Request::Show) {
        Ok(_) => Err(BadInput(format!(
            "{name} is already up; run `kumi link down {name}` first, or `kumi link add`"
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

/// Opens the TAP `name`.
///
/// # Errors
/// The kernel refuses. The message contains the remedy.
pub fn open_tap(name: &str, multi_queue: bool) -> anyhow::Result<Tap> {
    Tap::open(name, multi_queue).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("no /dev/net/tun; run `modprobe tun`"),
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!("creating {name} needs CAP_NET_ADMIN; run as root")
        }
        ErrorKind::ResourceBusy => {
            anyhow::anyhow!("{name} is in use by another process; choose another name")
        }
        ErrorKind::InvalidInput => anyhow::anyhow!(
            "{name} exists and is not a TAP device of kumi; choose another name or run `ip link del {name}`"
        ),
        _ => anyhow::anyhow!("cannot create {name}: {error}"),
    })
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
