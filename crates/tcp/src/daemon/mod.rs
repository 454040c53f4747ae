//! The daemon of `kumi tcp up`, which accepts processes: its socket's protocol and its loop.

pub mod client;
mod service;

pub use service::Service;
