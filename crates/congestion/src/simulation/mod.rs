//! Connections over a bottleneck, packet by packet.

pub mod path;
pub mod sender;
pub mod world;
