//! States of the devices that run in this network namespace.

use crate::control::{self, Request};
use crate::run_dir::{self, RunDir};
use kumi_command::BadInput;
use serde_json::Value;
use std::io::ErrorKind;

/// Returns the states of all devices of this namespace, and the errors of those that did not
/// answer. If `device` is given, returns the state of that device only, or its error.
pub fn states(device: Option<&str>) -> anyhow::Result<(Vec<Value>, Vec<anyhow::Error>)> {
    let names = match device {
        Some(name) => vec![name.to_owned()],
        None => run_dir::devices()?,
    };
    let (mut states, mut failures) = (Vec::new(), Vec::new());
    for name in &names {
        let socket = RunDir::of(name)?.socket();
        match control::ask(&socket, &Request::Show) {
            Ok(state) => states.push(state),
            Err(_) if device.is_none() && !socket.exists() => {} // just removed
            Err(error) if device.is_none() => failures.push(no_answer(name, error)),
            Err(error) => return Err(no_answer(name, error)),
        }
    }
    Ok((states, failures))
}

/// Returns the error for a device that does not answer. `error` is the error of the request.
pub fn no_answer(device: &str, error: anyhow::Error) -> anyhow::Error {
    let kind = error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind);
    match kind {
        Some(ErrorKind::PermissionDenied) => anyhow::anyhow!(
            "{device} is running, but only root may send it requests (permission denied); use sudo"
        ),
        Some(ErrorKind::ConnectionRefused) => anyhow::anyhow!(
            "the daemon of {device} ended without removing the device; start it again, \
             or remove the device with `kumi link down {device}`"
        ),
        Some(_) => not_running(device),
        None => error,
    }
}

/// Returns the error for a device that is not running.
pub fn not_running(device: &str) -> anyhow::Error {
    let running = run_dir::devices().unwrap_or_default();
    let names = if running.is_empty() {
        "none".to_owned()
    } else {
        running.join(", ")
    };
    BadInput(format!(
        "no kumi device `{device}` is running here; running: {names}"
    ))
    .into()
}
