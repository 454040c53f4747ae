//! Recovers the received parts of a segmentation-offload burst that lost some of its units.
//!
//! A burst crosses the links as equal slices with one copy of the inner headers. The loss of a
//! slice need not cost the rest, because a TCP burst is a range of a byte stream. Each received
//! stretch becomes a shorter burst with its own sequence number. The receiver's TCP then sees
//! exactly the hole that the loss made. The loss stays visible, but it does not grow to 64 KB.

use crate::frame::{Frame, FramePool, VNET_BYTES};
use crate::headers::{Layers, be16};

/// Values of virtio_net `gso_type` (virtio 1.2, §5.1.6), without the ECN bit.
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

const IPPROTO_TCP: u8 = 6;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Offsets of the headers of a TCP burst, in bytes from the start of the Ethernet frame.
struct TcpBurst {
    layers: Layers,
    payload: usize,
    end: usize,
    segment_bytes: usize,
}

impl TcpBurst {
    /// Finds the headers, if the first `available_bytes` contain them and the frame is a TCP burst.
    fn locate(frame: &[u8], available_bytes: usize) -> Option<Self> {
        let vnet = frame.get(..VNET_BYTES)?;
        let ethernet = &frame[VNET_BYTES..];
        let v6 = match vnet[1] & !GSO_ECN {
            GSO_TCPV4 => false,
            GSO_TCPV6 => true,
            _ => return None,
        };
        // The virtio header is in the byte order of the sender's host, as its kernel wrote it. Both
        // ends of a cluster are little-endian machines of one architecture.
        let segment_bytes = usize::from(u16::from_le_bytes([vnet[4], vnet[5]]));
        let mut l3 = 14;
        while matches!(be16(ethernet, l3 - 2)?, 0x8100 | 0x88a8) {
            l3 += 4;
        }
        let (l4, end) = if v6 {
            if *ethernet.get(l3 + 6)? != IPPROTO_TCP {
                return None; // extension headers: TCP repairs the loss
            }
            (l3 + 40, l3 + 40 + usize::from(be16(ethernet, l3 + 4)?))
        } else {
            let header = usize::from(ethernet.get(l3)? & 0x0f) * 4;
            if header < 20 || *ethernet.get(l3 + 9)? != IPPROTO_TCP {
                return None;
            }
            (l3 + header, l3 + usize::from(be16(ethernet, l3 + 2)?))
        };
        let payload = l4 + usize::from(ethernet.get(l4 + 12)? >> 4) * 4;
        let has_all_headers = payload + VNET_BYTES <= available_bytes && payload >= l4 + 20;
        (segment_bytes > 0 && has_all_headers && end <= ethernet.len() && payload < end).then_some(
            Self {
                layers: Layers { l3, l4, v6 },
                payload,
                end,
                segment_bytes,
            },
        )
    }
}

/// Passes each of the stretches `ranges` of a damaged TCP burst to `out` as a frame. The stretches
/// are byte ranges of `frame`, ascending and not adjacent. There is no output if the headers are
/// lost or the frame is not a TCP burst.
pub fn salvage(
    frame: &[u8],
    ranges: &[std::ops::Range<usize>],
    pool: &mut FramePool,
    mut out: impl FnMut(Frame),
) {
    let Some(head) = ranges.first().filter(|range| range.start == 0) else {
        return;
    };
    let Some(burst) = TcpBurst::locate(frame, head.end) else {
        return;
    };
    for range in ranges {
        let from = range.start.saturating_sub(VNET_BYTES).max(burst.payload);
        let to = range.end.saturating_sub(VNET_BYTES).min(burst.end);
        if from < to {
            out(cut(frame, &burst, from, to, pool));
        }
    }
}

/// Returns the stretch `from..to` (offsets in the Ethernet frame) with headers of its own.
fn cut(frame: &[u8], burst: &TcpBurst, from: usize, to: usize, pool: &mut FramePool) -> Frame {
    let headers = VNET_BYTES + burst.payload;
    let mut part = pool.take(headers + to - from);
    let bytes = part.buffer();
    bytes[..headers].copy_from_slice(&frame[..headers]);
    bytes[headers..headers + to - from].copy_from_slice(&frame[VNET_BYTES + from..VNET_BYTES + to]);
    if to - from <= burst.segment_bytes {
        bytes[1] = 0; // a single segment is not a burst
        bytes[4..6].fill(0);
    }
    let ethernet = &mut bytes[VNET_BYTES..];
    let l4 = burst.layers.l4;
    let l4_bytes = (burst.payload - l4 + to - from) as u16;
    // The checksum is partial: the kernel completes it.
    let pseudo = burst.layers.set_length(ethernet, IPPROTO_TCP, l4_bytes);
    let tcp = &mut ethernet[l4..];
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let sequence = sequence.wrapping_add((from - burst.payload) as u32);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if to != burst.end {
        tcp[13] &= !(TCP_FIN | TCP_PSH);
    }
    if from != burst.payload {
        tcp[13] &= !TCP_CWR;
    }
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    part
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // a slice of one range is intended
mod tests {
    use super::*;
    use crate::headers::{fold, sum16};

    /// Returns a TCP/IPv4 burst of `payload` bytes; byte i of the stream is i mod 251.
    fn burst(payload: usize, gso: u16) -> Vec<u8> {
        let mut frame = vec![1, GSO_TCPV4, 0, 0, 0, 0, 34, 0, 16, 0];
        frame[4..6].copy_from_slice(&gso.to_le_bytes());
        frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
        let total = (40 + payload) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x30, 0x39, 0, 80]);
        frame.extend(1000u32.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x50, TCP_PSH | 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend((0..payload).map(|i| (i % 251) as u8));
        frame
    }

    #[test]
    fn salvage__burst_with_a_hole__yields_the_two_segments_around_it() {
        let frame = burst(5000, 1400);
        let mut parts = Vec::new();
        let ranges = [0..1500, 2500..frame.len()];
        salvage(&frame, &ranges, &mut FramePool::default(), |part| {
            parts.push(part)
        });
        assert_eq!(parts.len(), 2);
        let payload_offset = VNET_BYTES + 54;
        for (part, range) in parts.iter().zip(&ranges) {
            let bytes = part.as_slice();
            let start = range.start.max(payload_offset) - payload_offset;
            let sequence = u32::from_be_bytes(bytes[48..52].try_into().unwrap());
            assert_eq!(sequence, 1000 + start as u32);
            assert_eq!(
                &bytes[payload_offset..],
                &frame[range.start.max(payload_offset)..range.end]
            );
            assert_eq!(fold(sum16(&bytes[24..44])), 0xffff, "IPv4 header checksum");
        }
        assert_eq!(
            parts[0].as_slice()[57] & TCP_PSH,
            0,
            "only the last stretch pushes"
        );
        assert_eq!(parts[1].as_slice()[57] & TCP_PSH, TCP_PSH);
    }

    #[test]
    fn salvage__headers_lost_or_not_tcp__yields_nothing() {
        let frame = burst(5000, 1400);
        let assert_nothing = |frame: &[u8], ranges: &[std::ops::Range<usize>]| {
            salvage(frame, ranges, &mut FramePool::default(), |_| {
                panic!("nothing was to be saved")
            })
        };
        assert_nothing(&frame, &[1500..frame.len()]);
        assert_nothing(&frame, &[0..40, 1500..frame.len()]);
        let mut udp = frame.clone();
        udp[1] = 5;
        assert_nothing(&udp, &[0..1500]);
        for length in 0..80 {
            assert_nothing(&frame[..length.min(frame.len())], &[0..length.min(63)]);
        }
    }
}
