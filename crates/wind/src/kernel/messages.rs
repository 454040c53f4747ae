//! Messages between a program and the daemon: JSON, one message each way, on a socket of type
//! `SOCK_SEQPACKET`. What a program has registered ends with its connection.

use crate::protocol::{RegionKey, SLOT_WORDS};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Path of the daemon's socket.
pub const SOCKET: &str = "/run/kumi/wind.sock";

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Length of the window of a session, in bytes: its slots and eight counters
/// (`bpf/wind/intf.h`).
pub const WINDOW_BYTES: usize = 8 * (SLOT_WORDS + 8);

/// Request of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Begins the use of the kernel. The reply has the descriptor of the sessions' windows.
    Join,
    /// Creates a region of this length. The reply has its number and the descriptor of its memory.
    Register {
        /// Length in bytes.
        bytes: u64,
        /// Its key.
        key: RegionKey,
    },
    /// Ends the access of the kernel to a region.
    Deregister {
        /// Its number.
        region: u32,
    },
    /// Executes the requests of a session. The reply has the number of its window.
    Open(Open),
    /// Ends this.
    Close {
        /// UDP port of the program.
        port: u16,
        /// `receiver` of the requests.
        index: u32,
    },
    /// Attaches the program to a device of the caller's network namespace, whose descriptor comes
    /// with the request. Only root may.
    Attach {
        /// Name of the device.
        device: String,
    },
    /// Lists the devices and the sessions.
    List,
    /// Ends the daemon. Only root may.
    Down,
}

/// A session whose requests the kernel shall execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// UDP port of the program.
    pub port: u16,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// `receiver` of the requests.
    pub index: u32,
    /// `receiver` of the responses.
    pub peer_index: u32,
    /// Keys of the tags of requests and of responses; `None` for a plain session.
    pub tags: Option<([u8; 16], [u8; 16])>,
}

/// Reply of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Reason of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of a region or of a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Most sessions of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<u32>,
    /// Devices, for [`Request::List`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Programs, sessions and regions, for [`Request::List`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<[usize; 3]>,
}
