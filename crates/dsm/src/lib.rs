//! Memory that the processes of a job share, on different machines.
//!
//! Each process maps the memory at the same address, and reads and writes it as its own. What one
//! has written, another one sees after both have synchronised: at a barrier, or by a lock that
//! passes from one to the other. Only the bytes that changed travel.
//!
//! ```text
//!   runtime     the nodes of a job over Wind, and memory that the kernel watches
//!   coherence   pages of this node: valid or not, twins, diffs; barriers and locks
//!   protocol    messages between nodes: who has written what, queues of locks; no clock or socket
//! ```
//!
//! The model is that of Fagus over Wind (Hayashi et al., §2.2 and §4.2), with a home for each page
//! and lazy release consistency in place of an owner that sends everything to all.

#![forbid(unsafe_code)]

pub mod coherence;
pub mod protocol;
pub mod runtime;
