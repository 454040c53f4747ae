//! A put to several peers.

use super::relay::{CHUNK_BYTES, ChunkName, Outcome, TARGETS_MAX, Target, chunk};
use super::{Node, WindError, random, system};
use crate::protocol::{Operation, PeerId, Place, Rejected};
use std::collections::BTreeMap;
use std::time::Duration;

/// Length of a put from which on it is passed on from peer to peer, in bytes. Below, a put to each
/// peer takes less time than the way through all of them.
const RELAY_BYTES_MIN: usize = 8 * CHUNK_BYTES;

/// Chunks that may be on their way at the same time. They fill the way through a dozen peers.
const CHUNKS_MAX: usize = 128;

/// Time without an outcome after which the root sends the rest itself. A peer that is lost or
/// stopped is reported by the one before it sooner, after the time for a silent peer; a first chunk
/// takes long through many slow links.
const PROGRESS: Duration = Duration::from_secs(10);

impl Node {
    /// Writes `bytes` at a place of each peer, and waits until they are in the memory of all. Long
    /// data is passed on from each peer to the next one in the given order, so each link carries
    /// it once.
    ///
    /// # Errors
    /// As [`Self::put`], of the first peer that fails. The others have the bytes.
    pub fn put_to_all(&self, targets: &[(PeerId, Place)], bytes: &[u8]) -> Result<(), WindError> {
        let all = || (0..bytes.len().div_ceil(CHUNK_BYTES) as u32).collect();
        let is_long = bytes.len() >= RELAY_BYTES_MIN;
        let has_way = is_long && (2..=TARGETS_MAX).contains(&targets.len());
        // A peer that is lost already would break the way.
        let unplaced = match has_way.then(|| self.targets(targets)) {
            Some(Ok(list)) => self.relay(targets[0].0, &list, bytes)?,
            _ => all(),
        };
        self.put_chunks(targets, bytes, &unplaced)
    }

    /// Passes the chunks on. Returns the numbers of those that may not be everywhere.
    fn relay(&self, first: PeerId, list: &[Target], bytes: &[u8]) -> Result<Vec<u32>, WindError> {
        let transfer = random().map_err(system("cannot read random numbers"))?;
        let transfer = u64::from_be_bytes(transfer);
        self.state().relay.begin(transfer);
        let unplaced = self.pass_on(transfer, first, list, bytes);
        self.state().relay.end(transfer);
        Ok(unplaced)
    }

    fn targets(&self, targets: &[(PeerId, Place)]) -> Result<Vec<Target>, WindError> {
        let state = self.state();
        let targets = targets.iter().map(|(peer, place)| {
            state.check(*peer)?;
            let address = state.endpoint.address(*peer).ok_or(Rejected::Peer)?;
            Ok(Target {
                address,
                place: *place,
            })
        });
        targets.collect()
    }

    fn pass_on(&self, transfer: u64, first: PeerId, list: &[Target], bytes: &[u8]) -> Vec<u32> {
        let mut chunks = (0..).zip(bytes.chunks(CHUNK_BYTES));
        let mut on_the_way: Vec<ChunkName> = Vec::new();
        let mut unplaced = Vec::new();
        let mut has_failed = false;
        loop {
            while on_the_way.len() < CHUNKS_MAX && !has_failed {
                let Some((number, data)) = chunks.next() else {
                    break;
                };
                let name = (transfer, number);
                match self.send_any(first, chunk(name, list, data)) {
                    Ok(_) => on_the_way.push(name),
                    Err(_) => {
                        has_failed = true;
                        unplaced.push(number);
                    }
                }
            }
            if on_the_way.is_empty() {
                break;
            }
            match self.wait_outcome(first, &on_the_way) {
                Some((name, Outcome::Placed)) => on_the_way.retain(|other| *other != name),
                Some((name, Outcome::Failed)) => {
                    on_the_way.retain(|other| *other != name);
                    unplaced.push(name.1);
                    has_failed = true;
                }
                None => {
                    // What was passed on may still arrive. It has the same bytes.
                    unplaced.extend(on_the_way.drain(..).map(|name| name.1));
                    has_failed = true;
                }
            }
        }
        unplaced.extend(chunks.map(|(number, _)| number));
        unplaced
    }

    /// Waits for the outcome of one of the chunks; `None` without progress.
    fn wait_outcome(&self, first: PeerId, names: &[ChunkName]) -> Option<(ChunkName, Outcome)> {
        let outcome = self.wait(Some(PROGRESS), |state| {
            state.check(first)?;
            let found = names.iter().find_map(|name| {
                let outcome = state.relay.outcome(*name)?;
                Some((*name, outcome))
            });
            Ok(found)
        });
        outcome.ok()
    }

    /// Puts chunks to each peer. A peer that fails keeps the others from nothing.
    fn put_chunks(
        &self,
        targets: &[(PeerId, Place)],
        bytes: &[u8],
        numbers: &[u32],
    ) -> Result<(), WindError> {
        let part_bytes = self.state().endpoint.operation_bytes_max();
        let mut started = Vec::new();
        let mut failed: BTreeMap<PeerId, WindError> = BTreeMap::new();
        for number in numbers {
            let start = *number as usize * CHUNK_BYTES;
            let data = &bytes[start..bytes.len().min(start + CHUNK_BYTES)];
            for (index, part) in data.chunks(part_bytes).enumerate() {
                for (peer, place) in targets {
                    if failed.contains_key(peer) {
                        continue;
                    }
                    let at = place.plus((start + index * part_bytes) as u64);
                    let room = self.wait_for_room(*peer);
                    let put = Operation::Put(part.to_vec());
                    match room.and_then(|()| self.start(*peer, at, put)) {
                        Ok(operation) => started.push((*peer, operation)),
                        Err(error) => drop(failed.insert(*peer, error)),
                    }
                }
            }
        }
        // Every result is taken, also after an error, so none stays behind.
        for (peer, operation) in started {
            if let Err(error) = self.wait_result(peer, operation, None) {
                failed.entry(peer).or_insert(error);
            }
        }
        let first = targets.iter().find_map(|(peer, _)| failed.remove(peer));
        first.map_or(Ok(()), Err)
    }
}
