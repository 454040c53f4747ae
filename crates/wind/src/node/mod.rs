//! A node: an endpoint with a UDP socket and a thread.
//!
//! The thread receives while the program computes. A program that waits receives itself
//! (`waiting.rs`).

mod handing;
mod multicast;
mod polling;
mod regions;
pub mod show;
mod state;
mod transfer;
mod waiting;

pub use handing::Handler;
pub use regions::Region;
pub use transfer::{LocalMemory, Transfer};
pub use waiting::Presence;

use crate::kernel::Client;
use crate::protocol::diff;
use crate::protocol::{
    Atomic, Class, Config, Delivery, Lost, Message, MessageId, Mode, Operation, PeerId, Place,
    Refused, Rejected, Rung, Seal, Status,
};
use kumi_sys::fork::Private;
use kumi_sys::shared_memory::SharedMemory;
use kumi_sys::udp::LinkSocket;
use nix::sys::eventfd::{EfdFlags, EventFd};
use state::State;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use waiting::Waiters;

/// Longest datagram of a session whose requests the kernel executes, in bytes (`bpf/wind`).
const KERNEL_DATAGRAM_BYTES_MAX: u16 = 1480;

/// Messages and operations that a program submits or takes, after which it receives. Fitted to
/// `wind-goodput` (`docs/perf-log.md`, 2026-11-26).
const ACTIONS_PER_RECEIVE: u64 = 64;

/// Bytes to one peer that may wait or be in flight. A program that sends more waits.
const UNSENT_BYTES_MAX: u64 = 16 << 20;

/// Reason why an operation of a node failed.
#[derive(Debug, thiserror::Error)]
pub enum WindError {
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// Action that failed.
        what: &'static str,
        /// Error that the kernel returned.
        error: io::Error,
    },
    /// The message or operation is invalid.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The peer refused it.
    #[error("the peer refused: {0}")]
    Refused(#[from] Refused),
    /// The peer is lost.
    #[error("{0}")]
    Lost(Lost),
    /// The time limit has passed.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The result of the operation was taken before, or the operation was never started.
    #[error("operation {0} has no result: it was taken before, or the number is wrong")]
    Taken(u64),
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> WindError {
    move |error| WindError::System { what, error }
}

/// Returns an error if the area has no diff: its twin has another length, or it is longer than the
/// offsets of a diff.
fn check_area(twin: &[u8], now: &[u8]) -> Result<(), Rejected> {
    if twin.len() != now.len() {
        return Err(Rejected::Twin {
            twin: twin.len(),
            area: now.len(),
        });
    }
    let (bytes, max) = (now.len() as u64, u64::from(u32::MAX));
    match bytes > max {
        true => Err(Rejected::Area { bytes, max }),
        false => Ok(()),
    }
}

struct Shared {
    state: Mutex<State>,
    /// Something has happened for which a program may wait.
    changed: Condvar,
    /// A forked child has none of the sockets: it would take what arrives.
    socket: Private<LinkSocket>,
    /// Wakes the thread, and the program that sleeps on the socket.
    bell: EventFd,
    call: EventFd,
    /// Socket of `kumi wind show`.
    listener: Option<Private<UnixListener>>,
    rung: Rung,
    waiters: Waiters,
    /// Takes the messages, if the program has set one.
    handler: OnceLock<Handler>,
    /// Layer that shows its state with the node's.
    user: OnceLock<show::User>,
    /// Held by the thread that calls the handler.
    handing: Mutex<()>,
    is_ended: AtomicBool,
}

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Peer that sent it.
    pub peer: PeerId,
    /// The message.
    pub message: Delivery,
}

/// A node. Dropping it ends its sessions.
pub struct Node {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Opens a node at `address`; port 0 leaves the choice to the kernel.
    ///
    /// # Errors
    /// The address is in use or not this host's.
    pub fn bind(address: SocketAddr, config: Config) -> Result<Self, WindError> {
        let socket = LinkSocket::bound(address).map_err(system("cannot bind the address"))?;
        Self::on(socket, config)
    }

    /// Opens a node on a bound socket.
    ///
    /// # Errors
    /// As [`Self::polled`].
    pub fn on(socket: LinkSocket, config: Config) -> Result<Self, WindError> {
        let mut node = Self::polled(socket, config)?;
        let runner = Arc::clone(&node.shared);
        let thread = std::thread::Builder::new()
            .name("wind".into())
            .spawn(move || waiting::run(&runner))
            .map_err(system("cannot start a thread"))?;
        node.thread = Some(thread);
        Ok(node)
    }

