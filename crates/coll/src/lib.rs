//! Plans collectives in which no two messages collide in a port (contention-free gather, Yoshitomi
//! and Taura).
//!
//! A planner is a pure function from a network, an operation and its sizes to a [`Plan`]: the
//! transfers, their blocks and their predecessors. [`check()`] proves that a plan performs the
//! operation, and that its transfers fit every directed link and port. The proof uses no clock.
//! `check.rs` states the invariant and its assumptions.
//!
//! ```text
//!   Network ──► planner ──► Plan ──► check: performs the operation, no port overflows
//!                            │
//!                            └─────► Program of one host ──► Engine ──► MPI, TCP
//! ```
//!
//! # Planner
//!
//! ```text
//!   N      hosts
//!   t, u   transfers
//!   ℓ      a directed link, or a host's duplex limit
//!   b(t)   bytes of t
//!   r(t)   bottleneck rate of t's path, in bytes per second
//!   C(ℓ)   rate of ℓ, in bytes per second
//! ```
//!
//! 1. *Host order.* A walk from the root, or from host 0, orders the hosts. It crosses each link at
//!    most once in each direction ([`kumi_topo::Paths::tour`]).
//! 2. *Candidates.* Each candidate is a set of transfers with an order in which they start:
//!
//!    ```text
//!    gather             each host in turn, or the paper's tree, by the caller's choice
//!    scatter            each host in turn
//!    all-to-all         a ring in N − 1 steps; the busiest links first
//!    broadcast, reduce  a chain; trees; exchanges between halves of the hosts
//!    all-gather,        a ring; by sites; exchanges between halves, or for tiny blocks directly
//!    reduce-scatter
//!    all-reduce         a ring; by sites; trees; exchanges between halves
//!    ```
//!
//!    `exchange.rs`, `busiest.rs`, `gather.rs`, `chain.rs`, `ring.rs`, `hierarchical.rs`,
//!    `tree.rs`, `halves.rs` and `short.rs` make them, and state the sizes for which they do.
//! 3. *List scheduling* (`list_schedule.rs`) orders the transfers of a plan by sites. If several
//!    can start, the one with the smallest key does. The key is the slice of the vector, then
//!    −L(t):
//!
//!    ```text
//!    L(t) = b(t) / r(t) + max L(u) over all u that send on the data of t
//!    ```
//!
//! 4. *Capacity shares* (`shares.rs`). On each link ℓ of its path, t takes free capacity, and then
//!    shares q of earlier transfers:
//!
//!    ```text
//!    0.95 · r(t)  ≤  capacity that t takes  ≤  r(t),      Σ q over ℓ + free capacity = C(ℓ)
//!    ```
//!
//! 5. *Early start bytes* (`schedule.rs`). A transfer that takes over a share q from a transfer P
//!    waits until at most m bytes of P are missing at P's receiver:
//!
//!    ```text
//!    m = q / C(ℓ) · (S + min(F, M))
//!    ```
//!
//!    S is the payload of P that may stand in the port in front of ℓ. F is the payload that ℓ
//!    carries until the next sender's first byte arrives, and M the most of it that counts.
//!    `schedule.rs` gives their values, and the formulas for short transfers and for several sites.
//! 6. *Choice.* The candidate with the least predicted time is used, with few exceptions that the
//!    modules state. The time of exchanges between halves is multiplied by 1.25 (ADR 034). A ring
//!    is not made if its hops alone take longer than the best plan of `short.rs`.
//!
//! Two kinds of plans do not use capacity shares. In a chain, each link has at most one transfer,
//! so a transfer waits only for its data. In the paper's gather, the transfers to one host follow
//! each other.

#![forbid(unsafe_code)]

mod bound;
mod busiest;
mod chain;
mod check;
mod distance;
mod early;
mod engine;
mod exchange;
mod fair_share;
mod gather;
mod grain;
mod halves;
mod hierarchical;
mod list_schedule;
mod narrow;
mod plan;
mod program;
mod ring;
mod schedule;
mod sending_order;
mod shares;
mod short;
mod sites;
mod tree;
mod uniform;
mod vector;

pub use bound::{bound_s, latency_bound_s};
pub use chain::{broadcast, reduce};
pub use check::{CheckError, check};
pub use distance::is_multi_site;
pub use engine::Engine;
pub use exchange::{all_to_all, gather_by_turns, scatter};
pub use fair_share::FairShare;
pub use gather::gather;
pub use grain::Grain;
pub use plan::{After, Blocks, Handed, Operation, PORT_BYTES, Plan, PlanError, Progress, Transfer};
pub use program::{Action, Program, Step};
pub use ring::{all_gather, all_reduce, reduce_scatter};
pub use sending_order::sending_order;
pub use uniform::uniform;
pub use vector::Vector;
