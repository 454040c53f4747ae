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
        // Names that no device can have give the other two kinds.
        Some(ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput) => {
            not_running(device)
        }
        Some(_) => error.context(format!("cannot ask {device}")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer__each_reason__names_the_device_and_the_remedy() {
        let message = |kind: ErrorKind| {
            let error = no_answer("kumi7", std::io::Error::from(kind).into());
            (format!("{error:#}"), error.is::<BadInput>())
        };
        for (kind, text) in [
            (
                ErrorKind::PermissionDenied,
                "kumi7 is running, but only root may send it requests (permission denied); use \
                 sudo",
            ),
            (
                ErrorKind::ConnectionRefused,
                "the daemon of kumi7 ended without removing the device; start it again, or remove \
                 the device with `kumi link down kumi7`",
            ),
            (
                ErrorKind::ConnectionReset,
                "cannot ask kumi7: connection reset",
            ),
        ] {
            assert_eq!(message(kind), (text.to_owned(), false));
        }
        for kind in [ErrorKind::NotFound, ErrorKind::InvalidInput] {
            let (text, is_bad_input) = message(kind);
            let start = "no kumi device `kumi7` is running here; running: ";
            assert!(is_bad_input && text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn no_answer__refusal_of_the_device__is_passed_on() {
        let refusal = BadInput("`eth7` is not a link of kumi7".to_owned());
        let error = no_answer("kumi7", refusal.into());
        assert_eq!(error.to_string(), "`eth7` is not a link of kumi7");
        assert!(error.is::<BadInput>());
    }
}
