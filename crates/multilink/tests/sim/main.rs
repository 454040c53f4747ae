//! The device's core in the lab's simulated network: seeded schedules of faults, and scenarios.
//!
//! ```text
//! programs ─frames─▶ Station { Endpoint, kernel queues } ─Ethernet─▶ kumi_lab::Sim ─▶ Station ─▶ Account
//! ```
//!
//! Every frame a core delivers is compared with what was sent ([`account`]); every turn of its loop
//! checks what it holds and for how long ([`station`]). 10 000 schedules:
//! `KUMI_SEEDS=10000 cargo test --release -p kumi-multilink --test sim seeds`; one:
//! `KUMI_SEED=n cargo test -p kumi-multilink --test sim seeds`.

mod account;
mod directed;
mod frames;
mod hostile;
mod mtu;
mod recable;
mod seeds;
mod station;
mod world;
