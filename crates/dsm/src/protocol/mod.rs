//! The protocol between nodes: no clock, socket or thread. Messages are arguments and results.
//!
//! ```text
//!   Engine ── who has written what
//!     ├─ intervals   pages written between two releases, and vector clocks
//!     ├─ exchange    barriers and other calls of all nodes, over a tree
//!     ├─ subscribers who reads a page after each barrier
//!     ├─ agreement   which nodes are lost
//!     └─ locks       queues that pass on from node to node
//! ```

mod agreement;
mod engine;
mod error;
mod exchange;
mod intervals;
mod locks;
mod placement;
pub(crate) mod spans;
mod subscribers;
mod wire;

pub use engine::{BarrierEnd, Engine};
pub use error::{Malformed, Mismatch, Violation};
pub use intervals::Written;
pub use placement::{Placement, Updates};
pub use spans::Span;
pub use subscribers::Subscribers;
pub use wire::{Call, PageRuns, Report, Standing, UpdateWay};
