//! Describes the physical network: hosts, switches, and the rate of each link in each direction.
//!
//! A [`Network`] is a tree. Hosts are its leaves and switches its inner nodes, as the
//! contention-free gather paper assumes (Yoshitomi and Taura, section 4.1). Ethernet's spanning
//! tree protocol makes a tree of any wiring.
//!
//! A network comes from a file ([`Network::read`]), from another program's configuration
//! ([`slurm`]), or from measurements between hosts ([`infer`]). [`compare`] lists the differences
//! of two networks. [`Paths`] answers the planners' queries: the directed links between two hosts,
//! the bottleneck rate and the latency.

#![forbid(unsafe_code)]

pub mod compare;
pub mod draw;
pub mod ethernet;
mod file;
pub mod infer;
pub mod learn;
pub mod mpich;
mod nearest;
mod network;
mod paths;
pub mod quantity;
mod ranks;
pub mod sides;
pub mod slurm;
pub mod source;
pub mod svg;
pub mod trips;

pub use nearest::nearest;
pub use network::{End, HOSTS_MAX, Host, Link, Network, SWITCHES_MAX, Switch};
pub use paths::{DirectedLink, Paths};
pub use quantity::{Delay, Rate};
pub use ranks::INSIDE_BYTES_PER_S;
pub use source::FileError;
