//! The lab: test beds described by a [`Topology`] file, run by one event model with two clocks.
//!
//! The papers measured on switches, NICs and a hardware network emulator (GNET-1, GtrcNET-1). These
//! are not generally available. Here a topology file describes such a test bed, and it runs
//!
//! - in virtual time, from a seed: [`Sim`] with one [`Node`] per host, for tests of protocol cores;
//! - in real time: [`Cluster`], whose hosts are namespaces. Unmodified programs run in them and
//!   reach other hosts by name.
//!
//! ```text
//!   topology.toml ──► Topology ─┬─► Model + virtual clock ............ Sim
//!                               └─► Cluster ─┬─ veth + TBF + bridge .. kernel fabric (rate, queue,
//!                                            │                         loss by BPF)
//!                                            └─ Model + real clock ... emulator (delay, faults)
//! ```
//!
//! *Not* modelled: collisions and half duplex, pause frames, priorities (802.1p), link aggregation,
//! spanning tree, cut-through forwarding, and a receiving host that is too slow.
#![forbid(unsafe_code)]

pub mod carried;
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
