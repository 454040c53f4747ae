//! Fuzz targets: functions of bytes that must not panic. Parsers read the bytes. For a state
//! machine they are [`choices`] of operations.
//!
//! The targets are separate from their two drivers: a seeded one on stable Rust, for `make test`,
//! and cargo-fuzz with coverage on nightly.
#![forbid(unsafe_code)]

pub mod choices;
mod endpoint;
mod frames;
mod messages;
pub mod mutate;
mod reorder;
mod ri2n;
mod shared_memory;
pub mod targets;
mod wind;
