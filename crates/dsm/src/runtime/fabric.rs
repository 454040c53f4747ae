//! The nodes of a job, as Wind reaches them.

use super::Config;
use crate::coherence::{Diffs, DsmError, EncodedDiff, Fabric, Update};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::node::Region;
use kumi_wind::protocol::{Lost, Message, Operation};
use kumi_wind::{Class, Node, PeerId, Place, Secret, WindError};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Number of the first region of shared memory among a node's regions. Groups number theirs from 1.
const FIRST_REGION: u32 = 0x4453_0000;

/// Time between two looks at the other nodes while this one waits. A look also sends a message, so
/// that a node which is gone does not answer it.
const LOOK: Duration = Duration::from_millis(300);

/// Message that only wants to be acknowledged. No other message is empty.
const SIGN_OF_LIFE: [u8; 0] = [];

/// Shortest update that goes to all nodes as one put. Shorter ones share datagrams with others.
const LONG_BYTES: usize = 4 << 10;

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
    /// The first node that was lost, with the reason.
    lost: Mutex<Option<(usize, String)>>,
    /// Regions that peers may use, for as long as this value lives. Their keys are the same on all
    /// nodes.
    regions: RwLock<Vec<Region>>,
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
            lost: Mutex::new(None),
            regions: RwLock::new(Vec::new()),
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

    /// Gives the other nodes access to a region's bytes.
    pub fn register(&self, number: usize, memory: SharedMemory) -> Result<(), DsmError> {
        let name = FIRST_REGION + number as u32;
        let key = Node::derived_key(&self.secret, u64::from(name));
        let region = self.node.register_as(name, key, memory);
        let region = region.ok_or_else(|| DsmError::Argument(format!("region {number} exists")))?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(region);
        Ok(())
    }

    fn place(&self, region: usize, offset: u64) -> Place {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions[region].place(offset)
    }

    fn peer(&self, node: usize) -> Result<PeerId, DsmError> {
        let peer = self.peers.get(node).copied().flatten();
        peer.ok_or_else(|| DsmError::Argument(format!("node {node} is no other node of the job")))
    }

    /// Notes that a node is lost, if none was before. Returns the first one's error.
    pub fn lose(&self, node: usize, reason: String) -> DsmError {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let (node, reason) = lost.get_or_insert((node, reason)).clone();
        DsmError::Lost { node, reason }
    }

    fn failed(&self, node: usize) -> impl Fn(WindError) -> DsmError + '_ {
        move |error| self.lose(node, error.to_string())
    }

    /// Waits until the others have what was sent to them, or would be lost.
    pub fn drain(&self) {
        let limit = self.loss_timeout;
        let began = Instant::now();
        for peer in self.peers.iter().flatten() {
            let left = limit.saturating_sub(began.elapsed());
            // A node that is gone needs nothing more.
            let _ = self.node.flush(*peer, Some(left));
        }
    }

    /// Returns whether a node that has closed its session did so a short time ago.
    fn is_leaving(&self, node: usize) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.entry(node).or_insert_with(Instant::now).elapsed() < self.loss_timeout
    }

    /// Sends a sign of life to each node, and finds those that are gone.
    fn look(&self) -> Result<(), DsmError> {
        for (number, peer) in self.peers.iter().enumerate() {
            let Some(peer) = *peer else { continue };
            match self.node.check(peer) {
                // It may have left after the call that this node still waits for, whose last
                // message is under way.
                Err(WindError::Lost(Lost::Closed)) if self.is_leaving(number) => continue,
                outcome => outcome.map_err(self.failed(number))?,
            }
            let sign = Message::through(Class::Unordered, SIGN_OF_LIFE.to_vec());
            let sent = self.node.try_send(peer, sign);
            sent.map_err(self.failed(number))?;
        }
        self.check()
    }
}

impl Fabric for WindFabric {
    fn get(
        &self,
        home: usize,
        region: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DsmError> {
        let peer = self.peer(home)?;
        let bytes = self.node.get(peer, self.place(region, offset), into.len());
        into.copy_from_slice(&bytes.map_err(self.failed(home))?);
        Ok(())
    }

    type Puts = Vec<(usize, PeerId, Vec<u64>)>;

    fn start_puts(&self, diffs: Vec<EncodedDiff>, puts: &mut Self::Puts) -> Result<(), DsmError> {
        let mut by_home: BTreeMap<usize, Vec<EncodedDiff>> = BTreeMap::new();
        for part in diffs {
            by_home.entry(part.home).or_default().push(part);
        }
        for (home, parts) in by_home {
            let peer = self.peer(home)?;
            let operations = parts.into_iter().map(|part| {
                let place = self.place(part.region, part.offset);
                (place, Operation::PutDiff(part.runs))
            });
            let numbers = self.node.start_all(peer, operations);
            puts.push((home, peer, numbers.map_err(self.failed(home))?));
        }
        Ok(())
    }

    fn finish_puts(&self, puts: Self::Puts) -> Result<(), DsmError> {
        for (home, peer, numbers) in puts {
            for number in numbers {
                let result = self.node.wait_result(peer, number, None);
                result.map_err(self.failed(home))?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), DsmError> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match lost.clone() {
            Some((node, reason)) => Err(DsmError::Lost { node, reason }),
            None => Ok(()),
        }
    }

    fn push(&self, updates: Vec<Update>) -> Result<(), DsmError> {
        let others = self.peers.iter().enumerate();
        let others: Vec<(usize, PeerId)> = others
            .filter_map(|(number, peer)| Some((number, (*peer)?)))
            .collect();
        let (long, short): (Vec<Update>, Vec<Update>) = updates
            .into_iter()
            .partition(|update| update.bytes.len() >= LONG_BYTES);
        let mut puts = Vec::new();
        for (number, _) in &others {
            let mut diffs = Diffs::new(self.diff_bytes_max());
            for update in &short {
                diffs.push(*number, update.region, update.offset, &update.bytes);
            }
            self.start_puts(diffs.parts, &mut puts)?;
        }
        for update in long {
            let place = self.place(update.region, update.offset);
            let targets: Vec<(PeerId, Place)> =
                others.iter().map(|other| (other.1, place)).collect();
            if let Err(error) = self.node.put_to_all(&targets, &update.bytes) {
                // The error does not say whose it is.
                self.look()?;
                return Err(DsmError::Argument(format!(
                    "cannot update the other nodes: {error}"
                )));
            }
        }
        self.finish_puts(puts)
    }

    fn diff_bytes_max(&self) -> usize {
        self.node.operation_bytes_max()
    }

    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError> {
        debug_assert!(!message.is_empty(), "an empty message is a sign of life");
        let peer = self.peer(to)?;
        let message = Message::through(Class::Ordered, message);
        self.check()?;
        let sent = self.node.send_without_waiting(peer, message);
        sent.map(drop).map_err(self.failed(to))
    }

    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError> {
        let mut looked_at = Instant::now();
        loop {
            let handled = self.handled.load(Ordering::SeqCst);
            if is_done() {
                return Ok(());
            }
            self.check()?;
            let has_changed = || self.handled.load(Ordering::SeqCst) != handled;
            self.node.wait_until(Some(LOOK), has_changed);
            if looked_at.elapsed() >= LOOK {
                self.look()?;
                looked_at = Instant::now();
            }
        }
    }
}
