//! Parts that all verbs of the `kumi` command share.
//!
//! [`output`] prints, [`interrupt`] handles signals, [`background`] starts a daemon, [`programs`]
//! finds external programs, and [`library`] finds libkumi.so. [`BadInput`] is the error for a
//! mistake of the user.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // `output` replaces both

pub mod background;
mod bad_input;
pub mod interrupt;
pub mod library;
pub mod output;
pub mod programs;

pub use bad_input::{BadInput, EXIT_BAD_INPUT};
