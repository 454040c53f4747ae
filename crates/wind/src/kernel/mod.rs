//! Execution of requests in the kernel: the interface between a program and the daemon of
//! `kumi wind up`.
//!
//! ```text
//!   program ── socket ──► daemon ── bpf(2) ──► maps of the BPF program at the device
//!      ▲                     │
//!      └── memory of regions and slots (descriptors of BPF arrays, mapped by the program)
//! ```
//!
//! The daemon (`crates/placement`) has the privilege. A program needs none.

mod client;
mod messages;

pub use client::{Client, KernelWindow, ask, open_socket};
pub use messages::{MESSAGE_BYTES_MAX, Open, Reply, Request, SOCKET, WINDOW_BYTES};

/// Regions with this bit in their number have memory that the kernel accesses.
pub const KERNEL_REGION: u32 = 1 << 31;
