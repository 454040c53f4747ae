//! The multilink protocol core.
#![forbid(unsafe_code)]

pub mod frame;
pub mod handshake;
pub mod reorder;
pub mod replay;
mod salvage;
pub mod secure;
mod seq;
pub mod wire;
