//! The nodes of a job, as Wind reaches them.

use super::Config;
use super::transfers::{self, Kind, Transfer, Transfers, Waiting};
use super::ways::{Way, Ways};
use crate::coherence::{Diffs, DsmError, EncodedDiff, Fabric, Memory, Update};
use crate::protocol::{Malformed, Violation};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::node::{Presence, Region};
use kumi_wind::protocol::{Lost, Message, Operation, diff};
use kumi_wind::{Class, Node, PeerId, Place, Secret, WindError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Number of the first region of shared memory among a node's regions. Groups number theirs from 1.
const FIRST_REGION: u32 = 0x4453_0000;

/// Number of the first region that has the replicas of one. There are as many numbers between both.
const FIRST_REPLICA: u32 = 0x4454_0000;

/// Time between two looks at the other nodes while this one waits. A look also sends a message, so
/// that a node which is gone does not answer it.
const LOOK: Duration = Duration::from_millis(300);

/// Message that only wants to be acknowledged. No other message is empty.
const SIGN_OF_LIFE: [u8; 0] = [];

/// Shortest update that goes to all nodes as one put. Shorter ones share datagrams with others.
const LONG_BYTES: usize = 4 << 10;

/// Most bytes of updates that go to each node with the messages of an exchange: of updates shorter
/// than [`LONG_BYTES`], and of any for a lone other node.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
const LONE_BYTES_MAX: usize = 48 << 10;

/// Most bytes of longer updates that may go so, counted once for each receiver.
const MESSAGES_BYTES_MAX: usize = 256 << 10;

/// Wind's node, with the names of the other nodes of the job.
pub struct WindFabric {
    node: Node,
    secret: Secret,
    /// Nodes by the addresses from which they may send.
    names: HashMap<SocketAddr, usize>,
    peers: Vec<Option<PeerId>>,
    /// Messages that were handled.
    handled: AtomicU64,
    /// Time after which a node that is silent, or has left, is lost.
    loss_timeout: Duration,
    /// Nodes that have left, and when this node noticed it.
    left: Mutex<HashMap<usize, Instant>>,
    losses: Mutex<Losses>,
    /// Regions that peers may use, for as long as they are here. Their keys are the same on all
    /// nodes.
    regions: RwLock<Vec<Registered>>,
    /// Transfers that wait for their answers, if they go by messages.
    by_messages: Option<Waiting>,
    ways: Mutex<Ways>,
}

/// Nodes that are lost.
#[derive(Default)]
struct Losses {
    /// Each one with the reason, in the order in which this node learned of them.
    lost: Vec<(usize, String)>,
    /// Those without which the job goes on.
    given_up: BTreeSet<usize>,
}

impl Losses {
    /// Returns the error of the first one that was not given up.
    fn check(&self) -> Result<(), DsmError> {
        let mut lost = self.lost.iter();
        let first = lost.find(|(node, _)| !self.given_up.contains(node));
        first.map_or(Ok(()), |(node, reason)| {
            Err(DsmError::Lost {
                node: *node,
                reason: reason.clone(),
            })
        })
    }
}

/// Puts that were started.
#[derive(Default)]
pub struct Puts {
    /// Operations of Wind, by home.
    operations: Vec<(usize, PeerId, Vec<u64>)>,
    /// Numbers of transfers by messages.
    messages: Vec<u32>,
}

/// Regions of Wind that belong to a region of shared memory.
struct Registered {
    pages: Region,
    replica: Option<Region>,
}

impl Registered {
    fn memory(&self, memory: Memory) -> Option<&Region> {
        match memory {
            Memory::Pages => Some(&self.pages),
            Memory::Replica => self.replica.as_ref(),
        }
    }
}

impl WindFabric {
    /// Connects to the other nodes, at the first address of each.
    pub fn new(
        node: Node,
        me: usize,
        config: &Config,
        addresses: &[Vec<SocketAddr>],
    ) -> Result<Self, WindError> {
        let connect = |(number, addresses): (usize, &Vec<SocketAddr>)| {
            let first = addresses.first().filter(|_| number != me);
            first.map(|address| node.connect(*address)).transpose()
        };
        let names = addresses
            .iter()
            .enumerate()
            .flat_map(|(number, addresses)| {
                addresses.iter().map(move |address| (*address, number))
            });
        let peers = addresses.iter().enumerate().map(connect);
        Ok(Self {
            peers: peers.collect::<Result<_, _>>()?,
            node,
            secret: config.secret,
            names: names.collect(),
            handled: AtomicU64::new(0),
            loss_timeout: config.loss_timeout,
            left: Mutex::new(HashMap::new()),
            losses: Mutex::default(),
            regions: RwLock::new(Vec::new()),
            ways: Mutex::default(),
            by_messages: match config.transfers {
                Transfers::Direct => None,
                Transfers::ByMessages => Some(Waiting::default()),
            },
        })
    }

    /// Returns Wind's node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the number of the node at a peer.
    pub fn number(&self, peer: PeerId) -> Option<usize> {
        let known = self.peers.iter().position(|known| *known == Some(peer));
        known.or_else(|| {
            let address = self.node.peer_address(peer)?;
            self.names.get(&address).copied()
        })
    }

    /// Notes that a message was handled, for which the program may wait.
    pub fn note_handled(&self) {
        self.handled.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives the other nodes access to a region's bytes, and to those of its replicas.
    pub fn register(
        &self,
        number: usize,
        memory: SharedMemory,
        replica: Option<SharedMemory>,
    ) -> Result<(), DsmError> {
        let register = |first: u32, memory| {
            let name = first + number as u32;
            let key = Node::derived_key(&self.secret, u64::from(name));
            let region = self.node.register_as(name, key, memory);
            region.ok_or_else(|| DsmError::Argument(format!("region {number} exists")))
        };
        let registered = Registered {
            pages: register(FIRST_REGION, memory)?,
            replica: replica
                .map(|replica| register(FIRST_REPLICA, replica))
                .transpose()?,
        };
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(registered);
        Ok(())
    }

    fn place(&self, region: usize, memory: Memory, offset: u64) -> Result<Place, DsmError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let registered = regions.get(region);
        let region = registered.and_then(|registered| registered.memory(memory));
        let region = region.ok_or_else(|| DsmError::Argument("no such region".to_owned()))?;
        Ok(region.place(offset))
    }

    /// Sends a transfer, and returns its number.
    fn start_transfer(
        &self,
        waiting: &Waiting,
        node: usize,
        transfer: Transfer<'_>,
    ) -> Result<u32, DsmError> {
        let number = waiting.number();
        let transfer = Transfer { number, ..transfer };
        self.send(node, transfer.encode())?;
        self.transmit();
        Ok(number)
    }

    /// Waits for the answer of a transfer.
    fn finish_transfer(&self, waiting: &Waiting, number: u32) -> Result<Vec<u8>, DsmError> {
        self.wait_until(&|| waiting.has(number), true)?;
        Ok(waiting.take(number).unwrap_or_default())
    }

    /// Executes a transfer of another node, or takes its answer.
    pub fn handle_transfer(&self, from: usize, message: &[u8]) -> Result<(), DsmError> {
        let malformed = || DsmError::from(Violation::from(Malformed(message.len())));
        let transfer = transfers::decode(message).ok_or_else(malformed)?;
        if transfer.kind == Kind::Answer {
            let waiting = self.by_messages.as_ref().ok_or_else(malformed)?;
            waiting.answer(transfer.number, transfer.rest.to_vec());
            return Ok(());
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let registered = regions.get(transfer.place.0);
        let region = registered.and_then(|registered| registered.memory(transfer.place.1));
        let answer = region.and_then(|region| transfers::execute(&transfer, region.memory()));
        drop(regions);
        let answer = Transfer {
            kind: Kind::Answer,
            rest: &answer.ok_or_else(malformed)?,
            ..transfer
        };
        self.send(from, answer.encode())
    }

    fn peer(&self, node: usize) -> Result<PeerId, DsmError> {
        let peer = self.peers.get(node).copied().flatten();
        peer.ok_or_else(|| DsmError::Argument(format!("node {node} is no other node of the job")))
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a node is lost, if it was not before. Returns the error of the first one that was
    /// not given up.
    pub fn note_lost(&self, node: usize, reason: &str) -> DsmError {
        let mut losses = self.losses();
        if losses.lost.iter().all(|(lost, _)| *lost != node) {
            losses.lost.push((node, reason.to_owned()));
        }
        let first = losses.check().err();
        first.unwrap_or_else(|| DsmError::Lost {
            node,
            reason: reason.to_owned(),
        })
    }

    /// Returns the other nodes that were not given up.
    fn others(&self) -> Vec<(usize, PeerId)> {
        let losses = self.losses();
        let peers = self.peers.iter().enumerate();
        let peers = peers.filter_map(|(number, peer)| Some((number, (*peer)?)));
        peers
            .filter(|(number, _)| !losses.given_up.contains(number))
            .collect()
    }

    fn failed(&self, node: usize) -> impl Fn(WindError) -> DsmError + '_ {
        move |error| match error {
            WindError::Lost(_) => self.note_lost(node, &error.to_string()),
            error => DsmError::Argument(format!("node {node}: {error}")),
        }
    }

    /// Waits until the others have what was sent to them, or would be lost.
    pub fn drain(&self) {
        let limit = self.loss_timeout;
        let began = Instant::now();
        for (_, peer) in self.others() {
            let left = limit.saturating_sub(began.elapsed());
            // A node that is gone needs nothing more.
            let _ = self.node.flush(peer, Some(left));
        }
    }

    /// Returns whether a node that has closed its session did so a short time ago.
    fn is_leaving(&self, node: usize) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.entry(node).or_insert_with(Instant::now).elapsed() < self.loss_timeout
    }

    /// Sends a sign of life to each node, and notes those that are gone.
    fn look(&self) {
        for (number, peer) in self.others() {
            let sign = || {
                let sign = Message::through(Class::Unordered, SIGN_OF_LIFE.to_vec());
                self.node.try_send(peer, sign).map(drop)
            };
            match self.node.check(peer).and_then(|()| sign()) {
                // It may have left after the call that this node still waits for, whose last
                // message is in flight.
                Err(WindError::Lost(Lost::Closed)) if self.is_leaving(number) => {}
                Err(error) => {
                    self.note_lost(number, &error.to_string());
                }
                Ok(()) => {}
            }
        }
    }

    /// Waits until `is_done` returns true. With `ends_at_loss`, a loss is an error.
    fn wait_until(&self, is_done: &dyn Fn() -> bool, ends_at_loss: bool) -> Result<(), DsmError> {
        let mut looked_at = Instant::now();
        loop {
            let handled = self.handled.load(Ordering::SeqCst);
            if is_done() {
                return Ok(());
            }
            if ends_at_loss {
                self.check()?;
            }
            let has_changed = || self.handled.load(Ordering::SeqCst) != handled;
            self.node.wait_until(Some(LOOK), has_changed);
            if looked_at.elapsed() >= LOOK {
                self.look();
                looked_at = Instant::now();
            }
        }
    }
}

impl Fabric for WindFabric {
    fn get(
        &self,
        node: usize,
        (region, memory): (usize, Memory),
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DsmError> {
        if let Some(waiting) = &self.by_messages {
            let get = Transfer {
                kind: Kind::Get,
                number: 0,
                place: (region, memory),
                offset,
                rest: &(into.len() as u32).to_be_bytes(),
            };
            let number = self.start_transfer(waiting, node, get)?;
            let bytes = self.finish_transfer(waiting, number)?;
            if bytes.len() != into.len() {
                return Err(self.note_lost(node, "it has answered with too few bytes"));
            }
            into.copy_from_slice(&bytes);
            return Ok(());
        }
        let peer = self.peer(node)?;
        let place = self.place(region, memory, offset)?;
        let bytes = self.node.get(peer, place, into.len());
        into.copy_from_slice(&bytes.map_err(self.failed(node))?);
        Ok(())
    }

    type Puts = Puts;

    fn start_puts(&self, diffs: Vec<EncodedDiff>, puts: &mut Self::Puts) -> Result<(), DsmError> {
        if let Some(waiting) = &self.by_messages {
            for part in diffs {
                let diff = Transfer {
                    kind: Kind::Diff,
                    number: 0,
                    place: (part.region, part.memory),
                    offset: part.offset,
                    rest: &part.runs,
                };
                let number = self.start_transfer(waiting, part.home, diff)?;
                puts.messages.push(number);
            }
            return Ok(());
        }
        let mut by_home: BTreeMap<usize, Vec<EncodedDiff>> = BTreeMap::new();
        for part in diffs {
            by_home.entry(part.home).or_default().push(part);
        }
        for (home, parts) in by_home {
            let peer = self.peer(home)?;
            let operations = parts.into_iter().map(|part| {
                let place = self.place(part.region, part.memory, part.offset)?;
                Ok((place, Operation::PutDiff(part.runs)))
            });
            let operations = operations.collect::<Result<Vec<_>, DsmError>>()?;
            let numbers = self.node.start_all(peer, operations.into_iter());
            let numbers = numbers.map_err(self.failed(home))?;
            puts.operations.push((home, peer, numbers));
        }
        Ok(())
    }

    fn finish_puts(&self, puts: Self::Puts) -> Result<(), DsmError> {
        if let Some(waiting) = &self.by_messages {
            for number in puts.messages {
                self.finish_transfer(waiting, number)?;
            }
        }
        for (home, peer, numbers) in puts.operations {
            for number in numbers {
                let result = self.node.wait_result(peer, number, None);
                result.map_err(self.failed(home))?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), DsmError> {
        self.losses().check()
    }

    fn push(&self, updates: &[Update]) -> Result<(), DsmError> {
        let others = self.others();
        if let Some(waiting) = &self.by_messages {
            let mut numbers = Vec::new();
            for (node, _) in &others {
                for update in updates {
                    let bytes = Transfer {
                        kind: Kind::Bytes,
                        number: 0,
                        place: (update.region, Memory::Pages),
                        offset: update.offset,
                        rest: &update.bytes,
                    };
                    numbers.push(self.start_transfer(waiting, *node, bytes)?);
                }
            }
            for number in numbers {
                self.finish_transfer(waiting, number)?;
            }
            return Ok(());
        }
        let (long, short): (Vec<&Update>, Vec<&Update>) = updates
            .iter()
            .partition(|update| update.bytes.len() >= LONG_BYTES);
        let mut puts = Puts::default();
        for (number, _) in &others {
            let mut diffs = Diffs::new(self.diff_bytes_max(), Memory::Pages);
            for update in &short {
                diffs.push(*number, update.region, update.offset, &update.bytes);
            }
            self.start_puts(diffs.parts, &mut puts)?;
        }
        for update in long {
            let place = self.place(update.region, Memory::Pages, update.offset)?;
            let targets: Vec<(PeerId, Place)> =
                others.iter().map(|other| (other.1, place)).collect();
            if let Err(error) = self.node.put_to_all(&targets, &update.bytes) {
                // The error does not say whose it is.
                for (node, peer) in &others {
                    self.node.check(*peer).map_err(self.failed(*node))?;
                }
                return Err(DsmError::Argument(format!(
                    "cannot update the other nodes: {error}"
                )));
            }
        }
        self.finish_puts(puts)
    }

    fn prefers_messages(&self, updates: &[Update]) -> bool {
        let encoded = |update: &Update| update.bytes.len() + diff::RUN_HEADER_BYTES;
        let total_bytes: usize = updates.iter().map(encoded).sum();
        let is_short = |update: &Update| update.bytes.len() < LONG_BYTES;
        if self.by_messages.is_some() || updates.is_empty() {
            return false;
        }
        let others = self.others().len();
        if total_bytes <= MESSAGE_BYTES_MAX && updates.iter().all(is_short) {
            return true;
        }
        match others {
            1 => total_bytes <= LONE_BYTES_MAX,
            _ if total_bytes * others > MESSAGES_BYTES_MAX => false,
            _ => self.ways().choose(total_bytes, Instant::now()) == Way::Messages,
        }
    }

    fn end_exchange(&self) {
        self.ways().end(Instant::now());
    }

    fn diff_bytes_max(&self) -> usize {
        self.node.operation_bytes_max()
    }

    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError> {
        debug_assert!(!message.is_empty(), "an empty message is a sign of life");
        let peer = self.peer(to)?;
        let message = Message::through(Class::Ordered, message);
        let sent = self.node.submit(peer, message);
        sent.map(drop).map_err(self.failed(to))
    }

    fn transmit(&self) {
        self.node.send_waiting();
    }

    type Expectation<'a> = Presence<'a>;

    fn expect_wait(&self) -> Presence<'_> {
        self.node.expect_wait()
    }

    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError> {
        self.wait_until(is_done, true)
    }

    fn wait_despite_losses(&self, is_done: &dyn Fn() -> bool) {
        // No loss ends it.
        let _ = self.wait_until(is_done, false);
    }

    fn lost(&self) -> Vec<usize> {
        let losses = self.losses();
        let mut lost: Vec<usize> = losses.lost.iter().map(|(node, _)| *node).collect();
        lost.sort_unstable();
        lost
    }

    fn lose(&self, node: usize, reason: &str) {
        self.note_lost(node, reason);
    }

    fn give_up(&self, nodes: &[usize]) -> Result<(), DsmError> {
        for node in nodes {
            self.note_lost(*node, "the other nodes have lost it");
            self.losses().given_up.insert(*node);
            if let Ok(peer) = self.peer(*node) {
                self.node.disconnect(peer);
            }
        }
        for (node, peer) in self.others() {
            let flushed = self.node.flush(peer, None);
            flushed.map_err(self.failed(node))?;
        }
        self.check()
    }

    fn drop_regions(&self, first: usize) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let kept = first.min(regions.len());
        for Registered { pages, replica } in regions.drain(kept..) {
            self.node.deregister(&pages);
            replica
                .iter()
                .for_each(|replica| self.node.deregister(replica));
        }
    }
}
