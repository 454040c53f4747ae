//! Protocol core of the multilink device: one virtual Ethernet device over several member links.
//!
//! The design follows RI2N/DRV (Okamoto et al., 2008) and extends it. `kumi-ri2n` holds the
//! protocol of the paper. The core does no I/O: the time, datagrams, frames and the kernel's queue
//! lengths are arguments.
//!
//! ```text
//! frame ─► flow, stripe ─► retain, ledger ─► session ─► transmit ─► datagrams
//!             ▲ capacity, liveness   ▲ reports            (one queue per link)
//! frame ◄─ salvage ◄─ reorder ◄─ arrivals, replay ◄─ session ◄──── datagrams
//! ```
//!
//! A frame is cut into equal units, and a datagram carries one unit.
//!
//! Start with [`endpoint`], which is the device. `peer` is another daemon, `path` is a link towards
//! it, [`liveness`] has the states of a path. [`wire`] has every format (`docs/spec/multilink.md`).
#![forbid(unsafe_code)]

mod arrivals;
mod best;
mod bottleneck;
mod capacity;
mod coalesce;
mod direct;
pub mod endpoint;
mod event;
mod flow;
pub mod frame;
pub mod handshake;
mod headers;
pub mod lane;
mod ledger;
mod link;
pub mod liveness;
mod loss;
pub mod noise_cipher;
mod partner;
mod path;
mod peer;
mod pmtu;
pub mod pressure;
pub mod reorder;
mod replay;
mod retain;
mod rtt;
mod salvage;
mod scatter;
pub mod secure;
pub mod seq;
mod session;
mod stripe;
pub mod transmit;
pub mod view;
pub mod wire;
