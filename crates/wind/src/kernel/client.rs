//! The program's side of the daemon's socket.

use super::KERNEL_REGION;
use super::messages::{MESSAGE_BYTES_MAX, Open, Reply, Request, SOCKET, WINDOW_BYTES};
use crate::protocol::{RegionKey, SlotMemory};
use kumi_sys::fork::Private;
use kumi_sys::process::own_descriptor;
use kumi_sys::shared_memory::SharedMemory;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time limit for a reply, in seconds. A daemon that does not answer is left out.
const REPLY_SECONDS: i64 = 2;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    /// A forked child does not keep the connection open when this process ends.
    socket: Private<OwnedFd>,
    windows: Arc<SharedMemory>,
    port: u16,
}

/// Window of a session: the slots of its requests, which kernel and program share.
#[derive(Debug, Clone)]
pub struct KernelWindow {
    windows: Arc<SharedMemory>,
    first: usize,
}

impl SlotMemory for KernelWindow {
    fn word(&self, index: usize) -> &AtomicU64 {
        self.windows.word(self.first + 8 * index)
    }
}

impl Client {
    /// Connects the node at UDP port `port` to the daemon.
    ///
    /// # Errors
    /// No daemon runs, or it refuses.
    pub fn join(port: u16) -> io::Result<Self> {
        let socket = open_socket(Path::new(SOCKET))?;
        let (reply, descriptor) = ask(socket.as_fd(), &Request::Join, None)?;
        let windows = descriptor.ok_or_else(|| missing("the windows"))?;
        let count = reply.sessions_max.ok_or_else(|| missing("sessions_max"))?;
        let windows = SharedMemory::map(windows.as_fd(), count as usize * WINDOW_BYTES)?;
        Ok(Self {
            socket: Private::new(socket),
            windows: Arc::new(windows),
            port,
        })
    }

    /// Creates a region of `bytes` bytes. Returns its number and its memory.
    ///
    /// # Errors
    /// The daemon refuses, or is lost.
    pub fn register(&self, bytes: usize, key: RegionKey) -> io::Result<(u32, SharedMemory)> {
        let request = Request::Register {
            bytes: bytes as u64,
            key,
        };
        let (reply, descriptor) = ask(self.socket.as_fd(), &request, None)?;
        let memory = descriptor.ok_or_else(|| missing("the memory"))?;
        let number = reply.number.ok_or_else(|| missing("the number"))?;
        let memory = SharedMemory::map(memory.as_fd(), bytes)?;
        Ok((number | KERNEL_REGION, memory))
    }

    /// Ends the access of the kernel to a region. When this returns, it writes to it no more.
    ///
    /// # Errors
    /// The daemon is lost.
    pub fn deregister(&self, region: u32) -> io::Result<()> {
        let region = region & !KERNEL_REGION;
        ask(self.socket.as_fd(), &Request::Deregister { region }, None).map(drop)
    }

    /// Lets the kernel execute the requests of a session. Returns its window, which is empty.
    ///
    /// # Errors
    /// The daemon refuses, or is lost.
    pub fn open(&self, mut session: Open) -> io::Result<KernelWindow> {
        session.port = self.port;
        let (reply, _) = ask(self.socket.as_fd(), &Request::Open(session), None)?;
        let number = reply.number.ok_or_else(|| missing("the window"))?;
        let first = number as usize * WINDOW_BYTES;
        if first + WINDOW_BYTES > self.windows.bytes() {
            return Err(missing("a window that exists"));
        }
        Ok(KernelWindow {
            windows: Arc::clone(&self.windows),
            first,
        })
    }

    /// Ends the execution of a session's requests.
    ///
    /// # Errors
    /// The daemon is lost.
    pub fn close(&self, index: u32) -> io::Result<()> {
        let port = self.port;
        ask(self.socket.as_fd(), &Request::Close { port, index }, None).map(drop)
    }
}

impl KernelWindow {
    /// Returns a counter of the window: see `kumi_wind_window` of `bpf/wind/intf.h`.
    pub fn counter(&self, index: usize) -> u64 {
        let word = crate::protocol::SLOT_WORDS + index;
        self.word(word).load(Ordering::Relaxed)
    }
}

fn missing(what: &str) -> io::Error {
    io::Error::other(format!("the daemon's reply lacks {what}"))
}

/// Opens a connection to the daemon at `path`.
///
/// # Errors
/// No daemon runs.
pub fn open_socket(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let limit = TimeVal::new(REPLY_SECONDS, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

/// Sends a request, with a descriptor, and returns the reply with its descriptor.
///
/// # Errors
/// The daemon is lost, or refuses; the error has its message.
pub fn ask(
    socket: BorrowedFd<'_>,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<(Reply, Option<OwnedFd>)> {
    let text = serde_json::to_vec(request)?;
    let descriptors: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights
    };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&text)],
        rights,
        flags,
        None,
    )?;
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let (length, descriptor) = {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
        let rights = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        (message.bytes, rights)
    };
    let descriptor = descriptor.map(own_descriptor);
    if length == 0 {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let reply: Reply = serde_json::from_slice(&bytes[..length])?;
    match reply.error {
        Some(error) => Err(io::Error::other(error)),
        None => Ok((reply, descriptor)),
    }
}
