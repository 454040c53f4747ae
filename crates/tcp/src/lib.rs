//! TCP that knows the program's phases: the BPF programs of `bpf/tcp`, loaded and controlled.
//!
//! Two papers patched Linux. Matsuda et al. ("TCP Layer Adapted to MPI Library") paced the restart after
//! a computation phase, shortened the retransmission timeout and kept parameters per phase; Takano et al.
//! ("The Analysis of TCP/IP Communication Behavior on Parallel Applications") found that a full queue on
//! the sender's own host is taken for congestion, and that it holds acknowledgements back. Here all of
//! it is done by programs that an unmodified kernel loads:
//!
//! ```text
//!  install ─┬─ struct_ops `kumi`   CUBIC, a paced restart, phases, stalls forgiven, short timeouts
//!           ├─ cgroup programs     pinned; Rank::join attaches them where the process is
//!           └─ iterators           connections() shows, remove() gives back
//!
//!  Rank::join(pid) ─► the process's sockets get `kumi` when they connect or accept;
//!                     its page says the phase: one store, no call
//! ```
//!
//! Everything is pinned in [`PIN_FOLDER`], so that no process has to stay.
#![forbid(unsafe_code)]

mod cgroup;
mod connections;
mod error;
pub mod explain;
mod fields;
mod install;
mod ladder;
mod layout;
mod pins;
mod ranks;
mod replace;
pub mod silence;
pub mod trace;

pub use cgroup::folder_of as cgroup_folder;
pub use connections::connections;
pub use error::TcpError;
pub use install::{Installed, install, installed, probe, remove, totals};
pub use ladder::Rung;
pub use layout::{Connection, Mechanism, Settings, Totals};
pub use pins::{PIN_FOLDER, pin};
pub use ranks::{Place, Rank, adopted};
pub use replace::replace;
