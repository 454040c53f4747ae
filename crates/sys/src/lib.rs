//! Every ioctl, memory map, netlink message and raw socket of Kumihimo.
//!
//! This is the only crate that may say `unsafe`; each use carries its `// SAFETY:`.

pub mod netns;
pub mod packet;
pub mod punctual;
