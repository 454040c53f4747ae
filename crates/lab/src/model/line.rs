//! One direction of a link: a queue, a transmitter of some rate, and the wire behind it.

use super::fate::Dice;
use super::frame::Frame;
use crate::topology::{Faults, NicQueue, Rate};
use std::collections::VecDeque;

/// What a queue holds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// A NIC's transmit queue.
    Nic(NicQueue),
    /// A switch port's drop-tail queue, in bytes.
    Port {
        /// Bytes.
        bytes: u64,
        /// The switch whose shared buffer it also draws on.
        switch: usize,
    },
    /// None of the model's own: the host's qdisc has queued and paced the frame already.
    Elsewhere,
}

/// Where a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A NIC, by its index in [`crate::Topology::nics`].
    Nic(usize),
    /// A switch, by its index in the topology.
    Switch(usize),
}

/// What happened to the frames of one direction of a link. Once a network is at rest,
/// `offered + duplicated = queue_drops + lost + silenced + cut + arrived`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// Frames given to the queue.
    pub offered: u64,
    /// Frames the queue had no room for.
    pub queue_drops: u64,
    /// Frames lost by a fault.
    pub lost: u64,
    /// Frames swallowed by a blackhole.
    pub silenced: u64,
    /// Frames lost because the carrier was or went down.
    pub cut: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Frames that reached the far end.
    pub arrived: u64,
    /// Bytes of the frames that reached the far end.
    pub arrived_bytes: u64,
    /// Most bytes the queue has held.
    pub queue_bytes_peak: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Line {
    /// Where frames go.
    pub to: Place,
    /// Rate; none is instantaneous.
    pub rate: Option<Rate>,
    /// Propagation delay, in nanoseconds.
    pub delay_ns: u64,
    /// Faults of the wire.
    pub faults: Faults,
    /// Whether the wire swallows everything in silence.
    pub is_blackhole: bool,
    /// Whether the cable is plugged in.
    pub carrier: bool,
    /// Counts how often the cable was pulled: frames of an earlier count are lost.
    pub epoch: u32,
    /// The frame being transmitted.
    pub sending: Option<Frame>,
    /// When the transmitter has finished all it was given, in nanoseconds: a frame that is handed
    /// over with an earlier time still waits for it.
    pub free_at_ns: u64,
    /// Latest arrival at the far end so far, in nanoseconds: jitter never re-orders.
    pub last_arrival_ns: u64,
    /// Random choices.
    pub dice: Dice,
    /// What happened.
    pub counters: LineCounters,
    limit: QueueLimit,
    queue: VecDeque<Frame>,
    queue_bytes: u64,
}

impl Line {
    /// An idle line.
    pub fn new(to: Place, limit: QueueLimit, seed: u64) -> Self {
        Self {
            to,
            rate: None,
            delay_ns: 0,
            faults: Faults::default(),
            is_blackhole: false,
            carrier: true,
            epoch: 0,
            sending: None,
            free_at_ns: 0,
            last_arrival_ns: 0,
            dice: Dice::new(seed),
            counters: LineCounters::default(),
            limit,
            queue: VecDeque::new(),
            queue_bytes: 0,
        }
    }

    /// Which switch's shared buffer its queue draws on.
    pub fn buffer_of(&self) -> Option<usize> {
        match self.limit {
            QueueLimit::Port { switch, .. } => Some(switch),
            QueueLimit::Nic(_) | QueueLimit::Elsewhere => None,
        }
    }

    /// Whether the host's own qdisc paces what it sends.
    pub fn is_paced_elsewhere(&self) -> bool {
        self.limit == QueueLimit::Elsewhere
    }

    /// Bytes waiting; the frame being transmitted is not among them.
    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// Frames waiting.
    pub fn queue_frames(&self) -> usize {
        self.queue.len()
    }

    /// Whether `frame` fits into the queue.
    pub fn has_room(&self, frame: &Frame) -> bool {
        match self.limit {
            QueueLimit::Nic(NicQueue::Packets(packets)) => self.queue.len() < packets as usize,
            QueueLimit::Nic(NicQueue::Bytes(bytes)) | QueueLimit::Port { bytes, .. } => {
                self.queue_bytes + frame.queue_bytes() <= bytes
            }
            QueueLimit::Elsewhere => true,
        }
    }

    /// Appends `frame`, which has room.
    pub fn push(&mut self, frame: Frame) {
        self.queue_bytes += frame.queue_bytes();
        self.counters.queue_bytes_peak = self.counters.queue_bytes_peak.max(self.queue_bytes);
        self.queue.push_back(frame);
    }

    /// Takes the first frame.
    pub fn pop(&mut self) -> Option<Frame> {
        let frame = self.queue.pop_front()?;
        self.queue_bytes -= frame.queue_bytes();
        Some(frame)
    }

    /// How long `frame` occupies the transmitter, in nanoseconds.
    pub fn send_time_ns(&self, frame: &Frame) -> u64 {
        self.rate.map_or(0, |rate| rate.time_ns(frame.wire_bytes()))
    }
}
