//! Loads and controls the BPF programs of `bpf/tcp`: TCP that adapts to the program's phases.
//!
//! Two papers patched Linux for this. GridMPI (Matsuda et al., "TCP Layer Adapted to MPI Library")
//! paced the restart after a computation phase, shortened the retransmission timeout and kept
//! parameters per phase. The send-stall paper (Takano et al., "The Analysis of TCP/IP Communication
//! Behavior on Parallel Applications") showed that TCP takes a full queue of the sender's own host
//! for congestion, and that this queue delays acknowledgements. Here, programs that an unmodified
//! kernel loads do all of it:
//!
//! ```text
//!  install ─┬─ struct_ops `kumi`   CUBIC, a paced restart, phases, send stalls, short timeouts
//!           ├─ cgroup programs     pinned; Rank::join attaches them to the process's cgroup
//!           └─ iterators           connections() lists, remove() gives back
//!
//!  Rank::join(pid) ─► the process's sockets get `kumi` when they connect or accept;
//!                     its page holds the phase: one store, no call
//! ```
//!
//! Everything is pinned in [`PIN_FOLDER`], so no process has to stay.
#![forbid(unsafe_code)]

mod bursts;
mod cgroup;
mod connections;
pub mod daemon;
mod error;
pub mod explain;
mod install;
mod intf;
mod ladder;
mod layout;
mod pins;
mod processes;
mod refusal;
mod replace;
pub mod silence;
pub mod trace;

pub use cgroup::folder as cgroup_folder;
pub use connections::connections;
pub use error::TcpError;
pub use install::{Installed, install, installed, probe, remove, totals};
pub use ladder::Tier;
pub use layout::{Connection, Mechanism, Preset, Settings, Totals};
pub use pins::{PIN_FOLDER, pin};
pub use processes::{Place, Rank, adopted};
pub use replace::replace;