    /// Opens a node on a bound socket and without a thread, for a program with an event loop: it
    /// calls [`Self::turn`] when the node's descriptor is readable, and when
    /// [`Self::time_to_timeout`] has passed.
    ///
    /// # Errors
    /// The system refuses a descriptor, or the settings want a kernel that cannot be used.
    pub fn polled(socket: LinkSocket, config: Config) -> Result<Self, WindError> {
        // A response has a tag instead; a kernel that cannot do this drops them over IPv6.
        let _ = socket.accept_without_checksum();
        let kernel = join(&socket, &config)?;
        // Requests that are coalesced before the kernel's program sees them have one packet for
        // their responses, which is too short for those of gets.
        socket.set_coalescing(kernel.is_none());
        let port = socket.local_address().map_or(0, |address| address.port());
        let listener = show::listen(port).map(Private::new);
        let descriptor = socket.as_fd().as_raw_fd();
        let (rung, waiting) = (config.rung, config.waiting);
        let (bell, call) = (eventfd()?, eventfd()?);
        let shared = Arc::new_cyclic(|node| Shared {
            state: Mutex::new(State::new(config, kernel, Weak::clone(node))),
            changed: Condvar::new(),
            socket: Private::of(socket, descriptor),
            bell,
            call,
            listener,
            rung,
            waiters: Waiters::new(waiting),
            handler: OnceLock::new(),
            user: OnceLock::new(),
            handing: Mutex::new(()),
            is_ended: AtomicBool::new(false),
        });
        Ok(Self {
            shared,
            thread: None,
        })
    }

    /// Returns the address of the socket.
    pub fn local_address(&self) -> Result<SocketAddr, WindError> {
        let address = self.shared.socket.local_address();
        address.map_err(system("cannot read the socket's address"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }

    /// Does `act`, and sends what it produced.
    fn act<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = act(&mut state);
        self.send_and_ring(&mut state);
        result
    }

    /// Sends what a program has just submitted, unless it can share a datagram with others while an
    /// acknowledgement is awaited. A program that submits much also receives now and then: the
    /// thread leaves that to it.
    fn send_submitted(&self, state: &mut State, peer: PeerId) {
        state.actions += 1;
        state.in_a_row += 1;
        if state.actions % ACTIONS_PER_RECEIVE == 0 {
            self.receive_as_present(state);
        }
        if state.handed == 0 && state.is_worth_sending(peer) {
            self.send_and_ring(state);
        }
    }

    fn send_and_ring(&self, state: &mut State) {
        state.transmit_all(&self.shared.socket);
        waiting::ring(&self.shared, state);
    }

    /// Returns the peer at `address`. The session begins in the background, and messages wait for
    /// it.
    ///
    /// # Errors
    /// The node has its largest number of peers.
    pub fn connect(&self, address: SocketAddr) -> Result<PeerId, WindError> {
        Ok(self.act(|state| state.connect(address))?)
    }

    /// Registers memory of `bytes` bytes for access by peers.
    ///
    /// # Errors
    /// The memory cannot be mapped, or there is no source of random numbers.
    pub fn register(&self, bytes: usize) -> Result<Region, WindError> {
        let key = random().map_err(system("cannot read random numbers"))?;
        let mut state = self.state();
        if let Some(kernel) = &state.kernel {
            let registered = kernel.register(bytes, key);
            let registered = registered.map_err(system("cannot register the region"));
            match registered {
                Ok((number, memory)) => {
                    return Ok(state.regions.insert(number, Arc::new(memory), key));
                }
                Err(error) if self.shared.rung == Rung::Kernel => return Err(error),
                // The program executes the requests for this region.
                Err(_) => {}
            }
        }
        let memory = SharedMemory::new(bytes).map_err(system("cannot map the region"))?;
        Ok(state.regions.register(Arc::new(memory), key))
    }

    /// Ends the access of peers to a region. When this returns, no peer writes to it any more.
    pub fn deregister(&self, region: &Region) {
        let mut state = self.state();
        state.regions.remove(region.number());
        if let Some(kernel) = state.kernel.as_ref().filter(|_| region.is_in_kernel()) {
            // A daemon that is lost has no effect on the memory that this process has mapped.
            let _ = kernel.deregister(region.number());
        }
    }

    /// Returns whether a session with a peer has begun.
    pub fn has_peers(&self) -> bool {
        self.state().endpoint.peers() > 0
    }

    /// Returns whether the kernel of this host executes the operations of peers.
    pub fn has_kernel(&self) -> bool {
        self.state().kernel.is_some()
    }

    /// Returns whether the kernel of the peer executes the operations of this node.
    pub fn peer_has_kernel(&self, peer: PeerId) -> bool {
        self.state().endpoint.sends_requests(peer)
    }

    /// Sends a message. If too much waits for the peer, this waits for it.
    ///
    /// # Errors
    /// The message is invalid, or the peer is lost.
    pub fn send(&self, peer: PeerId, message: Message) -> Result<MessageId, WindError> {
        if message.mode == Mode::Relay {
            return Err(Rejected::Mode.into());
        }
        self.send_any(peer, message)
    }

    fn send_any(&self, peer: PeerId, message: Message) -> Result<MessageId, WindError> {
        let mut state = self.state_with_room(peer)?;
        let sent = state.endpoint.send(peer, message)?;
        self.send_submitted(&mut state, peer);
        Ok(sent)
    }

    /// Returns the state when little enough waits for the peer.
    fn state_with_room(&self, peer: PeerId) -> Result<MutexGuard<'_, State>, WindError> {
        let state = self.state();
        state.check(peer)?;
        if state.endpoint.unsent_bytes(peer) < UNSENT_BYTES_MAX {
            return Ok(state);
        }
        drop(state);
        self.wait_for_room(peer)?;
        Ok(self.state())
    }

