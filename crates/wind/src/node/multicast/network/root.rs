//! The root of a transfer: which chunks may be sent, what each member has, and what is repaired.
//!
//! A chunk is in flight until all members have reported it. The congestion window is that of a
//! session (`protocol/window.rs`), and the slowest member determines its round trips.

use super::CHUNK_PACKETS;
use super::member::packets;
use super::wire::Report;
use crate::protocol::{Rtt, Window};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time that a timer waits beyond a round trip: a member's turn of a busy scheduler.
const GRANULARITY: Duration = Duration::from_millis(1);

/// Count of missed packets above which older ones count half.
const MISSED_MAX: u32 = 64;

/// A chunk that is in flight.
struct Flight {
    sent_ns: u64,
    /// Members that have not reported it.
    open: Vec<bool>,
    /// A report was asked for, so its time is not that of the path (Karn's rule).
    was_asked: bool,
}

/// Packet that is sent to a member again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair {
    /// Index of the member.
    pub member: usize,
    /// Number of the packet.
    pub packet: u32,
}

/// A transfer of this node.
pub struct Root {
    packets: u32,
    chunk_bytes: u64,
    next: u32,
    in_flight: BTreeMap<u32, Flight>,
    /// Members that are not lost.
    is_here: Vec<bool>,
    /// Members whose report was asked for and has not come.
    is_asked: Vec<bool>,
    repairs: VecDeque<Repair>,
    /// Packets that each member has missed lately.
    missed: Vec<u32>,
    window: Window,
    rtt: Rtt,
    /// Time of the last progress, in ns.
    moved_ns: u64,
    has_waited: bool,
}

impl Root {
    /// Begins a transfer of `bytes` bytes to `members` members, whose round trip was `rtt_ns`.
    pub fn new(bytes: u64, packet_bytes: u16, members: usize, rtt_ns: u64, now_ns: u64) -> Self {
        let chunk_bytes = u64::from(packet_bytes) * u64::from(CHUNK_PACKETS);
        Self {
            packets: packets(bytes, packet_bytes.into()) as u32,
            chunk_bytes,
            next: 0,
            in_flight: BTreeMap::new(),
            is_here: vec![true; members],
            is_asked: vec![false; members],
            repairs: VecDeque::new(),
            missed: vec![0; members],
            window: Window::new(chunk_bytes as usize),
            rtt: Rtt::new(rtt_ns),
            moved_ns: now_ns,
            has_waited: false,
        }
    }

    fn chunks(&self) -> u32 {
        self.packets.div_ceil(CHUNK_PACKETS)
    }

    fn in_flight_bytes(&self) -> u64 {
        self.in_flight.len() as u64 * self.chunk_bytes
    }

    /// Takes the next chunk that may be sent: the numbers of its packets.
    pub fn take_chunk(&mut self, now_ns: u64) -> Option<std::ops::Range<u32>> {
        if self.next == self.chunks() {
            return None;
        }
        let has_room = self.in_flight_bytes() + self.chunk_bytes <= self.window.bytes();
        if !has_room && !self.in_flight.is_empty() {
            self.has_waited = true;
            return None;
        }
        let chunk = self.next;
        self.next += 1;
        if self.is_here.contains(&true) {
            self.in_flight.insert(
                chunk,
                Flight {
                    sent_ns: now_ns,
                    open: self.is_here.clone(),
                    was_asked: false,
                },
            );
        }
        let first = chunk * CHUNK_PACKETS;
        Some(first..self.packets.min(first + CHUNK_PACKETS))
    }

    /// Takes the report of a member.
    pub fn handle(&mut self, member: usize, report: &Report, now_ns: u64) {
        self.is_asked[member] = false;
        for (first, count) in &report.complete {
            // A member may report any numbers; only those in flight have an effect.
            let end = first.saturating_add(*count);
            let chunks: Vec<u32> = self
                .in_flight
                .range(*first..end)
                .map(|(at, _)| *at)
                .collect();
            for chunk in chunks {
                self.settle(chunk, member, u8::MAX, now_ns);
            }
        }
        for (chunk, has) in &report.missing {
            self.settle(*chunk, member, *has, now_ns);
        }
    }

