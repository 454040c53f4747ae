//! RI2N/DRV (Okamoto et al., 2008): the paper's protocol, and the daemon of a device that uses it.
//!
//! [`protocol`] is a core without I/O. The daemon connects it with a TAP and a raw socket per link.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `kumi_command::output` replaces both

mod daemon;
pub mod protocol;

pub use daemon::run;
