//! The multilink protocol core.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod replay;
pub mod secure;
mod seq;
pub mod wire;
