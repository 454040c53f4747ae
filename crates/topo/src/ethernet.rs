//! Wire size and payload of a full TCP frame on an Ethernet with an MTU of 1500.

/// Payload of a full TCP segment with timestamps, in bytes: 1500 − 20 − 20 − 12.
pub const SEGMENT_BYTES: u64 = 1448;

/// Wire size of a full frame, in bytes: 1500 + header 14 + FCS 4 + preamble 8 + gap 12 (IEEE
/// 802.3).
pub const WIRE_FRAME_BYTES: u64 = 1538;

/// Highest share of the wire that plain TCP's payload can reach.
pub const PLAIN_TCP: f64 = SEGMENT_BYTES as f64 / WIRE_FRAME_BYTES as f64;
