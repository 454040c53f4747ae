//! Errors of the kernel's execution of requests. Each says how to resolve it.

/// Reason for which the kernel does not execute requests.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The build had no clang or no libbpf headers.
    #[error(
        "this build of kumi has no program for the kernel: install clang and libbpf-dev and build it again"
    )]
    NotCompiled,
    /// The caller is not root.
    #[error("the program needs CAP_BPF and CAP_NET_ADMIN: run as root")]
    NotPermitted,
    /// The kernel refused the program.
    #[error(
        "the kernel refuses the program: {0}; it needs Linux 5.17, and is tested on 6.1 and 6.18"
    )]
    Refused(libbpf_rs::Error),
    /// A device does not exist.
    #[error("no device `{0}` in this network namespace; `ip link` lists them")]
    Device(String),
    /// An operation on a device failed.
    #[error("cannot attach the program to `{device}`: {error}")]
    Attach {
        /// Name of the device.
        device: String,
        /// Error of the kernel.
        error: libbpf_rs::Error,
    },
    /// A map operation failed.
    #[error("{what}: {error}")]
    Map {
        /// Operation that failed.
        what: &'static str,
        /// Error of the kernel.
        error: libbpf_rs::Error,
    },
    /// A request of a program that cannot be served.
    #[error("{0}")]
    Request(String),
}

/// Returns the error of loading.
pub fn refused(error: libbpf_rs::Error) -> PlacementError {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !nix::unistd::geteuid().is_root() => {
            PlacementError::NotPermitted
        }
        _ => PlacementError::Refused(error),
    }
}

/// Returns a function that makes the error of an operation on a map.
pub fn map(what: &'static str) -> impl Fn(libbpf_rs::Error) -> PlacementError {
    move |error| PlacementError::Map { what, error }
}
