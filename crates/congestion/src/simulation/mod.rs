//! Connections over a bottleneck, packet by packet.

pub mod path;
pub mod sender;
mod stolen;
pub mod world;
