//! The network that is really there: hosts, switches, and what each link carries each way.
//!
//! A [`Network`] is a tree: hosts are its leaves, switches what is between, as Yoshitomi and Taura (section
//! 4.1) assume and as Ethernet's spanning tree makes of any wiring. It comes from a file
//! ([`Network::read`]), from what others keep ([`slurm`]), or from measurements between hosts ([`infer`]); [`compare`] says where
//! two of these differ. [`Paths`] answers what planners ask: which directed links lie between two hosts, how fast the slowest is,
//! and how far they are apart.

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
