//! Nodes on a simulated network, against an oracle that has one memory.

mod programs;
mod world;
