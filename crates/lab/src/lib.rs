//! The lab: a cluster in a box, as one event model with two clocks.
//!
//! The papers measured on switches, NICs and a hardware network emulator (GNET-1, GtrcNET-1) that
//! nobody has to hand. Here a [`Topology`] file describes such a test bed, and it runs
//!
//! - in virtual time, under a seed: [`Sim`] with a [`Node`] a host, for the protocol cores' tests;
//! - in real time: [`Cluster`], hosts as namespaces in which unmodified programs run by name.
//!
//! ```text
//!   topology.toml ──► Topology ─┬─► Model + virtual clock ............ Sim
//!                               └─► Cluster ─┬─ veth + TBF + bridge .. kernel fabric (rate, queue,
//!                                            │                         loss by BPF)
//!                                            └─ Model + real clock ... emulator (delay, faults)
//! ```
//!
//! What is *not* modelled: collisions and half duplex, pause frames, priorities (802.1p), link
//! aggregation, spanning tree, cut-through forwarding, and a receiving host that is too slow.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod cpu_latency;
pub mod emulator;
pub mod model;
pub mod sim;
pub mod topology;

pub use cluster::{Cluster, ClusterError, UpOptions};
pub use cpu_latency::CpuLatency;
pub use sim::{Node, Sim};
pub use topology::{Direction, Faults, LinkChange, Topology, TopologyError};