    fn wait_for_room(&self, peer: PeerId) -> Result<(), WindError> {
        self.drain(peer, UNSENT_BYTES_MAX, None)
    }

    /// Sends bytes to the program of a peer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_bytes(
        &self,
        peer: PeerId,
        class: Class,
        data: impl Into<Vec<u8>>,
    ) -> Result<MessageId, WindError> {
        self.send(peer, Message::through(class, data.into()))
    }

    /// Sends the bytes of `now` that differ from `twin`, which are written at `place`. The peer's
    /// program gets the header; without one it is not notified.
    ///
    /// # Errors
    /// As [`Self::send`], or the lengths differ.
    pub fn send_diff(
        &self,
        peer: PeerId,
        class: Class,
        place: Place,
        header: Option<Vec<u8>>,
        twin: &[u8],
        now: &[u8],
    ) -> Result<MessageId, WindError> {
        let mode = match header {
            Some(_) => Mode::HeaderThroughDiff,
            None => Mode::DirectDiff,
        };
        check_area(twin, now)?;
        let message = Message {
            class,
            mode,
            header: header.unwrap_or_default(),
            data: self.state().endpoint.diff_parts(twin, now, class, mode),
            place: Some(place),
        };
        self.send(peer, message)
    }

    /// Waits until a synchronous message has been placed in the peer's memory.
    ///
    /// # Errors
    /// The peer refused its data, the peer is lost, or the limit has passed.
    pub fn wait_placed(
        &self,
        peer: PeerId,
        message: MessageId,
        limit: Option<Duration>,
    ) -> Result<(), WindError> {
        self.wait(limit, |state| match state.placed.remove(&(peer, message)) {
            Some(result) => Ok(Some(result?)),
            None => state.check(peer).map(|()| None),
        })
    }

    /// Returns the next message of any peer; `None` after `limit`.
    pub fn receive(&self, limit: Option<Duration>) -> Option<Received> {
        self.wait(limit, |state| Ok(self.take_next(state))).ok()
    }

    /// Takes a message that has arrived. A program that takes many also receives now and then.
    fn take_next(&self, state: &mut State) -> Option<Received> {
        let received = state.next_message()?;
        state.actions += 1;
        state.in_a_row = 0;
        if state.actions % ACTIONS_PER_RECEIVE == 0 {
            self.receive_as_present(state);
            state.transmit(&self.shared.socket);
        }
        Some(received)
    }

    /// Starts an operation on a place of a peer's memory. [`Self::wait_result`] takes its result.
    ///
    /// # Errors
    /// The operation is longer than a datagram, or the peer is lost.
    pub fn start(
        &self,
        peer: PeerId,
        place: Place,
        operation: Operation,
    ) -> Result<u64, WindError> {
        Ok(self.act(|state| state.start(peer, place, operation))?)
    }

    /// Starts an operation whose result nobody takes. [`Self::flush`] waits for it. If too much
    /// waits for the peer, this waits for it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn post(&self, peer: PeerId, place: Place, operation: Operation) -> Result<(), WindError> {
        let mut state = self.state_with_room(peer)?;
        state.endpoint.operate(peer, place, operation)?;
        self.send_submitted(&mut state, peer);
        Ok(())
    }

    /// Waits for the result of an operation.
    ///
    /// # Errors
    /// The peer refused it or is lost, or the limit has passed.
    pub fn wait_result(
        &self,
        peer: PeerId,
        operation: u64,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, WindError> {
        self.wait(limit, |state| state.take_result(peer, operation))
    }

    /// Writes `bytes` at `place`, and waits until they are in the peer's memory.
    ///
    /// # Errors
    /// As [`Self::wait_result`].
    pub fn put(&self, peer: PeerId, place: Place, bytes: &[u8]) -> Result<(), WindError> {
        self.execute(peer, self.put_parts(place, bytes)).map(drop)
    }

    /// Writes the bytes of `now` that differ from `twin` at `place`, and waits until they are in
    /// the peer's memory. The bytes between them are not touched, so that others may write them.
    ///
    /// # Errors
    /// As [`Self::wait_result`], or the lengths differ.
    pub fn put_diff(
        &self,
        peer: PeerId,
        place: Place,
        twin: &[u8],
        now: &[u8],
    ) -> Result<(), WindError> {
        check_area(twin, now)?;
        let part_bytes = self.state().endpoint.operation_bytes_max();
        let parts = diff::encode(twin, now, part_bytes).into_iter();
        let parts = parts.map(|part| (place, Operation::PutDiff(part)));
        self.execute(peer, parts).map(drop)
    }

    /// Reads `bytes` bytes at `place`.
    ///
    /// # Errors
    /// As [`Self::wait_result`].
    pub fn get(&self, peer: PeerId, place: Place, bytes: usize) -> Result<Vec<u8>, WindError> {
        let part_bytes = self.state().endpoint.operation_bytes_max();
        let parts = (0..bytes).step_by(part_bytes).map(|offset| {
            let length = part_bytes.min(bytes - offset);
            (place.plus(offset as u64), Operation::Get(length as u16))
        });
        self.execute(peer, parts)
    }

    /// Executes an atomic operation on the word at `place`, and returns the word before it.
    ///
    /// # Errors
    /// As [`Self::wait_result`].
    pub fn atomic(&self, peer: PeerId, place: Place, atomic: Atomic) -> Result<u64, WindError> {
        let operation = self.start(peer, place, Operation::Atomic(atomic))?;
        let bytes = self.wait_result(peer, operation, None)?;
        let word: Option<[u8; 8]> = bytes.try_into().ok();
        Ok(word.map_or(0, u64::from_be_bytes))
    }

    /// Returns the state of the session with a peer, if there is one.
    pub fn status(&self, peer: PeerId) -> Option<Status> {
        self.state().endpoint.status(peer)
    }

    /// Returns the smoothed round trip to a peer, if there is a session.
    pub fn rtt(&self, peer: PeerId) -> Option<Duration> {
        let status = self.status(peer)?;
        Some(Duration::from_nanos(status.messages.rtt_ns))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let ending = self.act(State::close);
        ending.join();
        self.shared.is_ended.store(true, Ordering::Relaxed);
        let _ = self.shared.bell.write(1);
        // A handler on the node's own thread may have the last use of the node.
        let is_other =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            // An error means that the thread has panicked and printed a message.
            let _ = thread.join();
        }
    }
}

