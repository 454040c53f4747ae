//! One direction of a link: a queue, a transmitter with a rate, and the wire behind it.

use super::fate::Dice;
use super::frame::Frame;
use crate::topology::{ETHERNET_HEADER_BYTES, Faults, NicQueue, Rate, WIRE_OVERHEAD_BYTES};
use std::collections::VecDeque;

/// Capacity of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Transmit queue of a NIC.
    Nic(NicQueue),
    /// Drop-tail queue of a switch port.
    Port {
        /// Depth of the queue, in bytes.
        bytes: u64,
        /// Switch whose shared buffer the queue also draws on.
        switch: usize,
    },
    /// No queue in the model, because the host's token bucket has already queued and paced the
    /// frame.
    Elsewhere {
        /// Depth of the bucket, as time at the line's rate, in nanoseconds. It is at least the time
        /// of two frames.
        burst_ns: u64,
        /// Largest payload of a frame, in bytes.
        mtu: u32,
    },
}

/// Far end of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// NIC, by its index in [`crate::Topology::nics`].
    Nic(usize),
    /// Switch, by its index in the topology.
    Switch(usize),
}

/// Counters of the frames of one direction of a link. Once a network is at rest,
/// `offered + duplicated = queue_drops + lost + silenced + cut + arrived`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// Frames given to the queue.
    pub offered: u64,
    /// Frames dropped because the queue was full.
    pub queue_drops: u64,
    /// Frames lost by a fault.
    pub lost: u64,
    /// Frames dropped by a blackhole.
    pub silenced: u64,
    /// Frames lost because the carrier was down or went down.
    pub cut: u64,
    /// Frames damaged by a fault.
    pub corrupted: u64,
    /// Copies made by a duplication fault.
    pub duplicated: u64,
    /// Frames that reached the far end.
    pub arrived: u64,
    /// Bytes of the frames that reached the far end.
    pub arrived_bytes: u64,
    /// Largest number of bytes that the queue held.
    pub queue_bytes_peak: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Line {
    /// Far end, which receives the frames.
    pub to: Place,
    /// Rate of the transmitter. Without one, transmission takes no time.
    pub rate: Option<Rate>,
    /// Propagation delay, in nanoseconds.
    pub delay_ns: u64,
    /// Faults of the wire.
    pub faults: Faults,
    /// True if the wire drops every frame silently.
    pub is_blackhole: bool,
    /// True if the cable is plugged in.
    pub carrier: bool,
    /// Number of times that the cable was pulled. Frames that were sent in an earlier epoch are
    /// lost.
    pub epoch: u32,
    /// Frame being transmitted.
    pub sending: Option<Frame>,
    /// Time at which the transmitter has sent every frame that it was given, in nanoseconds. A
    /// frame that is handed over with an earlier time waits until then.
    pub free_at_ns: u64,
    /// Latest arrival at the far end so far, in nanoseconds. It keeps jitter from changing the
    /// order.
    pub last_arrival_ns: u64,
    /// Random choices of the wire.
    pub dice: Dice,
    /// Counters of the frames sent on the line.
    pub counters: LineCounters,
    limit: QueueLimit,
    queue: VecDeque<Frame>,
    queue_bytes: u64,
}

impl Line {
    /// Creates an idle line without rate, delay and faults.
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

    /// Returns the switch whose shared buffer the queue draws on.
    pub fn buffer_switch(&self) -> Option<usize> {
        match self.limit {
            QueueLimit::Port { switch, .. } => Some(switch),
            QueueLimit::Nic(_) | QueueLimit::Elsewhere { .. } => None,
        }
    }

    /// Returns the depth of the host's token bucket, as time at the line's rate, in nanoseconds, if
    /// the host paces the frames.
    pub fn bucket_ns(&self) -> Option<u64> {
        let QueueLimit::Elsewhere { burst_ns, mtu } = self.limit else {
            return None;
        };
        let frame_bytes = u64::from(mtu) + ETHERNET_HEADER_BYTES + WIRE_OVERHEAD_BYTES;
        Some(burst_ns.max(self.rate?.time_ns(2 * frame_bytes)))
    }

    /// Returns the bytes waiting in the queue, without the frame being transmitted.
    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// Returns the number of frames waiting in the queue.
    pub fn queue_frames(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether `frame` fits into the queue.
    pub fn has_room(&self, frame: &Frame) -> bool {
        match self.limit {
            QueueLimit::Nic(NicQueue::Packets(packets)) => self.queue.len() < packets as usize,
            QueueLimit::Nic(NicQueue::Bytes(bytes)) | QueueLimit::Port { bytes, .. } => {
                self.queue_bytes + frame.queue_bytes() <= bytes
            }
            QueueLimit::Elsewhere { .. } => true,
        }
    }

    /// Appends `frame`. The caller has checked that there is room.
    pub fn push(&mut self, frame: Frame) {
        self.queue_bytes += frame.queue_bytes();
        self.counters.queue_bytes_peak = self.counters.queue_bytes_peak.max(self.queue_bytes);
        self.queue.push_back(frame);
    }

    /// Removes and returns the first frame of the queue.
    pub fn pop(&mut self) -> Option<Frame> {
        let frame = self.queue.pop_front()?;
        self.queue_bytes -= frame.queue_bytes();
        Some(frame)
    }

    /// Returns the time that `frame` occupies the transmitter, in nanoseconds.
    pub fn send_time_ns(&self, frame: &Frame) -> u64 {
        self.rate.map_or(0, |rate| rate.time_ns(frame.wire_bytes()))
    }
}
