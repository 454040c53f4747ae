//! `libkumi.so`: planned collectives for C, MPI and Python.
//!
//! [`Ranks`] is the network as a job's ranks see it, with plans kept; [`Work`] is one rank's part of one collective,
//! whoever moves its bytes; [`group::Group`] moves them itself, over TCP. `c` is the C interface of all three.

#![deny(unsafe_code)]

mod c;
pub mod group;
mod like;
mod ranks;
mod seen;
mod work;

/// The release and a digest of the sources that decide on plans: libraries of which it is equal plan alike.
pub const VERSION: &str = env!("KUMI_VERSION");

pub use like::{Like, OwnBytes};
pub use ranks::{Ranks, RanksError, network_digest};
pub use work::{Asked, AskedOperation, Named, Work, WorkError};
