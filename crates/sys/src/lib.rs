//! Every ioctl, memory map, netlink message and raw socket of Kumihimo.
//!
//! This crate holds the `unsafe` code of the system interface. Each use has a `// SAFETY:` comment.

pub mod bpf;
pub mod compare;
pub mod datagrams;
pub mod faults;
pub mod fork;
pub mod netlink;
pub mod netns;
pub mod packet;
pub mod process;
pub mod punctual;
pub mod raw_ethernet;
pub mod shared_memory;
pub mod speed;
pub mod tap;
pub mod tcp;
pub mod termination;
pub mod tracked_memory;
pub mod udp;
