//! The daemon's socket, as clients see it: one JSON request, one JSON reply, and with the reply to
//! `join` the descriptor of the page in which the process says its phase.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The daemon's socket.
pub const SOCKET: &str = "/run/kumi/tcp.sock";

/// Longest reply.
const REPLY_BYTES_MAX: usize = 4096;
/// How long the daemon may take to answer: it attaches programs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Takes the calling process in.
    Join,
    /// Ends the daemon, and with it the programs.
    Down,
    /// Ends the daemon; another takes over the programs.
    HandOver,
}

/// What the daemon answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Why it could not be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The rung of the ladder in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<String>,
}

/// Asks the daemon; the descriptor is there after [`Request::Join`].
///
/// # Errors
/// There is no daemon, or it refuses: then in its words.
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
    let page = page.map(kumi_sys::process::received);
    let reply: Reply = serde_json::from_slice(&text[..length])?;
    match reply.error {
        Some(error) => Err(io::Error::other(error)),
        None => Ok((reply, page)),
    }
}
