//! What a full frame of TCP takes on an Ethernet at an MTU of 1500, and what it brings.

/// Payload of a full TCP segment with timestamps: 1500 − 20 − 20 − 12.
pub const SEGMENT_BYTES: u64 = 1448;

/// Bytes of a full frame on the wire: 1500 + header 14 + FCS 4 + preamble 8 + gap 12 (IEEE 802.3).
pub const WIRE_FRAME_BYTES: u64 = 1538;

/// Payload share of the wire that plain TCP reaches at most.
pub const PLAIN_TCP: f64 = SEGMENT_BYTES as f64 / WIRE_FRAME_BYTES as f64;
