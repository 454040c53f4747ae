//! Fuzz targets: functions of bytes that must not panic, whatever the bytes.
//!
//! Apart from their drivers, because two drive them: a seeded one on stable Rust, for everybody's
//! `make test`, and cargo-fuzz with coverage on nightly.
#![forbid(unsafe_code)]

pub mod mutate;
pub mod targets;
