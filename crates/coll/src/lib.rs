//! Plans collectives in which no two messages collide in a port (contention-free gather, Yoshitomi
//! and Taura).
//!
//! A planner is a pure function from a network, an operation and its sizes to a [`Plan`]: the
//! transfers, their blocks and their predecessors. [`check()`] proves that a plan performs the
//! operation, and that its messages never exceed a directed link's capacity. The proof needs no
//! clock, so it holds for any timing.
//!
//! ```text
//!   Network ──► planner ──► Plan ──► check: performs the operation, no port overflows
//!                            │
//!                            └─────► Program of one host ──► Engine ──► MPI, TCP
//! ```

#![forbid(unsafe_code)]

mod bound;
mod busiest;
mod chain;
mod check;
mod engine;
mod exchange;
mod gather;
mod grain;
mod halves;
mod hierarchical;
mod lanes;
mod list_schedule;
mod narrow;
mod plan;
mod program;
mod ring;
mod schedule;
mod short;
mod sites;
mod tree;
mod uniform;
mod vector;

pub use bound::{bound_s, latency_bound_s};
pub use chain::{broadcast, reduce};
pub use check::{CheckError, check};
pub use engine::Engine;
pub use exchange::{all_to_all, gather_by_turns, scatter};
pub use gather::gather;
pub use grain::Grain;
pub use plan::{After, Blocks, Handed, Operation, PORT_BYTES, Plan, PlanError, Transfer, Until};
pub use program::{Action, Program, Step};
pub use ring::{all_gather, all_reduce, reduce_scatter};
pub use schedule::is_far;
pub use uniform::uniform;
pub use vector::Vector;
