//! Why a cluster in a box could not be made or changed: one sentence, and what mends it.

use std::path::PathBuf;

/// A cluster in a box could not be made, found or changed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kernel refused the namespaces.
    #[error(
        "hosts need namespaces, which the kernel refused ({reason}); run it as root, or inside `unshare -Urn`"
    )]
    NoPrivilege {
        /// What was refused.
        reason: String,
    },
    /// A program that builds the network is not installed.
    #[error("`{program}` is not installed; run `apt-get install {package}`")]
    NoProgram {
        /// The program.
        program: String,
        /// The Debian and Ubuntu package that has it.
        package: &'static str,
    },
    /// A lab of that name is up.
    #[error(
        "a lab named `{name}` is already up; run `kumi lab down {name}` first, or give `--replace` or another `--name`"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No lab is up at all.
    #[error("no lab is up; run `kumi lab up FILE.toml`, or `kumi lab up two-links`")]
    NoneUp,
    /// Several labs are up, and none was named.
    #[error("several labs are up; name one of {names} (with --lab, or after `down`)")]
    SeveralUp {
        /// Their names.
        names: String,
    },
    /// No lab of that name is up.
    #[error("no lab named `{name}` is up{hint}; run `kumi lab ls`, or `kumi lab up FILE.toml`")]
    NoSuchLab {
        /// The name.
        name: String,
        /// The nearest name that is, in words.
        hint: String,
    },
    /// The lab has no such host.
    #[error("the lab has no host `{host}`; its hosts are {known}")]
    NoSuchHost {
        /// The host that was asked for.
        host: String,
        /// The hosts it has.
        known: String,
    },
    /// The lab has no such NIC.
    #[error("the lab has no NIC `{nic}`; its NICs are {known}")]
    NoSuchNic {
        /// The NIC that was asked for.
        nic: String,
        /// The NICs it has.
        known: String,
    },
    /// A tool of the kernel's network refused a command.
    #[error("in {place}: `{command}` failed: {message}")]
    Refused {
        /// Which namespace.
        place: String,
        /// The command, or the batch's first line.
        command: String,
        /// What it said.
        message: String,
    },
    /// This fabric cannot do what was asked.
    #[error("{what}; {mend}")]
    Unsupported {
        /// What was asked.
        what: String,
        /// What to do instead.
        mend: String,
    },
    /// A file, a socket or a process failed.
    #[error("{doing}: {reason}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed. Not named `source`: whoever prints the chain would print it twice.
        reason: std::io::Error,
    },
    /// No directory for the lab's files.
    #[error("{path} cannot be made: {reason}; run it as root, or set XDG_RUNTIME_DIR to a directory of yours", path = path.display())]
    NoRunDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
}

impl ClusterError {
    /// Wraps an I/O error with what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |reason| Self::Io { doing, reason }
    }
}
