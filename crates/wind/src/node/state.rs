//! The state of a node, behind its lock.

use super::multicast::{Ending, Multicasts};
use super::regions::RegionTable;
use super::{Received, Shared, WindError};
use crate::kernel::{Client, KernelWindow, Open};
use crate::protocol::wire::is_repeated_get;
use crate::protocol::{
    Config, Endpoint, Event, Lost, MessageId, Operation, PeerId, Place, Refused, Rejected,
};
use kumi_sys::datagrams::{Datagrams, RECEIVE_BYTES_MAX};
use kumi_sys::udp::LinkSocket;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most bytes and datagrams of one system call, the limits of `UDP_SEGMENT`.
const BATCH_BYTES_MAX: usize = 61_440;
const BATCH_DATAGRAMS_MAX: usize = 60;

/// Entries of one receive: datagrams, or what the kernel coalesced. They begin 64 KiB apart, so
/// more than the ways of a first-level cache evict one another.
const RECEIVED_MAX: usize = 8;

/// Most system calls of one turn in each direction, so that the lock is free again soon.
const TURN_CALLS_MAX: usize = 16;

/// Most turns in a row for what was submitted for many peers.
const TURNS_MAX: usize = 8;

/// Time after something was taken in which nothing is sent by itself: the program's answer carries
/// the acknowledgement. An MPI library returns to its program, and sends, within 5 µs.
const ANSWER: Duration = Duration::from_micros(10);

/// Messages and operations in a row after which they are a stream. Fitted to `wind-goodput`
/// (`docs/perf-log.md`, 2026-11-26).
const STREAM: u32 = 32;

/// Result of an operation.
type Answer = Result<Vec<u8>, Refused>;

/// Thread that sleeps until a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleeper {
    /// The node's thread, or the event loop of a node without one.
    Thread,
    /// The program that leads.
    Leader,
}

/// The endpoint, and what has happened.
pub struct State {
    /// The protocol.
    pub endpoint: Endpoint<SocketAddr>,
    /// Connection to the daemon whose program executes the requests of peers.
    pub kernel: Option<Client>,
    /// Sessions whose requests the kernel executes: the index of each, and its window.
    windows: HashMap<PeerId, (u32, KernelWindow)>,
    /// Puts to many peers, of this node and of others.
    pub multicast: Multicasts,
    /// Memory that peers may access.
    pub regions: RegionTable,
    /// Operations whose result a program takes; `None` before the answer.
    results: HashMap<(PeerId, u64), Option<Answer>>,
    /// Synchronous messages that have been placed or refused.
    pub placed: HashMap<(PeerId, MessageId), Result<(), Refused>>,
    lost: HashMap<PeerId, Lost>,
    peers: Vec<PeerId>,
    datagrams: Datagrams,
    batch: Vec<u8>,
    /// A datagram that was built and belongs to another batch.
    next: Option<(SocketAddr, Vec<u8>)>,
    start: Instant,
    /// Timeouts for which the sleepers wait.
    awaited_ns: [Option<u64>; 2],
    /// Time at which a program took the first thing since the last transmission, in ns since the
    /// start of the node.
    pub taken_ns: Option<u64>,
    /// Messages and operations that programs have submitted or taken.
    pub actions: u64,
    /// Those that a program has submitted one after the other, without a wait.
    pub in_a_row: u32,
    /// Number of times that something happened for which a program may wait.
    pub changes: u64,
    /// The last transmission has left something.
    pub has_unsent: bool,
    /// Messages that have been handed over in a row; 0 while none is. What is submitted meanwhile
    /// is sent behind the last one.
    pub handed: u32,
}

impl State {
    pub fn new(config: Config, kernel: Option<Client>, node: Weak<Shared>) -> Self {
        Self {
            multicast: Multicasts::new(&config, node),
            kernel,
            windows: HashMap::new(),
            endpoint: Endpoint::new(config),
            regions: RegionTable::default(),
            results: HashMap::new(),
            placed: HashMap::new(),
            lost: HashMap::new(),
            peers: Vec::new(),
            datagrams: Datagrams::with_longest(RECEIVED_MAX),
            batch: Vec::with_capacity(BATCH_BYTES_MAX),
            next: None,
            start: Instant::now(),
            awaited_ns: [None; 2],
            taken_ns: None,
            actions: 0,
            in_a_row: 0,
            changes: 0,
            has_unsent: false,
            handed: 0,
        }
    }

