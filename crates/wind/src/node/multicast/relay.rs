//! Puts to several peers: each peer passes the data on to the next one.
//!
//! ```text
//!   root ── chunk 0, 1, 2 … ──► first ── chunk 0, 1 … ──► second ──► … ──► last
//!        ◄─ placed 0 … ───────        ◄─ placed 0 … ─────         ◄─ … ──
//! ```
//!
//! A chunk is placed when it is in the memory of the peer and of all behind it. Each link carries
//! the data once, so a put to 15 peers takes the time of one and of 14 chunks. The root sends the
//! rest itself if a peer refuses, is lost, or makes no progress.

use crate::protocol::{
    Class, Delivery, Endpoint, Message, Mode, PeerId, Place, RegionKey, Regions, place_bytes,
};
use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};

/// Length of a chunk, in bytes: a few dozen datagrams, small beside what is worth a relay.
pub const CHUNK_BYTES: usize = 32 << 10;

/// Bytes to the next peer above which a relay takes no more chunks. The sender's credit then stops
/// it.
const FORWARD_BYTES_MAX: u64 = 1 << 20;

/// Most chunks that this node has passed on and that are not placed.
const PASSED_MAX: usize = 8192;

/// Most targets: their list is in each chunk.
pub const TARGETS_MAX: usize = 512;

const CHUNK: u8 = 1;
const PLACED: u8 = 2;
const FAILED: u8 = 3;

/// Length of a target in the list of a chunk.
const TARGET_BYTES: usize = 16 + 2 + 4 + 16 + 8;

/// A peer, and the place in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Address of the peer.
    pub address: SocketAddr,
    /// Place of the first byte of the transfer.
    pub place: Place,
}

/// Name of a chunk: its transfer, a random number, and its number in it.
pub type ChunkName = (u64, u32);

/// Outcome of a chunk at the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the memory of all targets.
    Placed,
    /// A peer could not place it or pass it on.
    Failed,
}

fn emit_name(kind: u8, name: ChunkName, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&name.0.to_be_bytes());
    out.extend_from_slice(&name.1.to_be_bytes());
}

/// Takes the first bytes.
pub fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

fn emit_target(target: &Target, out: &mut Vec<u8>) {
    let address = kumi_sys::udp::to_ipv6_mapped(target.address);
    out.extend_from_slice(&address.ip().octets());
    out.extend_from_slice(&target.address.port().to_be_bytes());
    emit_place(&target.place, out);
}

/// Writes a place.
pub fn emit_place(place: &Place, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.region.to_be_bytes());
    out.extend_from_slice(&place.key);
    out.extend_from_slice(&place.offset.to_be_bytes());
}

fn parse_target(bytes: &mut &[u8]) -> Option<Target> {
    let ip = Ipv6Addr::from(*take::<16>(bytes)?);
    let port = u16::from_be_bytes(*take(bytes)?);
    Some(Target {
        address: SocketAddr::new(ip.to_canonical(), port),
        place: parse_place(bytes)?,
    })
}

/// Reads a place.
pub fn parse_place(bytes: &mut &[u8]) -> Option<Place> {
    let region = u32::from_be_bytes(*take(bytes)?);
    let key: RegionKey = *take(bytes)?;
    let offset = u64::from_be_bytes(*take(bytes)?);
    Some(Place {
        region,
        key,
        offset,
    })
}

fn message(header: Vec<u8>, data: Vec<u8>) -> Message {
    Message {
        class: Class::Unordered,
        mode: Mode::Relay,
        header,
        data: vec![data],
        place: None,
    }
}

/// Returns the message with a chunk for the first of `targets`, who passes it on to the others.
pub fn chunk(name: ChunkName, targets: &[Target], data: &[u8]) -> Message {
    let mut header = Vec::with_capacity(13 + targets.len() * TARGET_BYTES);
    emit_name(CHUNK, name, &mut header);
    targets
        .iter()
        .for_each(|target| emit_target(target, &mut header));
    message(header, data.to_vec())
}

/// Chunks that this node has passed on, and the outcomes of its own.
#[derive(Debug, Default)]
pub struct Relay {
    /// The peer that sent a chunk, by the peer that has it now and its name.
    passed: HashMap<(PeerId, ChunkName), PeerId>,
    /// Outcomes of chunks of this node's transfers.
    outcomes: HashMap<ChunkName, Outcome>,
    /// Transfers of this node.
    own: Vec<u64>,
}

impl Relay {
    /// Begins a transfer of this node.
    pub fn begin(&mut self, transfer: u64) {
        self.own.push(transfer);
    }

    /// Ends a transfer of this node, whose outcomes are of no interest any more.
    pub fn end(&mut self, transfer: u64) {
        self.own.retain(|own| *own != transfer);
        self.outcomes.retain(|name, _| name.0 != transfer);
    }

