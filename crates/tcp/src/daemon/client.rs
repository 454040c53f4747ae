//! Client side of the daemon's socket: one JSON request and one JSON reply. The reply to `join`
//! also carries the descriptor of the process's phase page.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Path of the daemon's socket.
pub const SOCKET: &str = "/run/kumi/tcp.sock";

/// Size limit of a reply, in bytes.
const REPLY_BYTES_MAX: usize = 4096;
/// Time limit for a reply. The daemon attaches programs before it replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Accepts the calling process.
    Join,
    /// Stops the daemon and removes the programs.
    Down,
    /// Stops the daemon. Another one takes over the programs.
    HandOver,
}

/// The daemon's reply.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Reason for a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Name of the capability tier in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
}

/// Sends a request to the daemon. Returns its reply and, after [`Request::Join`], the page's
/// descriptor.
///
/// # Errors
/// No daemon runs, or it refuses; the error then has the daemon's message.
pub fn ask(request: &Request) -> io::Result<(Reply, Option<OwnedFd>)> {
    let mut stream = UnixStream::connect(SOCKET)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut text = [0; REPLY_BYTES_MAX];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let (length, page) = {
        let mut slices = [IoSliceMut::new(&mut text)];
        let message = recvmsg::<UnixAddr>(
            stream.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )?;
        let rights = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        (message.bytes, rights)
    };
    let page = page.map(kumi_sys::process::own_descriptor);
    let reply: Reply = serde_json::from_slice(&text[..length])?;
    match reply.error {
        Some(error) => Err(io::Error::other(error)),
        None => Ok((reply, page)),
    }
}
