//! Reasons for which the kernel or libbpf refuses the programs.

use crate::error::TcpError;
use libbpf_rs::PrintLevel;
use std::sync::{Mutex, PoisonError};

/// Warnings of libbpf since [`watch`]. Its errors are numbers; the reason is in a warning.
static WARNINGS: Mutex<String> = Mutex::new(String::new());

/// Collects the warnings of libbpf from now on, and forgets earlier ones.
pub(crate) fn watch() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, note_warning)));
    WARNINGS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
}

fn note_warning(level: PrintLevel, text: String) {
    if level == PrintLevel::Warn {
        let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.push_str(&text);
    }
}

/// Returns the reason of the kernel or libbpf in one line: the verifier's last line, if there is
/// one.
fn reason(error: &libbpf_rs::Error) -> String {
    let warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lines = warnings
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let is_reason = |line: &&str| {
        !line.starts_with("libbpf: ") && !line.starts_with("processed ") && !line.starts_with("-- ")
            || line.starts_with("libbpf: extern")
            || line.starts_with("libbpf: struct_ops")
    };
    match lines.rfind(is_reason) {
        Some(line) => format!("{line} ({error})"),
        None => error.to_string(),
    }
}

/// Returns the error of a refused operation, with the reason in one line.
pub(crate) fn refusal(error: libbpf_rs::Error) -> TcpError {
    if error.kind() == libbpf_rs::ErrorKind::PermissionDenied && !nix::unistd::geteuid().is_root() {
        return TcpError::NotPermitted;
    }
    TcpError::Refused {
        reason: reason(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal__without_privilege__names_the_capabilities() {
        let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let message = refusal(error.into()).to_string();
        match nix::unistd::geteuid().is_root() {
            // Root has the capabilities, so the reason is another one.
            true => assert!(
                message.starts_with("the kernel refuses the TCP programs: "),
                "{message}"
            ),
            false => assert_eq!(
                message,
                "the TCP programs need CAP_BPF and CAP_NET_ADMIN: run as root"
            ),
        }
    }
}
