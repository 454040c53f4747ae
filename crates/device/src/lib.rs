//! Runtime of a multilink device: the TAP, the links' sockets and the control socket around the
//! protocol core of `kumi-multilink`.
//!
//! ```text
//! config, check, key ─► daemon ─┬─► tap, interface, class    the host's side
//!                               ├─► daemon::port, ready      the links' side
//!                               └─► control, listeners       the administrator's side
//! states, why, metrics ─► control (of a running daemon)
//! ```
//!
//! `kumi-ri2n` uses the same parts for the protocol of RI2N/DRV.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `kumi_command::output` replaces both

pub mod check;
pub mod class;
pub mod config;
pub mod control;
mod daemon;
pub mod datapath;
pub mod interface;
mod join;
pub mod key;
pub mod listeners;
pub mod metrics;
pub mod ready;
pub mod run_dir;
pub mod states;
pub mod tap;
pub mod why;

pub use daemon::run;
