//! The lab: a cluster in a box, as one event model with two clocks.
#![forbid(unsafe_code)]

pub mod topology;

pub use topology::Topology;
