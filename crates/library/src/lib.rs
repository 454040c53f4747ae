//! `libkumi.so`: planned collectives for C, MPI and Python.
//!
//! [`Ranks`] is the network as the ranks of a job see it, with a plan cache. [`Work`] executes one
//! rank plan and leaves the transport to its caller. [`group::Group`] also transports the bytes,
//! over TCP. [`shared_memory`] is memory that the ranks share, and
//! [`wind_ranks`] reaches them by Wind alone. `c` is the C interface of all.

#![deny(unsafe_code)]

mod c;
mod equal_blocks;
mod flow_log;
pub mod group;
mod rank_plan;
mod ranks;
mod request;
pub mod shared_memory;
pub mod wind_ranks;
mod work;

/// Release and digest of the planner's sources. Libraries with equal versions make equal plans.
pub const VERSION: &str = env!("KUMI_VERSION");

pub use equal_blocks::{EqualBlocks, OwnBytes};
pub use ranks::{Ranks, RanksError, network_digest};
pub use request::{Request, RequestedOperation, WorkError};
pub use work::{CallerStep, Work};
