//! Execution of Wind requests in the kernel: loads the program of `bpf/wind`, attaches it to
//! devices, and serves the programs of this host.
//!
//! - [`Program`] is the loaded program with its maps.
//! - [`Service`] is the daemon: it creates regions and opens sessions for programs.
#![forbid(unsafe_code)]

mod attach;
pub mod command;
mod error;
mod intf;
mod owners;
mod program;
mod service;

pub use attach::{attach, detach, is_attached};
pub use error::PlacementError;
pub use intf::{Name, Region, Session};
pub use program::Program;
pub use service::Service;
