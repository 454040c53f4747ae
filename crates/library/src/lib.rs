//! `libkumi.so`: planned collectives for C, MPI and Python.
//!
//! [`Ranks`] is the network as a job's ranks see it, with plans kept; [`Work`] is one rank's part of one collective.
//! `c.rs` is their C interface, declared in `bindings/c/kumi_coll.h`.

mod c;
mod ranks;
mod work;

pub use ranks::{Ranks, RanksError};
pub use work::{Asked, AskedOperation, Named, Work, WorkError};