    /// Returns the time since the start of the node, in ns.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn connect(&mut self, address: SocketAddr) -> Result<PeerId, Rejected> {
        let now_ns = self.now_ns();
        let peer = self.endpoint.connect(canonical(address), now_ns)?;
        self.peers.push(peer);
        Ok(peer)
    }

    /// Returns the error of a peer that is lost.
    pub fn check(&self, peer: PeerId) -> Result<(), WindError> {
        match self.lost.get(&peer) {
            Some(reason) => Err(WindError::Lost(*reason)),
            None => Ok(()),
        }
    }

    /// Starts an operation whose result a program takes.
    pub fn start(
        &mut self,
        peer: PeerId,
        place: Place,
        operation: Operation,
    ) -> Result<u64, Rejected> {
        let number = self.endpoint.operate(peer, place, operation)?;
        self.results.insert((peer, number), None);
        Ok(number)
    }

    /// Takes the result of an operation; `None` before the answer.
    pub fn take_result(
        &mut self,
        peer: PeerId,
        operation: u64,
    ) -> Result<Option<Vec<u8>>, WindError> {
        if let Err(lost) = self.check(peer) {
            self.results.remove(&(peer, operation));
            return Err(lost);
        }
        match self.results.get(&(peer, operation)) {
            Some(None) => Ok(None),
            Some(Some(_)) => {
                let result = self.results.remove(&(peer, operation)).flatten();
                Ok(result.transpose()?)
            }
            None => Err(WindError::Taken(operation)),
        }
    }

    /// Returns the number of operations whose result is kept or awaited.
    #[cfg(test)]
    pub fn untaken(&self) -> usize {
        self.results.len()
    }

    /// Ends all sessions. Returns the threads that end with them.
    pub fn close(&mut self) -> Ending {
        for peer in std::mem::take(&mut self.peers) {
            self.endpoint.close(peer);
        }
        self.multicast.close()
    }

    /// Returns whether a message has arrived that nobody has taken.
    pub fn has_message(&self) -> bool {
        self.endpoint.has_message()
    }

    /// Returns the next message.
    pub fn next_message(&mut self) -> Option<Received> {
        let (peer, message) = self.endpoint.poll_message()?;
        Some(Received { peer, message })
    }

    /// Receives, handles timeouts and sends. Returns whether something has happened for which a
    /// program may wait.
    pub fn turn(&mut self, socket: &LinkSocket) -> bool {
        let has_changed = self.receive(socket);
        self.transmit(socket);
        has_changed
    }

    /// As [`Self::turn`], but sends nothing.
    pub fn receive(&mut self, socket: &LinkSocket) -> bool {
        let mut has_received = false;
        for _ in 0..TURN_CALLS_MAX {
            let received = socket.receive(&mut self.datagrams, RECEIVE_BYTES_MAX);
            if received.is_err() {
                break;
            }
            has_received = true;
            let now_ns = self.start.elapsed().as_nanos() as u64;
            for (bytes, received) in self.datagrams.iter_mut() {
                let from = canonical(received.sender);
                for datagram in bytes.chunks_mut(received.segment_bytes.max(1)) {
                    let regions = &mut self.regions;
                    self.endpoint
                        .handle_datagram(from, datagram, regions, now_ns);
                }
            }
            // The kernel had no more.
            if !self.datagrams.is_full() {
                break;
            }
        }
        let now_ns = self.now_ns();
        let is_due = self
            .endpoint
            .timeout_ns()
            .is_some_and(|at_ns| at_ns <= now_ns);
        if is_due {
            self.endpoint.handle_timeout(&mut self.regions, now_ns);
        }
        while let Some(event) = self.endpoint.poll_notice() {
            self.note(event);
        }
        self.multicast
            .work(&mut self.endpoint, &mut self.regions, now_ns);
        let has_changed = has_received || is_due;
        self.changes += u64::from(has_changed);
        has_changed
    }

    /// Forgets the session with a peer, which is lost for this node.
    pub fn abandon(&mut self, peer: PeerId) {
        self.endpoint.abandon(peer);
        while let Some(event) = self.endpoint.poll_notice() {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Answered(peer, operation, result) => {
                if let Some(place) = self.results.get_mut(&(peer, operation)) {
                    *place = Some(result);
                }
            }
            Event::Placed(peer, message) => {
                self.placed.insert((peer, message), Ok(()));
            }
            Event::Rejected(peer, message, reason) => {
                self.placed.insert((peer, message), Err(reason));
            }
            Event::Lost(peer, reason) => {
                self.lost.insert(peer, reason);
                self.multicast.note_lost(peer, &mut self.endpoint);
                if let (Some((index, _)), Some(kernel)) = (self.windows.remove(&peer), &self.kernel)
                {
                    // Without the daemon, nothing executes the requests of the session any more.
                    let _ = kernel.close(index);
                }
            }
            Event::Connected(peer) => {
                self.peers.push(peer);
                self.serve_requests(peer);
            }
            Event::Message(..) => {}
        }
    }

    /// Lets the kernel execute the requests of a peer. If it cannot, the peer's operations stay in
    /// Data packets, which the program executes.
    fn serve_requests(&mut self, peer: PeerId) {
        let Some(kernel) = &self.kernel else { return };
        let Some(keys) = self.endpoint.request_keys(peer) else {
            return;
        };
        let session = Open {
            port: 0,
            peer: keys.peer,
            index: keys.index,
            peer_index: keys.peer_index,
            tags: keys.tags,
        };
        if let Ok(window) = kernel.open(session) {
            self.endpoint.serve_requests(peer, Arc::new(window.clone()));
            self.windows.insert(peer, (keys.index, window));
        }
    }

    /// Returns the window of the requests that the kernel executes for a peer.
    pub fn window(&self, peer: PeerId) -> Option<&KernelWindow> {
        self.windows.get(&peer).map(|(_, window)| window)
    }

    /// Returns whether a message that was just submitted should be sent at once.
    pub fn is_worth_sending(&self, peer: PeerId) -> bool {
        let is_stream = self.in_a_row > STREAM;
        self.endpoint
            .is_worth_sending(peer, is_stream, self.now_ns())
    }

    /// Records that the program takes something now. Returns whether its answer, within [`ANSWER`]
    /// of the first thing that was taken since the last transmission, may carry acknowledgements.
    pub fn is_answered_soon(&mut self, now_ns: u64) -> bool {
        self.taken_ns.get_or_insert(now_ns);
        self.is_still_answered_soon(now_ns)
    }

    /// As [`Self::is_answered_soon`], if the program takes nothing now.
    pub fn is_still_answered_soon(&mut self, now_ns: u64) -> bool {
        let is_soon = |taken_ns: &u64| now_ns < taken_ns + ANSWER.as_nanos() as u64;
        self.taken_ns = self.taken_ns.filter(is_soon);
        self.taken_ns.is_some()
    }

    /// Sends what the endpoint has to send, in batches of datagrams to one peer. What is more than
    /// a turn's is left, and due at once.
    pub fn transmit(&mut self, socket: &LinkSocket) {
        self.has_unsent = false;
        for _ in 0..TURN_CALLS_MAX {
            let now_ns = self.now_ns();
            let Some((target, segment_bytes)) = self.fill_batch(now_ns) else {
                return;
            };
            // A datagram that the socket refuses is lost, as in the network.
            let _ = socket.send(&self.batch, segment_bytes, target);
        }
        self.has_unsent = true;
    }

    /// Sends what was submitted for many peers.
    pub fn transmit_all(&mut self, socket: &LinkSocket) {
        self.transmit(socket);
        for _ in 1..TURNS_MAX {
            if self.has_unsent {
                self.transmit(socket);
            }
        }
    }

    /// Fills the batch with datagrams to one peer, or with one get that is sent again. All have the
    /// length of the first, except the last one, which may be shorter. Returns the peer's address
    /// and that length.
    fn fill_batch(&mut self, now_ns: u64) -> Option<(SocketAddr, usize)> {
        self.batch.clear();
        let target = match self.next.take() {
            Some((target, datagram)) => {
                self.batch.extend_from_slice(&datagram);
                target
            }
            None => self.endpoint.poll_transmit(now_ns, &mut self.batch)?,
        };
        let segment_bytes = self.batch.len();
        if is_repeated_get(&self.batch) {
            return Some((target, segment_bytes));
        }
        for _ in 1..BATCH_DATAGRAMS_MAX {
            if self.batch.len() + segment_bytes > BATCH_BYTES_MAX {
                break;
            }
            let start = self.batch.len();
            let Some(to) = self.endpoint.poll_transmit(now_ns, &mut self.batch) else {
                break;
            };
            let bytes = self.batch.len() - start;
            if to != target || bytes > segment_bytes || is_repeated_get(&self.batch[start..]) {
                self.next = Some((to, self.batch.split_off(start)));
                break;
            }
            if bytes < segment_bytes {
                break;
            }
        }
        Some((target, segment_bytes))
    }

    /// Returns the time to the next timeout, and notes it as that for which `sleeper` waits.
    pub fn time_to_timeout(&mut self, sleeper: Sleeper) -> Option<Duration> {
        let next_ns = match self.has_unsent {
            true => Some(0),
            false => self.endpoint.timeout_ns(),
        };
        self.awaited_ns[sleeper as usize] = next_ns;
        let left_ns = next_ns?.saturating_sub(self.now_ns());
        Some(Duration::from_nanos(left_ns))
    }

    /// Notes that the thread looks again soon in any case, so that no timeout needs to wake it.
    pub fn expect_turn(&mut self) {
        self.awaited_ns[Sleeper::Thread as usize] = Some(0);
    }

    /// Returns whether something is due earlier than that for which `sleeper` waits.
    pub fn has_earlier_timeout(&self, sleeper: Sleeper) -> bool {
        match (
            self.endpoint.timeout_ns(),
            self.awaited_ns[sleeper as usize],
        ) {
            (_, Some(0)) => false,
            _ if self.has_unsent => true,
            (Some(next_ns), Some(awaited_ns)) => next_ns < awaited_ns,
            (next_ns, None) => next_ns.is_some(),
            (None, _) => false,
        }
    }
}

/// Returns an IPv4 address in IPv6 form as IPv4, so that a peer has one name.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
