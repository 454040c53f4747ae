//! The protocol: no clock, socket or thread. Time is an argument, datagrams and events are results.
//!
//! ```text
//!   Endpoint ── one session per peer ──► Session
//!                                          ├─ outbox      messages and operations of this side
//!                                          ├─ inbox       messages of the peer: reassembly, order
//!                                          ├─ operations  executed for the peer, each once
//!                                          ├─ requests    operations that kernels execute
//!                                          ├─ recovery    packets in flight, loss by time, probes
//!                                          └─ window      congestion: delay and loss
//!   Endpoint ── credit of all peers ────► Budget, Pressure
//! ```
//!
//! `docs/spec/wind.md` is the specification of the format and of the rules.

mod credit;
pub mod diff;
mod endpoint;
mod handshake;
mod inbox;
mod loss_floor;
mod memory;
mod model;
mod operations;
mod outbox;
mod outgoing;
mod path_mtu;
mod pressure;
mod ranges;
mod recovery;
mod requests;
mod rtt;
mod sequence;
mod session;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod window;
pub mod wire;

pub use endpoint::{
    Config, Endpoint, Event, Lost, MessageId, Multicast, PathStatus, PeerId, Rejected, RequestKeys,
    Rung, Status, Waiting,
};
pub use handshake::Secret;
pub use inbox::{Delivery, Violation};
pub use kumi_multilink::secure::Seal;
pub use model::{
    Atomic, Class, Mode, Operation, Place, Refused, RegionKey, Regions, check_place, place_bytes,
};
pub use outgoing::Message;
pub use recovery::Counts;
pub use requests::slots::{
    Outcome, SLOT_WORDS, SLOTS, SlotMemory, execute as execute_request, respond,
};
pub(crate) use rtt::Rtt;
pub use session::Unusable;
pub(crate) use window::Window;
