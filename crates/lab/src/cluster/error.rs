//! Errors of creating, finding or changing a lab: one sentence with the remedy.

use std::path::PathBuf;

/// Error of creating, finding or changing a lab.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kernel refused the namespaces.
    #[error(
        "hosts need namespaces, which the kernel refused ({reason}); run it as root, or inside `unshare -Urn`"
    )]
    NoPrivilege {
        /// Error message of the refused operation.
        reason: String,
    },
    /// A program that builds the network is not installed.
    #[error("`{program}` is not installed; run `apt-get install {package}`")]
    NoProgram {
        /// Name of the program.
        program: String,
        /// Debian and Ubuntu package that contains the program.
        package: &'static str,
    },
    /// A lab with this name is already up.
    #[error(
        "a lab named `{name}` is already up; run `kumi lab down {name}` first, or give `--replace` or another `--name`"
    )]
    NameTaken {
        /// Name of the lab.
        name: String,
    },
    /// No lab is up.
    #[error("no lab is up; run `kumi lab up FILE.toml`, or `kumi lab up two-links`")]
    NoneUp,
    /// Several labs are up, and the request names none of them.
    #[error("several labs are up; name one of {names} (with --lab, or after `down`)")]
    SeveralUp {
        /// Names of the labs that are up.
        names: String,
    },
    /// No lab with this name is up.
    #[error("no lab named `{name}` is up{hint}; run `kumi lab ls`, or `kumi lab up FILE.toml`")]
    NoSuchLab {
        /// Requested name.
        name: String,
        /// Suggestion of the nearest name that is up, or all names that are up, or empty.
        hint: String,
    },
    /// The lab has no such host.
    #[error("the lab has no host `{host}`; its hosts are {known}")]
    NoSuchHost {
        /// Requested host.
        host: String,
        /// Hosts of the lab.
        known: String,
    },
    /// The lab has no such link.
    #[error("the lab has no link `{link}`; expected one of {known}")]
    NoSuchLink {
        /// Requested link.
        link: String,
        /// Names of the lab's links.
        known: String,
    },
    /// The lab has no such NIC.
    #[error("the lab has no NIC `{nic}`; its NICs are {known}")]
    NoSuchNic {
        /// Requested NIC.
        nic: String,
        /// NICs of the lab.
        known: String,
    },
    /// A command that configures the network failed.
    #[error("in {place}: `{command}` failed: {message}")]
    Refused {
        /// Host or fabric in whose namespaces the command ran.
        place: String,
        /// The command. If the failed line of a batch is unknown, it is the batch's first line.
        command: String,
        /// Error message of the command.
        message: String,
    },
    /// The fabric or the lab's owner does not support the request.
    #[error("{reason}; {remedy}")]
    Unsupported {
        /// Reason why the request is not supported.
        reason: String,
        /// Alternative for the user.
        remedy: String,
    },
    /// An operation on a file, a socket or a process failed.
    #[error("{operation}: {reason}")]
    Io {
        /// Operation that failed.
        operation: String,
        /// Cause of the failure. The field is not named `source`, because a printed error chain
        /// would then show it twice.
        reason: std::io::Error,
    },
    /// The directory for the lab's files cannot be created.
    #[error("cannot create {path}: {reason}; run it as root, or set XDG_RUNTIME_DIR to your own directory", path = path.display())]
    NoRunDir {
        /// Path of the directory.
        path: PathBuf,
        /// Cause of the failure.
        reason: std::io::Error,
    },
}

impl ClusterError {
    /// Wraps an I/O error with a description of the operation that failed.
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let operation = operation.into();
        move |reason| Self::Io { operation, reason }
    }
}
