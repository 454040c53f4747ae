//! A member of a transfer: packets that have arrived, and what it reports.

use super::CHUNK_PACKETS;
use super::wire::{HEADER_BYTES, Invite, PROBE, Report};
use crate::protocol::{PeerId, Place};
use kumi_multilink::secure::PacketKey;

/// Later chunks whose packets show that an earlier chunk's packets are lost. Fewer would take
/// packets for lost that another link of a braided device delivers later.
const REORDERING_CHUNKS: u32 = 2;

/// Bits of a chunk that is settled: it is complete, or its rest is sent otherwise.
const SETTLED: u8 = u8::MAX;

/// A transfer in which this node is a member.
pub struct Member {
    /// The peer that sends.
    pub root: PeerId,
    place: Place,
    bytes: u64,
    packet_bytes: u64,
    key: PacketKey,
    /// A bit for each packet of a chunk that has arrived. Bits of packets that the last chunk does
    /// not have are set.
    has: Vec<u8>,
    /// Chunks below are settled.
    open: u32,
    report: Report,
}

/// Meaning of an authentic packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// The group is heard.
    Probe,
    /// Data for a place, which is written exactly once.
    Data(Place, &'a [u8]),
    /// Data that has arrived before, or that is sent otherwise.
    Repeated,
}

/// Returns the number of packets that `bytes` bytes need.
pub fn packets(bytes: u64, packet_bytes: u64) -> u64 {
    bytes.div_ceil(packet_bytes)
}

impl Member {
    /// Joins a transfer; `None` if no root may have its lengths.
    pub fn new(root: PeerId, invite: &Invite, key: PacketKey) -> Option<Self> {
        let packet_bytes = u64::from(invite.packet_bytes);
        if packet_bytes == 0 || invite.bytes == 0 {
            return None;
        }
        let packets = packets(invite.bytes, packet_bytes);
        if packets >= u64::from(PROBE) {
            return None;
        }
        let chunks = packets.div_ceil(u64::from(CHUNK_PACKETS));
        let mut has = vec![0; chunks as usize];
        let last_packets = packets - (chunks - 1) * u64::from(CHUNK_PACKETS);
        if let Some(last) = has.last_mut() {
            *last = !(((1_u16 << last_packets) - 1) as u8);
        }
        Some(Self {
            root,
            place: invite.place,
            bytes: invite.bytes,
            packet_bytes,
            key,
            has,
            open: 0,
            report: Report::default(),
        })
    }

    /// Takes a datagram with packet `number`; `None` for one that is forged or damaged.
    pub fn handle<'a>(&mut self, number: u32, datagram: &'a mut [u8]) -> Option<Arrival<'a>> {
        let data = self.key.open(0, number.into(), HEADER_BYTES, datagram);
        let data = data.ok()?;
        if number == PROBE {
            return Some(Arrival::Probe);
        }
        let offset = u64::from(number) * self.packet_bytes;
        let left = self.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        if data.len() as u64 != left.min(self.packet_bytes) {
            return None;
        }
        let (chunk, bit) = (number / CHUNK_PACKETS, 1 << (number % CHUNK_PACKETS));
        let has = &mut self.has[chunk as usize];
        if *has & bit != 0 {
            return Some(Arrival::Repeated);
        }
        *has |= bit;
        if *has == SETTLED {
            match self.report.complete.last_mut() {
                Some((first, count)) if *first + *count == chunk => *count += 1,
                _ => self.report.complete.push((chunk, 1)),
            }
        }
        self.settle_before(chunk.saturating_sub(REORDERING_CHUNKS - 1));
        Some(Arrival::Data(self.place.plus(offset), data))
    }

    /// Takes no more packets of chunks below `end`: what is missing of them is sent otherwise.
    pub fn settle_before(&mut self, end: u32) {
        while self.open < end.min(self.has.len() as u32) {
            let has = &mut self.has[self.open as usize];
            if *has != SETTLED {
                self.report.missing.push((self.open, *has));
                *has = SETTLED;
            }
            self.open += 1;
        }
    }

    /// Takes the report, if there is something to report.
    pub fn take_report(&mut self) -> Option<Report> {
        let report = std::mem::take(&mut self.report);
        (report != Report::default()).then_some(report)
    }
}
