//! Requests: one-sided operations that the kernel of the target executes, or its program.
//!
//! ```text
//!   requester                      target
//!   sender  ── request ──────────► slots      executes each number once, in any order
//!           ◄─ response ──────────            the operation's answer acknowledges the packet
//! ```
//!
//! Kernel and program of the target share the slots (`bpf/wind`), so either may execute a request.

mod sender;
pub mod slots;

pub use sender::Sender;
