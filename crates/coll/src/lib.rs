//! Collectives that no two messages collide in (Yoshitomi and Taura).
//!
//! A planner is a pure function: a network, an operation and its sizes to a [`Plan`], who sends which blocks to
//! whom, and after what. [`check()`] proves of any plan that it computes the operation, and that no
//! two of its messages ever meet on a directed link: neither needs a clock, so neither depends on one.
//!
//! ```text
//!   Network ──► planner ──► Plan ──► check: computes it, nothing collides
//!                            │
//!                            └─────► executors, and predictions
//! ```

#![forbid(unsafe_code)]

mod bound;
mod check;
mod gather;
mod plan;

pub use bound::bound_s;
pub use check::{CheckError, check};
pub use gather::{PlanError, gather};
pub use plan::{Blocks, Operation, Plan, Transfer};
