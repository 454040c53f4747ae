//! The daemon: one thread that serves the programs of this host.
//!
//! ```text
//! listener ─► program ── request ─► reply, with the descriptor of an array
//!               │ closed: its sessions and regions end
//! signals ────► SIGINT, SIGTERM: the devices are released
//! ```
//!
//! If the daemon is killed, the devices keep the program, and requests are still executed. The next
//! daemon replaces it; sessions of that time are then executed by their programs.

use crate::error::PlacementError;
use crate::owners::{Owners, SESSIONS_MAX};
use crate::{Program, attach, detach};
use kumi_sys::process::own_descriptor;
use kumi_wind::kernel::{MESSAGE_BYTES_MAX, Reply, Request};
use libbpf_rs::MapHandle;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, getsockopt, listen, recvmsg, sendmsg, socket,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Most connections. A program has one.
const CONNECTIONS_MAX: usize = 1024;

/// A program's connection.
struct Connection {
    socket: OwnedFd,
    uid: u32,
    /// Number of the program, once it has joined.
    owner: Option<u32>,
}

/// A device with the program.
struct Device {
    name: String,
    /// Its network namespace; `None` for the daemon's own.
    namespace: Option<OwnedFd>,
}

/// State of the daemon.
pub struct Service {
    listener: OwnedFd,
    signals: SignalFd,
    connections: Vec<Connection>,
    owners: Owners,
    devices: Vec<Device>,
    own_namespace: File,
    is_ended: bool,
}

/// Result of a request, with a descriptor for the program.
type Outcome = Result<(Reply, Option<OwnedFd>), PlacementError>;

