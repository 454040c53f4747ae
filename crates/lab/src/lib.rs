//! The lab: a cluster in a box, as one event model with two clocks.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod emulator;
pub mod model;
pub mod sim;
pub mod topology;

pub use cluster::{Cluster, ClusterError, UpOptions};
pub use sim::{Node, Sim};
pub use topology::Topology;
