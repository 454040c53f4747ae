//! Wind: reliable datagrams with an ordering class for each message, and one-sided operations on
//! the memory of a peer (Wind, Hayashi et al.).
//!
//! - A message is ordered, unordered or synchronous ([`Class`]). An ordered one is delivered after
//!   every earlier message to the peer, and the sender never waits for that.
//! - Its data goes to the program or directly to a region of its memory, as it is or as a diff
//!   ([`Mode`]).
//! - [`Operation`]s write, read and change a region of the peer, each exactly once, without the
//!   peer's program.

#![forbid(unsafe_code)]

pub mod node;
pub mod perf;
pub mod protocol;

pub use node::{Node, Received, Region, WindError, random_epoch};
pub use protocol::{
    Atomic, Class, Config, Delivery, Lost, Message, MessageId, Mode, Operation, PeerId, Place,
    Refused, RegionKey, Rejected, Seal, Secret, diff,
};