    /// Records that a member has the packets `has` of a chunk.
    fn settle(&mut self, chunk: u32, member: usize, has: u8, now_ns: u64) {
        let Some(flight) = self.in_flight.get_mut(&chunk) else {
            return;
        };
        if !std::mem::take(&mut flight.open[member]) {
            return;
        }
        self.moved_ns = now_ns;
        let is_over = !flight.open.contains(&true);
        let first = chunk * CHUNK_PACKETS;
        let packets = first..self.packets.min(first + CHUNK_PACKETS);
        let missing = packets.filter(|packet| has & 1 << (packet - first) == 0);
        let missing: Vec<Repair> = missing.map(|packet| Repair { member, packet }).collect();
        if !missing.is_empty() {
            self.note_missing(chunk, member, missing.len() as u32);
            self.repairs.extend(missing);
        }
        if is_over {
            self.finish(chunk, now_ns);
        }
    }

    /// Takes the loss of packets of a chunk. Only that of the member that misses most counts, as in
    /// pgmcc (Rizzo, SIGCOMM 2000): with many members, nearly every chunk has a loss somewhere.
    fn note_missing(&mut self, chunk: u32, member: usize, packets: u32) {
        self.missed[member] += packets;
        if self.missed[member] > MISSED_MAX {
            self.missed.iter_mut().for_each(|missed| *missed /= 2);
        }
        if self.missed.iter().max() == Some(&self.missed[member]) {
            let packet_bytes = self.chunk_bytes / u64::from(CHUNK_PACKETS);
            let (number, next) = (u64::from(chunk), u64::from(self.next));
            let lost_bytes = u64::from(packets) * packet_bytes;
            self.window.on_loss(lost_bytes, number, next, &self.rtt);
        }
    }

    /// Ends the flight of a chunk that all members have reported.
    fn finish(&mut self, chunk: u32, now_ns: u64) {
        let Some(flight) = self.in_flight.remove(&chunk) else {
            return;
        };
        let was_limited = std::mem::take(&mut self.has_waited);
        if !flight.was_asked {
            let rtt_ns = now_ns.saturating_sub(flight.sent_ns).max(1);
            self.rtt.sample(rtt_ns, 0, now_ns);
        }
        let (number, next) = (u64::from(chunk), u64::from(self.next));
        self.window
            .on_ack(self.chunk_bytes, number, next, &self.rtt, was_limited);
    }

    /// Takes the next packet that is sent to one member again.
    pub fn take_repair(&mut self) -> Option<Repair> {
        self.repairs.pop_front()
    }

    /// Removes a member that is lost.
    pub fn remove(&mut self, member: usize, now_ns: u64) {
        self.is_here[member] = false;
        self.is_asked[member] = false;
        self.repairs.retain(|repair| repair.member != member);
        for chunk in self.in_flight.keys().copied().collect::<Vec<_>>() {
            self.settle(chunk, member, u8::MAX, now_ns);
        }
    }

    /// Returns whether all chunks have been sent and reported.
    pub fn is_complete(&self) -> bool {
        self.next == self.chunks() && self.in_flight.is_empty()
    }

    /// Returns the time from which on members without a report are asked, in ns.
    pub fn timeout_ns(&self) -> u64 {
        self.moved_ns + self.rtt.probe_timeout_ns(0) + GRANULARITY.as_nanos() as u64
    }

    /// Returns the members to ask for a report on chunks below the second value. Each is asked
    /// again only when it has answered: the session repeats the message, and finds a lost member.
    pub fn take_overdue(&mut self, now_ns: u64) -> (Vec<usize>, u32) {
        if now_ns < self.timeout_ns() {
            return (Vec::new(), self.next);
        }
        self.moved_ns = now_ns;
        let overdue = (0..self.is_here.len()).filter(|member| {
            let is_open = self.in_flight.values().any(|flight| flight.open[*member]);
            is_open && !self.is_asked[*member]
        });
        let overdue: Vec<usize> = overdue.collect();
        overdue.iter().for_each(|at| self.is_asked[*at] = true);
        if !overdue.is_empty() {
            let flights = self.in_flight.values_mut();
            flights.for_each(|flight| flight.was_asked = true);
        }
        (overdue, self.next)
    }
}
