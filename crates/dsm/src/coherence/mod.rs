//! Home-based lazy release consistency with several writers of a page.
//!
//! ```text
//!   program ──► Member ── barrier, lock, unlock, an access to a closed page
//!                 ├─ Engine   who has written what (intervals), exchanges, locks: messages only
//!                 ├─ Pages    which pages are valid here, twins, diffs
//!                 └─ Fabric   messages, gets and puts between nodes: Wind, or a simulation
//! ```
//!
//! Each page has a home node, whose copy is always valid. Another node that accesses the page gets
//! a copy and keeps a second one, the twin. At a release, which is an unlock or the arrival at a
//! barrier, a node writes the bytes that differ from the twin to the home, and notes the page in an
//! interval. At an acquire, which is a lock or the end of a barrier, a node learns of the intervals
//! that happened before, and closes the pages in them. The next access gets them again.
//!
//! A program without data races sees what it would see on one machine. Nodes may write different
//! bytes of one page at the same time.

mod counts;
mod diffs;
mod error;
mod fabric;
mod holders;
mod member;
mod misses;
mod pages;
mod progress;
mod readers;
mod refreshes;
mod region;
mod replicas;
mod sharing;
mod steady;
mod subscriptions;
#[cfg(test)]
mod tests;
mod updates;

pub use counts::Counts;
pub use diffs::Diffs;
pub use error::DsmError;
pub use fabric::{EncodedDiff, Fabric, Memory, Update};
pub use member::{Member, Recovery};
pub use region::{Copies, PAGE_BYTES, Region, View, changes};
pub use sharing::{Notable, Sharing};
