//! The congestion control of `kumi tcp` as a model, and paths to run it on, in virtual time.

#![forbid(unsafe_code)]

pub mod control;
mod known;
pub mod kumi;
pub mod rivals;
mod round;
pub mod simulation;