fn eventfd() -> Result<EventFd, WindError> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
        .map_err(|error| system("cannot create an eventfd")(error.into()))
}

/// Connects to the daemon whose program executes the requests of peers, as the settings want it.
fn join(socket: &LinkSocket, config: &Config) -> Result<Option<Client>, WindError> {
    let fits = config.datagram_bytes <= KERNEL_DATAGRAM_BYTES_MAX;
    let may_join = config.seal != Seal::Encrypt && fits;
    if config.rung == Rung::User || (config.rung == Rung::Auto && !may_join) {
        return Ok(None);
    }
    let refused = |text: String| system("cannot use the kernel")(io::Error::other(text));
    if config.seal == Seal::Encrypt {
        let text = "the sessions are encrypted; it needs Seal::Authenticate or Seal::Plain";
        return Err(refused(text.to_owned()));
    }
    if !fits {
        return Err(refused(format!(
            "datagrams of {} bytes; it takes at most {KERNEL_DATAGRAM_BYTES_MAX}",
            config.datagram_bytes
        )));
    }
    let port = socket.local_address().map(|address| address.port());
    let joined = port.and_then(Client::join);
    match (joined, config.rung) {
        (Ok(client), _) => Ok(Some(client)),
        (Err(error), Rung::Kernel) => Err(refused(format!(
            "{error}; `kumi wind up DEVICE` starts its daemon"
        ))),
        (Err(_), _) => Ok(None),
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut file = std::fs::File::open("/dev/urandom")?;
    std::io::Read::read_exact(&mut file, &mut bytes)?;
    Ok(bytes)
}

/// Returns a random number for [`Config::epoch`].
///
/// # Errors
/// There is no source of random numbers.
pub fn random_epoch() -> io::Result<u64> {
    Ok(u64::from_ne_bytes(random()?))
}

#[cfg(test)]
mod tests;
