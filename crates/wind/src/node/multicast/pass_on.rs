//! The root of a relay: sends chunks to the first peer, and waits for their outcomes.

use super::relay::{CHUNK_BYTES, ChunkName, Outcome, Target, chunk};
use crate::node::{Node, WindError, random, system};
use crate::protocol::{PeerId, Place, Rejected};
use std::time::Duration;

/// Chunks that may be on their way at the same time. They fill the way through a dozen peers.
const CHUNKS_MAX: usize = 128;

/// Time without an outcome after which the root sends the rest itself. A peer that is lost or
/// stopped is reported by the one before it sooner, after the time for a silent peer; a first chunk
/// takes long through many slow links.
const PROGRESS: Duration = Duration::from_secs(10);

impl Node {
    /// Passes the data on from peer to peer. Returns the numbers of the chunks that may not be
    /// everywhere, which are all if a peer is lost already: it would break the way.
    pub(super) fn put_by_relay(
        &self,
        targets: &[(PeerId, Place)],
        bytes: &[u8],
    ) -> Result<Vec<u32>, WindError> {
        match self.targets(targets) {
            Ok(list) => self.relay(targets[0].0, &list, bytes),
            Err(_) => Ok((0..bytes.len().div_ceil(CHUNK_BYTES) as u32).collect()),
        }
    }

    /// Passes the chunks on. Returns the numbers of those that may not be everywhere.
    fn relay(&self, first: PeerId, list: &[Target], bytes: &[u8]) -> Result<Vec<u32>, WindError> {
        let transfer = random().map_err(system("cannot read random numbers"))?;
        let transfer = u64::from_be_bytes(transfer);
        self.state().multicast.relay.begin(transfer);
        let unplaced = self.pass_on(transfer, first, list, bytes);
        self.state().multicast.relay.end(transfer);
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
                let outcome = state.multicast.relay.outcome(*name)?;
                Some((*name, outcome))
            });
            Ok(found)
        });
        outcome.ok()
    }
}
