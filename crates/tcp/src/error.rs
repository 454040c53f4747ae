//! What can go wrong, in words that say what to do.

/// Why the programs are not in place, or not to be seen.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// Built without clang or libbpf's headers.
    #[error(
        "this build of kumi has no congestion control: install clang and libbpf-dev and build it again"
    )]
    NotCompiled,
    /// The kernel refuses the programs.
    #[error("the kernel refuses the congestion control: {reason}")]
    Refused {
        /// Its reason, a line.
        reason: String,
    },
    /// Not root.
    #[error("the congestion control needs CAP_BPF and CAP_NET_ADMIN: run as root")]
    NotPermitted,
    /// There already is one.
    #[error("the congestion control is installed already; `kumi tcp down` removes it")]
    Installed,
    /// There is none.
    #[error("no congestion control of kumi's is installed; `kumi tcp up` installs it")]
    Absent,
    /// The file system for pins.
    #[error("{doing}: {reason}; is a bpf file system at /sys/fs/bpf?")]
    Pin {
        /// What was tried.
        doing: String,
        /// The kernel's word.
        reason: String,
    },
}
