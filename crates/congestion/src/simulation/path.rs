//! The path: one bottleneck with a queue, and delay, loss and re-ordering behind it.

/// Wire bytes of a packet: an Ethernet frame of 1500 bytes with preamble and gap.
pub const PACKET_BYTES: u64 = 1538;

/// A path, as a file of a topology would describe it.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Rate of the bottleneck.
    pub bits_ps: f64,
    /// Rate at which a host sends, at least that of the bottleneck.
    pub host_bits_ps: f64,
    /// Round trip of a packet that meets no queue.
    pub rtt_ns: u64,
    /// Packets that the bottleneck's queue holds.
    pub buffer_packets: f64,
    /// Part of the packets that the path loses at random.
    pub loss: f64,
    /// Part of the packets that are late by a quarter of the round trip.
    pub late: f64,
    /// Time in which the path holds acknowledgements back, to pass them on together; 0: not at all.
    pub hold_acks_ns: u64,
}

impl Path {
    /// Returns the time that the bottleneck takes for a packet.
    pub fn packet_ns(&self) -> f64 {
        (PACKET_BYTES * 8) as f64 * 1e9 / self.bits_ps
    }

    /// Returns the packets that fill the path without a queue.
    pub fn bdp_packets(&self) -> f64 {
        self.rtt_ns as f64 / self.packet_ns()
    }
}

/// The bottleneck's queue.
#[derive(Debug, Clone, Copy)]
pub struct Bottleneck {
    packet_ns: f64,
    buffer_packets: f64,
    free_at_ns: f64,
}

impl Bottleneck {
    /// Returns an empty queue.
    pub fn new(path: &Path) -> Self {
        Self {
            packet_ns: path.packet_ns(),
            buffer_packets: path.buffer_packets,
            free_at_ns: 0.0,
        }
    }

    /// Changes the rate. The packets in the queue leave as they would have.
    pub fn set_rate(&mut self, bits_ps: f64) {
        self.packet_ns = (PACKET_BYTES * 8) as f64 * 1e9 / bits_ps;
    }

    /// Takes a packet that arrives. Returns when it has left, or nothing if it does not fit.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let now = now_ns as f64;
        let waiting = (self.free_at_ns - now).max(0.0) / self.packet_ns;
        if waiting > self.buffer_packets.max(1.0) {
            return None;
        }
        self.free_at_ns = self.free_at_ns.max(now) + self.packet_ns;
        Some(self.free_at_ns as u64)
    }
}
