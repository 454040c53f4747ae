//! The call of the program: sends to a group, and repairs.

use super::CHUNK_PACKETS;
use super::root::{Repair, Root};
use super::wire::{self, Control, DATAGRAM_BYTES_MAX, HEADER_BYTES, Invite, PROBE, TransferName};
use crate::node::{Node, WindError, random, system};
use crate::protocol::{Operation, PeerId, Place, Refused};
use kumi_multilink::secure::{PacketKey, multicast_key};
use kumi_sys::udp::{LinkSocket, interface_towards};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Longest batch of datagrams in one system call, in bytes.
const BATCH_BYTES_MAX: usize = 60_000;

/// Time beyond the round trips within which members must hear the group: a switch that forwards
/// groups to their members only has to learn of them, and a busy host takes a few turns of its
/// scheduler. Peers that do not hear it cost this once in a minute or less (`ways.rs`).
const HEAR: Duration = Duration::from_millis(50);

/// Round trips within which members must hear the group.
const HEAR_ROUND_TRIPS: u32 = 8;

/// Errors by member, of those that have failed.
pub type Failures = BTreeMap<PeerId, WindError>;

/// Outcome of a transfer.
pub enum Outcome {
    /// The data is in the memory of all peers, except those named.
    Done(Failures),
    /// Not all peers hear the group. Nothing was sent.
    Unheard,
    /// A peer cannot take part now.
    Unable,
}

/// A transfer as the sender sees it.
struct Sending<'a> {
    name: TransferName,
    group: SocketAddr,
    socket: LinkSocket,
    key: PacketKey,
    packet_bytes: u16,
    data: &'a [u8],
    batch: Vec<u8>,
}

impl Sending<'_> {
    fn range(&self, packet: u32) -> std::ops::Range<usize> {
        let start = packet as usize * usize::from(self.packet_bytes);
        start..self.data.len().min(start + usize::from(self.packet_bytes))
    }

    fn add(&mut self, number: u32, data: std::ops::Range<usize>) {
        let header = wire::datagram_header(self.name, number);
        let data = &self.data[data];
        self.key
            .seal(0, number.into(), &header, data, &mut self.batch);
    }

    /// Sends the batch. Waits for room in the socket's buffer.
    fn send(&mut self, segment_bytes: usize) {
        while let Err(error) = self.socket.send(&self.batch, segment_bytes, self.group) {
            if error.kind() != std::io::ErrorKind::WouldBlock {
                // Lost, as in the network.
                break;
            }
            let mut files = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            let _ = poll(&mut files, PollTimeout::from(100_u8));
        }
        self.batch.clear();
    }

    fn send_probe(&mut self) {
        self.add(PROBE, 0..0);
        self.send(self.batch.len());
    }

    /// Sends the chunks that may be sent now.
    fn send_chunks(&mut self, root: &mut Root, now_ns: impl Fn() -> u64) {
        let mut segment_bytes = 0;
        while let Some(packets) = root.take_chunk(now_ns()) {
            for packet in packets {
                let start = self.batch.len();
                self.add(packet, self.range(packet));
                segment_bytes = segment_bytes.max(self.batch.len() - start);
            }
            if self.batch.len() + CHUNK_PACKETS as usize * segment_bytes > BATCH_BYTES_MAX {
                self.send(segment_bytes);
            }
        }
        if !self.batch.is_empty() {
            self.send(segment_bytes);
        }
    }
}

/// Returns the group of the node with this random number, in the family of `peer`: of the local
/// scope (RFC 2365) or of the link (RFC 4291), on a port of those for any use (RFC 6335).
fn group(epoch: u64, peer: SocketAddr) -> SocketAddr {
    let [a, b, c, d, e, f, ..] = epoch.to_be_bytes();
    let port = 0xc000 | u16::from_be_bytes([a, b]);
    match peer {
        SocketAddr::V4(_) => SocketAddrV4::new(Ipv4Addr::new(239, 255, c, d), port).into(),
        SocketAddr::V6(_) => {
            let parts = [c, d, e, f].map(u16::from);
            let (high, low) = (parts[0] << 8 | parts[1], parts[2] << 8 | parts[3]);
            let ip = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0x6b75, high, low);
            SocketAddrV6::new(ip, port, 0, 0).into()
        }
    }
}

