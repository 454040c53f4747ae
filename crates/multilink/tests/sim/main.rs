//! The device's core in the lab's simulated network, under seeded schedules of faults and in fixed
//! scenarios.
//!
//! ```text
//! programs ─frames─▶ Station { Endpoint, kernel queues } ─Ethernet─▶ kumi_lab::Sim ─┐
//!                 Account ◀─frames─ Station { Endpoint, kernel queues } ◀─Ethernet──┘
//! ```
//!
//! Every frame that a core delivers is compared with the frame that was sent ([`account`]). Every
//! turn of a core's loop checks the memory that it takes and the time for which it holds frames
//! ([`station`]). These commands run 10 000 schedules, or the one of seed *n*:
//!
//! ```text
//! KUMI_SEEDS=10000 cargo test --release -p kumi-multilink --test sim seeds
//! KUMI_SEED=n cargo test -p kumi-multilink --test sim seeds
//! ```

mod account;
mod directed;
mod frames;
mod hostile;
mod mtu;
mod recable;
mod seeds;
mod station;
mod world;