impl Service {
    /// Creates a service at `path` that ends at one of `signals`. All regions together may have
    /// `region_bytes_max` bytes.
    ///
    /// # Errors
    /// The path is in use or not writable.
    pub fn new(
        path: &Path,
        signals: &SigSet,
        program: Program,
        region_bytes_max: u64,
    ) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let _ = std::fs::remove_file(path);
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        // Programs of any user may join. A session accesses only regions of its own program.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&listener, Backlog::MAXCONN)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            listener,
            signals: SignalFd::with_flags(signals, flags)?,
            connections: Vec::new(),
            owners: Owners::new(program, region_bytes_max),
            devices: Vec::new(),
            own_namespace: File::open("/proc/self/ns/net")?,
            is_ended: false,
        })
    }

    /// Attaches the program to a device of this network namespace.
    ///
    /// # Errors
    /// No such device, or the kernel refuses.
    pub fn attach(&mut self, device: &str) -> Result<(), PlacementError> {
        self.attach_in(device, None)
    }

    fn attach_in(
        &mut self,
        device: &str,
        namespace: Option<OwnedFd>,
    ) -> Result<(), PlacementError> {
        let program = self.owners.program().as_fd();
        self.inside(namespace.as_ref(), || attach(program, device))?;
        self.devices.push(Device {
            name: device.to_owned(),
            namespace,
        });
        Ok(())
    }

    /// Calls `act` with the thread in a network namespace.
    fn inside<T>(
        &self,
        namespace: Option<&OwnedFd>,
        act: impl FnOnce() -> Result<T, PlacementError>,
    ) -> Result<T, PlacementError> {
        let Some(namespace) = namespace else {
            return act();
        };
        let enter = |namespace: BorrowedFd<'_>| {
            setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|error| {
                PlacementError::Request(format!("cannot enter the network namespace: {error}"))
            })
        };
        enter(namespace.as_fd())?;
        let result = act();
        enter(self.own_namespace.as_fd())?;
        result
    }

    /// Serves until a signal or a request ends it, and releases the devices.
    ///
    /// # Errors
    /// The kernel's error of waiting.
    pub fn run(mut self) -> io::Result<()> {
        while !self.is_ended {
            let ready = self.wait()?;
            if ready[0] {
                break;
            }
            self.serve(&ready[2..]);
            if ready[1] {
                self.accept();
            }
        }
        for device in std::mem::take(&mut self.devices) {
            // A device that is gone has no program.
            let _ = self.inside(device.namespace.as_ref(), || detach(&device.name));
        }
        Ok(())
    }

    /// Waits for an event. Returns the readiness of the signals, the listener and the connections.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let mut files = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        let sockets = self.connections.iter().map(|one| one.socket.as_fd());
        files.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(files.iter().map(|file| file.any() == Some(true)).collect())
    }

    fn accept(&mut self) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        while let Ok(descriptor) = accept4(self.listener.as_raw_fd(), flags) {
            let socket = own_descriptor(descriptor);
            let Ok(credentials) = getsockopt(&socket, PeerCredentials) else {
                continue;
            };
            if self.connections.len() < CONNECTIONS_MAX {
                self.connections.push(Connection {
                    socket,
                    uid: credentials.uid(),
                    owner: None,
                });
            }
        }
    }

    fn serve(&mut self, ready: &[bool]) {
        let connections = std::mem::take(&mut self.connections);
        for (index, mut connection) in connections.into_iter().enumerate() {
            let is_ready = ready.get(index) == Some(&true);
            if !is_ready || self.serve_one(&mut connection) {
                self.connections.push(connection);
            } else if let Some(owner) = connection.owner {
                self.owners.remove(owner);
            }
        }
    }

    /// Serves one request. Returns false if the connection has ended.
    fn serve_one(&mut self, connection: &mut Connection) -> bool {
        let (text, descriptor) = match receive(connection.socket.as_fd()) {
            Ok((text, _)) if text.is_empty() => return false,
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return true,
            Err(_) => return false,
        };
        let outcome = serde_json::from_slice(&text)
            .map_err(|error| PlacementError::Request(format!("invalid request: {error}")))
            .and_then(|request| self.answer(connection, request, descriptor));
        let (reply, descriptor) = outcome.unwrap_or_else(|error| {
            let reply = Reply {
                error: Some(error.to_string()),
                ..Reply::default()
            };
            (reply, None)
        });
        send(connection.socket.as_fd(), &reply, descriptor.as_ref()).is_ok()
    }

    fn answer(
        &mut self,
        connection: &mut Connection,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Outcome {
        let owner = connection.owner.unwrap_or(u32::MAX);
        let mut reply = Reply::default();
        let mut given = None;
        match request {
            Request::Join if connection.owner.is_some() => {
                return Err(PlacementError::Request("joined already".to_owned()));
            }
            Request::Join => {
                let (number, windows) = self.owners.add()?;
                given = Some(copy(windows)?);
                connection.owner = Some(number);
                reply.sessions_max = Some(SESSIONS_MAX);
            }
            Request::Register { bytes, key } => {
                let (number, memory) = self.owners.register(owner, bytes, key)?;
                given = Some(copy(&memory)?);
                reply.number = Some(number);
            }
            Request::Deregister { region } => self.owners.deregister(owner, region)?,
            Request::Open(open) => reply.number = Some(self.owners.open(owner, &open)?),
            Request::Close { port, index } => self.owners.close(owner, port, index)?,
            Request::Attach { device } => {
                must_be_root(connection, "attach the program to a device")?;
                self.attach_in(&device, descriptor)?;
            }
            Request::List => {
                reply.devices = self.devices.iter().map(|one| one.name.clone()).collect();
                let (programs, sessions, regions) = self.owners.counts();
                reply.counts = Some([programs, sessions, regions]);
            }
            Request::Down => {
                must_be_root(connection, "end the daemon")?;
                self.is_ended = true;
            }
        }
        Ok((reply, given))
    }
}

fn must_be_root(connection: &Connection, what: &str) -> Result<(), PlacementError> {
    match connection.uid {
        0 => Ok(()),
        uid => Err(PlacementError::Request(format!(
            "only root may {what}, not user {uid}"
        ))),
    }
}

fn copy(map: &MapHandle) -> Result<OwnedFd, PlacementError> {
    let copy = map.as_fd().try_clone_to_owned();
    copy.map_err(|error| PlacementError::Request(format!("no more descriptors: {error}")))
}

fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let rights = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    let length = message.bytes;
    Ok((bytes[..length].to_vec(), rights.map(own_descriptor)))
}

/// Sends a reply. It does not wait for a program that does not read.
fn send(socket: BorrowedFd<'_>, reply: &Reply, descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let text = serde_json::to_vec(reply)?;
    let descriptors: Vec<RawFd> = descriptor.iter().map(|one| one.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights
    };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&text)],
        rights,
        flags,
        None,
    )?;
    Ok(())
}