impl Node {
    /// Writes `bytes` at a place of each peer by IP multicast.
    pub(in super::super) fn put_by_network(
        &self,
        targets: &[(PeerId, Place)],
        bytes: &[u8],
    ) -> Result<Outcome, WindError> {
        let name = random().map_err(system("cannot read random numbers"))?;
        let Some(mut sending) = self.prepare(name, targets, bytes) else {
            return Ok(Outcome::Unheard);
        };
        self.state().multicast.network.begin(name);
        let outcome = match self.gather(targets, &mut sending) {
            Ok(Some(rtt)) => Ok(Outcome::Done(self.run(targets, &mut sending, rtt))),
            Ok(None) => Ok(Outcome::Unheard),
            // The other way finds the peer's error.
            Err(_) => Ok(Outcome::Unable),
        };
        self.act(|state| {
            state.multicast.network.end(name);
            for (peer, _) in targets {
                wire::send(&mut state.endpoint, *peer, name, &Control::End);
            }
        });
        outcome
    }

    fn prepare<'a>(
        &self,
        name: TransferName,
        targets: &[(PeerId, Place)],
        data: &'a [u8],
    ) -> Option<Sending<'a>> {
        let (peer, _) = targets.first()?;
        let state = self.state();
        let address = state.endpoint.address(*peer)?;
        let config = state.endpoint.config();
        let datagram_bytes = config.datagram_bytes.min(DATAGRAM_BYTES_MAX);
        let head_bytes = HEADER_BYTES + config.seal.tag_bytes();
        // A packet is repaired by one put.
        let packet_bytes =
            (usize::from(datagram_bytes) - head_bytes).min(state.endpoint.operation_bytes_max());
        let index = interface_towards(address).ok()?;
        Some(Sending {
            name,
            group: group(config.epoch, address),
            socket: LinkSocket::to_groups(index).ok()?,
            key: PacketKey::new(&multicast_key(&config.secret, &name), config.seal),
            packet_bytes: packet_bytes as u16,
            data,
            batch: Vec::new(),
        })
    }

    /// Invites the peers, and waits until all hear the group. Returns the longest round trip;
    /// `None` if one does not hear it.
    ///
    /// # Errors
    /// A peer is lost, or cannot take part.
    fn gather(
        &self,
        targets: &[(PeerId, Place)],
        sending: &mut Sending<'_>,
    ) -> Result<Option<Duration>, WindError> {
        for (peer, place) in targets {
            let invite = Control::Invite(Invite {
                place: *place,
                bytes: sending.data.len() as u64,
                packet_bytes: sending.packet_bytes,
                group: sending.group,
            });
            self.act(|state| {
                state.check(*peer)?;
                let sent = state
                    .endpoint
                    .send(*peer, wire::message(sending.name, &invite));
                sent.map(drop).map_err(WindError::from)
            })?;
        }
        let rtt = |peer: &PeerId| self.rtt(*peer).unwrap_or_default();
        let rtt = targets.iter().map(|(peer, _)| rtt(peer)).max();
        let rtt = rtt.unwrap_or_default();
        let began = Instant::now();
        let limit = HEAR + HEAR_ROUND_TRIPS * rtt;
        let mut pause = rtt.max(Duration::from_millis(1));
        let mut hears = vec![false; targets.len()];
        while began.elapsed() < limit {
            let due = Instant::now() + pause;
            loop {
                let left = due.saturating_duration_since(Instant::now());
                let Some((peer, control)) = self.next_control(targets, sending.name, left)? else {
                    break;
                };
                match (control, index_of(targets, peer)) {
                    (Control::Heard, Some(index)) => hears[index] = true,
                    (Control::Unable, _) => return Err(Refused::Region.into()),
                    _ => {}
                }
                if !hears.contains(&false) {
                    return Ok(Some(rtt));
                }
            }
            sending.send_probe();
            pause *= 2;
        }
        Ok(None)
    }

    /// Waits for the next message about a transfer; `None` after `limit`.
    fn next_control(
        &self,
        targets: &[(PeerId, Place)],
        name: TransferName,
        limit: Duration,
    ) -> Result<Option<(PeerId, Control)>, WindError> {
        let next = self.wait(Some(limit), |state| {
            if let Some(next) = state.multicast.network.next(name) {
                return Ok(Some(next));
            }
            for (peer, _) in targets {
                state.check(*peer)?;
            }
            Ok(None)
        });
        match next {
            Ok(next) => Ok(Some(next)),
            Err(WindError::Late(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the data, and repairs until all peers have it. Returns the errors of those that
    /// failed.
    fn run(
        &self,
        targets: &[(PeerId, Place)],
        sending: &mut Sending<'_>,
        rtt: Duration,
    ) -> Failures {
        let began = Instant::now();
        let now_ns = || began.elapsed().as_nanos() as u64;
        let (bytes, rtt_ns) = (sending.data.len() as u64, rtt.as_nanos() as u64);
        let mut root = Root::new(bytes, sending.packet_bytes, targets.len(), rtt_ns, now_ns());
        let mut here: Vec<(PeerId, Place)> = targets.to_vec();
        let mut failures = Failures::new();
        let mut repairs = Vec::new();
        while !root.is_complete() {
            sending.send_chunks(&mut root, now_ns);
            let left = Duration::from_nanos(root.timeout_ns().saturating_sub(now_ns()));
            match self.next_control(&here, sending.name, left) {
                Ok(Some((peer, control))) => {
                    let Some(index) = index_of(targets, peer) else {
                        continue;
                    };
                    match control {
                        Control::Report(report) => root.handle(index, &report, now_ns()),
                        Control::Unable => {
                            root.remove(index, now_ns());
                            // A put finds out why.
                            let put = self.put(peer, targets[index].1, sending.data);
                            failures.extend(put.err().map(|error| (peer, error)));
                        }
                        _ => {}
                    }
                }
                Ok(None) => {
                    let (overdue, end) = root.take_overdue(now_ns());
                    self.act(|state| {
                        for (peer, _) in overdue.iter().map(|index| &targets[*index]) {
                            let ask = Control::Ask { end };
                            wire::send(&mut state.endpoint, *peer, sending.name, &ask);
                        }
                    });
                }
                Err(_) => here.retain(|(peer, _)| match self.state().check(*peer) {
                    Ok(()) => true,
                    Err(error) => {
                        if let Some(index) = index_of(targets, *peer) {
                            root.remove(index, now_ns());
                        }
                        failures.insert(*peer, error);
                        false
                    }
                }),
            }
            while let Some(repair) = root.take_repair() {
                repairs.push(self.repair(targets, sending, repair));
            }
        }
        for (peer, started) in repairs {
            let result = started.and_then(|number| self.wait_result(peer, number, None));
            if let Err(error) = result {
                failures.entry(peer).or_insert(error);
            }
        }
        failures
    }

    fn repair(
        &self,
        targets: &[(PeerId, Place)],
        sending: &Sending<'_>,
        repair: Repair,
    ) -> (PeerId, Result<u64, WindError>) {
        let (peer, place) = targets[repair.member];
        let range = sending.range(repair.packet);
        let at = place.plus(range.start as u64);
        let put = Operation::Put(sending.data[range].to_vec());
        let room = self.wait_for_room(peer);
        (peer, room.and_then(|()| self.start(peer, at, put)))
    }
}

/// Returns the index of a peer.
fn index_of(targets: &[(PeerId, Place)], peer: PeerId) -> Option<usize> {
    targets.iter().position(|(other, _)| *other == peer)
}
