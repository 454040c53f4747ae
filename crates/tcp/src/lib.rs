//! TCP that knows the program's phases: the BPF programs of `bpf/tcp`, loaded and controlled.
//!
//! Two papers patched Linux. Matsuda et al. ("TCP Layer Adapted to MPI Library") paced the restart after
//! a computation phase; Takano et al. ("The Analysis of TCP/IP Communication Behavior on Parallel
//! Applications") found that a full queue on the sender's own host is taken for congestion. Here both
//! are a congestion control named `kumi`, which an unmodified kernel loads and any program may choose:
//!
//! ```text
//!  kumi tcp up ─► install ─┬─ struct_ops `kumi`: CUBIC, a paced restart, stalls forgiven
//!                          └─ /sys/fs/bpf/kumi/tcp/: the link and the totals, pinned:
//!                             nobody has to stay
//! ```
//!
//! A connection keeps the congestion control it chose until it ends, whatever happens to the pins.
#![forbid(unsafe_code)]

mod error;
mod install;
mod layout;

pub use error::TcpError;
pub use install::{PIN_FOLDER, install, remove, totals};
pub use layout::{Settings, Totals};
