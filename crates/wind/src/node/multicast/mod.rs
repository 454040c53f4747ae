//! A put to several peers.
//!
//! ```text
//!   put_to_all ──► IP multicast (`network`)    if all peers hear it
//!              ├─► relay (`pass_on`, `relay`)  each peer passes the data on
//!              └─► a put to each peer          short data, and what is left
//! ```
//!
//! Which of the first two is faster depends on switches and hosts, so both are measured (`ways`).

pub mod network;
mod pass_on;
pub mod relay;
#[cfg(test)]
mod tests;
mod ways;

pub use network::listen::Ending;

use super::{Node, Shared, WindError};
use crate::protocol::{Config, Endpoint, Operation, PeerId, Place, Regions};
use network::Network;
use network::listen::Listeners;
use network::wire::KIND_MIN;
use relay::{CHUNK_BYTES, Relay, TARGETS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Instant;
use ways::{RELAY_BYTES_MIN, Way, Ways};

/// Length of a put from which on ways are compared, in bytes. Below, it is put to each peer.
const COMPARED_BYTES_MIN: usize = 4 << 10;

/// Puts to many peers, of this node and of others.
pub struct Multicasts {
    relay: Relay,
    /// Transfers by IP multicast.
    pub network: Network,
    /// Choice between both.
    pub ways: Ways,
}

impl Multicasts {
    pub fn new(config: &Config, node: Weak<Shared>) -> Self {
        Self {
            relay: Relay::default(),
            network: Network::new(Listeners::new(node, config.secret, config.seal)),
            ways: Ways::new(config.multicast),
        }
    }

    /// Handles the messages that have arrived, as far as the next peers have room.
    pub fn work(
        &mut self,
        endpoint: &mut Endpoint<SocketAddr>,
        regions: &mut dyn Regions,
        now_ns: u64,
    ) {
        while let Some((peer, delivery)) = endpoint.peek_relay() {
            if self.relay.must_wait(delivery, endpoint) {
                return;
            }
            let Some(delivery) = endpoint.poll_relay() else {
                return;
            };
            if matches!(delivery.header.first(), Some(KIND_MIN..)) {
                self.network
                    .handle(peer, &delivery, endpoint, regions, now_ns);
            } else {
                let _ = self.relay.handle(peer, delivery, endpoint, regions, now_ns);
            }
        }
    }

    /// Ends what depends on a lost peer.
    pub fn note_lost(&mut self, peer: PeerId, endpoint: &mut Endpoint<SocketAddr>) {
        self.relay.note_lost(peer, endpoint);
        self.network.listeners.note_lost(peer);
    }

    /// Leaves all groups.
    pub fn close(&mut self) -> Ending {
        self.network.listeners.close()
    }
}

impl Node {
    /// Writes `bytes` at a place of each peer, and waits until they are in the memory of all. Long
    /// data goes by IP multicast, or is passed on from each peer to the next one in the given
    /// order; either way, a link carries it once. Shorter data goes by IP multicast, or is put to
    /// each peer.
    ///
    /// # Errors
    /// As [`Self::put`], of the first peer that fails. The others have the bytes.
    pub fn put_to_all(&self, targets: &[(PeerId, Place)], bytes: &[u8]) -> Result<(), WindError> {
        let all = (0..bytes.len().div_ceil(CHUNK_BYTES) as u32).collect();
        let peers: BTreeSet<PeerId> = targets.iter().map(|(peer, _)| *peer).collect();
        let is_long = bytes.len() >= COMPARED_BYTES_MIN;
        // A peer with two places is no member of a group, and would get chunks from two sides.
        if !is_long || peers.len() != targets.len() || !(2..=TARGETS_MAX).contains(&peers.len()) {
            return self.put_chunks(targets, bytes, all);
        }
        let peers: Vec<PeerId> = peers.into_iter().collect();
        let way = self.act(|state| {
            let now_ns = state.now_ns();
            state.multicast.ways.choose(&peers, bytes.len(), now_ns)
        });
        let began = Instant::now();
        if way == Way::Network {
            match self.put_by_network(targets, bytes)? {
                network::Outcome::Done(failures) => {
                    self.record(&peers, way, bytes.len(), began);
                    return first_failure(targets, failures);
                }
                network::Outcome::Unheard => {
                    let mut state = self.state();
                    let now_ns = state.now_ns();
                    state.multicast.ways.note_unheard(&peers, now_ns);
                }
                network::Outcome::Unable => {}
            }
        }
        let began = Instant::now();
        if bytes.len() < RELAY_BYTES_MIN {
            self.put_chunks(targets, bytes, all)?;
            self.record(&peers, Way::Each, bytes.len(), began);
            return Ok(());
        }
        let unplaced = self.put_by_relay(targets, bytes)?;
        if unplaced.is_empty() {
            self.record(&peers, Way::Relay, bytes.len(), began);
        }
        self.put_chunks(targets, bytes, unplaced)
    }

    fn record(&self, peers: &[PeerId], way: Way, bytes: usize, began: Instant) {
        let rate = bytes as f64 / began.elapsed().as_secs_f64();
        self.state().multicast.ways.record(peers, bytes, way, rate);
    }

    /// Puts chunks to each peer. A peer that fails keeps the others from nothing.
    fn put_chunks(
        &self,
        targets: &[(PeerId, Place)],
        bytes: &[u8],
        numbers: Vec<u32>,
    ) -> Result<(), WindError> {
        let part_bytes = self.state().endpoint.operation_bytes_max();
        let mut started = Vec::new();
        let mut failed: BTreeMap<PeerId, WindError> = BTreeMap::new();
        for number in numbers {
            let start = number as usize * CHUNK_BYTES;
            let data = &bytes[start..bytes.len().min(start + CHUNK_BYTES)];
            for (peer, place) in targets {
                if failed.contains_key(peer) {
                    continue;
                }
                // The parts to one peer share system calls.
                let parts = data.chunks(part_bytes).enumerate().map(|(index, part)| {
                    let at = place.plus((start + index * part_bytes) as u64);
                    (at, Operation::Put(part.to_vec()))
                });
                let mut numbers = Vec::new();
                let outcome = self.start_batch(*peer, parts, &mut numbers);
                started.extend(numbers.into_iter().map(|number| (*peer, number)));
                if let Err(error) = outcome {
                    failed.insert(*peer, error);
                }
            }
        }
        // Every result is taken, also after an error, so none stays behind.
        for (peer, operation) in started {
            if let Err(error) = self.wait_result(peer, operation, None) {
                failed.entry(peer).or_insert(error);
            }
        }
        first_failure(targets, failed)
    }
}

fn first_failure(
    targets: &[(PeerId, Place)],
    mut failures: BTreeMap<PeerId, WindError>,
) -> Result<(), WindError> {
    let first = targets.iter().find_map(|(peer, _)| failures.remove(peer));
    first.map_or(Ok(()), Err)
}
