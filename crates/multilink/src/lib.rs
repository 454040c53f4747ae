//! The multilink protocol core: one virtual Ethernet device braided from several links.
//!
//! It follows RI2N/DRV (Okamoto et al., 2008), whose own protocol is kept in [`ri2n`], and goes beyond
//! it. Sans-IO: the time, datagrams, frames and what the kernel says of its queues are arguments.
//!
//! ```text
//! frame ─► flow, stripe ─► retain, ledger ─► session ─► transmit ─► datagrams
//!             ▲ capacity, liveness   ▲ reports            (one queue a link)
//! frame ◄─ salvage ◄─ reorder ◄─ arrivals, replay ◄─ session ◄──── datagrams
//! ```
//!
//! Read [`endpoint`] first: it is the device. `peer` is one other node, `path` one link towards it,
//! [`liveness`] has the states of a path, [`wire`] every layout (`docs/spec/multilink.md`).
#![forbid(unsafe_code)]

mod arrivals;
mod best;
mod bottleneck;
mod capacity;
pub mod endpoint;
mod flow;
pub mod frame;
mod gather;
pub mod handshake;
mod headers;
pub mod lane;
mod ledger;

pub mod liveness;
mod partner;
mod path;
mod peer;
mod pmtu;
pub mod pressure;
pub mod reorder;
mod replay;
mod retain;
pub mod ri2n;
mod salvage;
mod scatter;
pub mod secure;
mod seq;
mod session;
mod stripe;
pub mod transmit;
pub mod view;
pub mod wire;
