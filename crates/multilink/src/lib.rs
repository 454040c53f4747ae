//! The multilink protocol core.
#![forbid(unsafe_code)]

mod arrivals;
mod capacity;
pub mod endpoint;
mod flow;
pub mod frame;
pub mod handshake;
mod ledger;
pub mod liveness;
mod path;
mod peer;
pub mod pressure;
pub mod reorder;
mod replay;
mod retain;
pub mod ri2n;
mod salvage;
pub mod secure;
mod seq;
mod session;
mod stripe;
pub mod transmit;
pub mod view;
pub mod wire;