    /// Takes the outcome of a chunk.
    pub fn outcome(&mut self, name: ChunkName) -> Option<Outcome> {
        self.outcomes.remove(&name)
    }

    /// Returns whether a message must wait: the peer to which it is passed on has no room.
    pub fn must_wait(&self, delivery: &Delivery, endpoint: &Endpoint<SocketAddr>) -> bool {
        let next = next_of(delivery).and_then(|next| endpoint.find(next));
        next.is_some_and(|next| endpoint.unsent_bytes(next) > FORWARD_BYTES_MAX)
    }

    /// Handles a message. Returns `None` for one that is not understood: that of a later version,
    /// which has no effect.
    pub fn handle(
        &mut self,
        from: PeerId,
        delivery: Delivery,
        endpoint: &mut Endpoint<SocketAddr>,
        regions: &mut dyn Regions,
        now_ns: u64,
    ) -> Option<()> {
        let mut header = &delivery.header[..];
        let [kind] = *take(&mut header)?;
        let transfer = u64::from_be_bytes(*take(&mut header)?);
        let name = (transfer, u32::from_be_bytes(*take(&mut header)?));
        match kind {
            CHUNK => {
                self.handle_chunk(from, name, header, delivery.data, endpoint, regions, now_ns)
            }
            PLACED => self.finish(from, name, Outcome::Placed, endpoint),
            FAILED => self.finish(from, name, Outcome::Failed, endpoint),
            _ => None,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn handle_chunk(
        &mut self,
        from: PeerId,
        name: ChunkName,
        mut targets: &[u8],
        data: Vec<u8>,
        endpoint: &mut Endpoint<SocketAddr>,
        regions: &mut dyn Regions,
        now_ns: u64,
    ) -> Option<()> {
        let own = parse_target(&mut targets)?;
        let at = own.place.plus(u64::from(name.1) * CHUNK_BYTES as u64);
        if place_bytes(regions, &at, &data).is_err() {
            return answer(from, name, Outcome::Failed, endpoint);
        }
        let mut rest = targets;
        let Some(next) = parse_target(&mut rest) else {
            return answer(from, name, Outcome::Placed, endpoint);
        };
        let mut header = Vec::with_capacity(13 + targets.len());
        emit_name(CHUNK, name, &mut header);
        header.extend_from_slice(targets);
        if self.passed.len() >= PASSED_MAX {
            return answer(from, name, Outcome::Failed, endpoint);
        }
        let passed = endpoint
            .connect(next.address, now_ns)
            .and_then(|next| endpoint.send(next, message(header, data)).map(|_| next));
        match passed {
            Ok(next) => {
                // Without the answer of the next peer, the root sends the chunk itself.
                self.passed.insert((next, name), from);
                Some(())
            }
            Err(_) => answer(from, name, Outcome::Failed, endpoint),
        }
    }

    /// Takes the outcome of a chunk from the peer to which it was passed on.
    fn finish(
        &mut self,
        from: PeerId,
        name: ChunkName,
        outcome: Outcome,
        endpoint: &mut Endpoint<SocketAddr>,
    ) -> Option<()> {
        if let Some(before) = self.passed.remove(&(from, name)) {
            return answer(before, name, outcome, endpoint);
        }
        if self.own.contains(&name.0) {
            self.outcomes.insert(name, outcome);
        }
        Some(())
    }

    /// Reports the chunks that a lost peer had as failed.
    pub fn note_lost(&mut self, peer: PeerId, endpoint: &mut Endpoint<SocketAddr>) {
        let had: Vec<(ChunkName, PeerId)> = self
            .passed
            .iter()
            .filter(|((next, _), _)| *next == peer)
            .map(|((_, name), before)| (*name, *before))
            .collect();
        self.passed
            .retain(|(next, _), before| *next != peer && *before != peer);
        for (name, before) in had {
            answer(before, name, Outcome::Failed, endpoint);
        }
    }
}

/// Returns the address to which a chunk is passed on.
fn next_of(delivery: &Delivery) -> Option<SocketAddr> {
    let mut rest = delivery.header.get(13 + TARGET_BYTES..)?;
    let is_chunk = delivery.header.first() == Some(&CHUNK);
    let next = parse_target(&mut rest)?;
    is_chunk.then_some(next.address)
}

fn answer(
    peer: PeerId,
    name: ChunkName,
    outcome: Outcome,
    endpoint: &mut Endpoint<SocketAddr>,
) -> Option<()> {
    let kind = match outcome {
        Outcome::Placed => PLACED,
        Outcome::Failed => FAILED,
    };
    let mut header = Vec::new();
    emit_name(kind, name, &mut header);
    // A peer that is lost needs no answer.
    endpoint
        .send(peer, message(header, Vec::new()))
        .ok()
        .map(drop)
}
