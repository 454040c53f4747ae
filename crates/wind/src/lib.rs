//! Wind: reliable datagrams with an ordering class for each message, and one-sided operations on
//! the memory of a peer (Wind, Hayashi et al.).
//!
//! - A message is ordered, unordered or synchronous ([`Class`]). An ordered one is delivered after
//!   every earlier message to the peer, and the sender never waits for that.
//! - Its data goes to the program or directly to a region of its memory, as it is or as a diff
//!   ([`Mode`]).
//! - [`Operation`]s write, read and change a region of the peer, each exactly once, without the
//!   peer's program.

//!
//! ```
//! use kumi_wind::{Atomic, Class, Config, Node, random_epoch};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let secret = [7; 32]; // the same in all processes of the job
//! let server = Node::bind("127.0.0.1:0".parse()?, Config::new(secret, random_epoch()?))?;
//! let counter = server.register(4096)?;
//!
//! let client = Node::bind("127.0.0.1:0".parse()?, Config::new(secret, random_epoch()?))?;
//! let peer = client.connect(server.local_address()?)?;
//! client.send_bytes(peer, Class::Ordered, *b"hello")?;
//! let received = server.receive(Some(Duration::from_secs(5))).expect("a message");
//! assert_eq!(received.message.data, b"hello");
//!
//! assert_eq!(client.atomic(peer, counter.place(0), Atomic::FetchAdd(1))?, 0);
//! client.put(peer, counter.place(8), b"written without a call of the server")?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod kernel;
pub mod node;
pub mod perf;
pub mod protocol;

pub use node::{LocalMemory, Node, Received, Region, Transfer, WindError, random_epoch};
pub use protocol::{
    Atomic, Class, Config, Delivery, Lost, Message, MessageId, Mode, Multicast, Operation, PeerId,
    Place, Refused, RegionKey, Rejected, Rung, Seal, Secret, Waiting, diff,
};
