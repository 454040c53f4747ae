//! Fuzz targets: functions of bytes that must not panic, whatever the bytes. Parsers read the bytes;
//! for a state machine they are [`choices`] of operations.
//!
//! Apart from their drivers, because two drive them: a seeded one on stable Rust, for everybody's
//! `make test`, and cargo-fuzz with coverage on nightly.
#![forbid(unsafe_code)]

pub mod choices;
mod endpoint;
mod frames;
mod messages;
pub mod mutate;
mod reorder;
mod ri2n;
pub mod targets;
