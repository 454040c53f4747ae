//! Errors of the kernel's data path.

/// Reason for which the kernel does not carry frames.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The build had no clang or no libbpf headers.
    #[error(
        "this build of kumi has no programs for the kernel: install clang and libbpf-dev and build it again"
    )]
    NotCompiled,
    /// The kernel refused the programs.
    #[error("the kernel refuses the programs: {0}; they need Linux 5.12")]
    Refused(libbpf_rs::Error),
    /// A killed daemon of another version left its maps.
    #[error("the running programs are of another version of kumi")]
    OtherVersion,
    /// An interface does not take a program.
    #[error("cannot attach a program to `{interface}`: {error}")]
    Attach {
        /// Name of the interface.
        interface: String,
        /// Error of the kernel.
        error: libbpf_rs::Error,
    },
    /// The socket for questions cannot be opened.
    #[error("cannot open a packet socket to ask the peers' kernels: {0}")]
    Questions(std::io::Error),
    /// The length of the device's bursts cannot be set.
    #[error("cannot fit the device's bursts to its links: {0}")]
    Bursts(std::io::Error),
    /// A map operation failed.
    #[error("cannot {what}: {error}")]
    Map {
        /// Operation that failed.
        what: &'static str,
        /// Error of the kernel.
        error: libbpf_rs::Error,
    },
}
