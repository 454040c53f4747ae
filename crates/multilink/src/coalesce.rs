//! Joins the datagrams of one UDP flow that are delivered together into one segmentation burst.
//!
//! Frame by frame, the way from the device to the socket is most of the cost of a small datagram.
//! The kernel takes a burst of equal datagrams (`VIRTIO_NET_HDR_GSO_UDP_L4`, Linux 6.2). It splits
//! the burst in front of the socket, or not at all if the program asked for `UDP_GRO`.

use crate::frame::{FRAME_BYTES_MAX, Frame, FramePool, VNET_BYTES};
use crate::headers::{Layers, NEEDS_CSUM, be16};
use std::collections::VecDeque;

/// Value of virtio_net `gso_type`: a burst of UDP datagrams (virtio 1.2, §5.1.6).
const GSO_UDP_L4: u8 = 5;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;
const UDP_BYTES: usize = 8;
const IPPROTO_UDP: u8 = 17;
/// Largest number of datagrams in a burst (`UDP_MAX_SEGMENTS` of the first kernels with such
/// bursts).
const SEGMENTS_MAX: usize = 64;
/// Largest IP packet, in bytes.
const IP_BYTES_MAX: usize = 65_535;

/// A whole UDP datagram in an Ethernet frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Datagram {
    layers: Layers,
    payload_bytes: usize,
}

/// Reads a 16-bit length field.
fn length(bytes: &[u8], offset: usize) -> Option<usize> {
    be16(bytes, offset).map(usize::from)
}

impl Datagram {
    /// Finds the headers, if the frame is a whole UDP datagram that can be part of a burst. Its
    /// checksum must be partial, and no bytes may follow the datagram.
    fn locate(frame: &[u8]) -> Option<Self> {
        let (vnet, ethernet) = frame.split_at_checked(VNET_BYTES)?;
        if vnet[0] != NEEDS_CSUM || vnet[1] != 0 {
            return None;
        }
        let (l3, v6) = match be16(ethernet, 12)? {
            0x0800 => (14, false),
            0x86dd => (14, true),
            _ => return None,
        };
        let (l4, end) = if v6 {
            let is_udp = *ethernet.get(l3 + 6)? == IPPROTO_UDP;
            let end = l3 + 40 + length(ethernet, l3 + 4)?;
            (is_udp.then_some(l3 + 40)?, end)
        } else {
            let is_unfragmented = be16(ethernet, l3 + 6)? & 0x3fff == 0;
            let is_plain = *ethernet.get(l3)? == 0x45 && *ethernet.get(l3 + 9)? == IPPROTO_UDP;
            let end = l3 + length(ethernet, l3 + 2)?;
            ((is_unfragmented && is_plain).then_some(l3 + 20)?, end)
        };
        let payload_bytes = end.checked_sub(l4 + UDP_BYTES)?;
        let is_exact =
            end == ethernet.len() && length(ethernet, l4 + 4)? == payload_bytes + UDP_BYTES;
        let sums_udp = usize::from(u16::from_le_bytes([vnet[6], vnet[7]])) == l4
            && usize::from(u16::from_le_bytes([vnet[8], vnet[9]])) == UDP_CHECKSUM;
        (is_exact && sums_udp && payload_bytes > 0).then_some(Self {
            layers: Layers { l3, l4, v6 },
            payload_bytes,
        })
    }

    /// Returns whether `next` belongs to the same flow and every router treats it alike. Only
    /// lengths, identification and checksums may differ.
    fn is_alike(&self, first: &[u8], next: &[u8]) -> bool {
        let (a, b) = (&first[VNET_BYTES..], &next[VNET_BYTES..]);
        let Layers { l3, l4, v6 } = self.layers;
        let is_same = |range: std::ops::Range<usize>| a[range.clone()] == b[range];
        let is_same_ip = if v6 {
            is_same(l3..l3 + 4) && is_same(l3 + 6..l4)
        } else {
            is_same(l3..l3 + 2) && is_same(l3 + 6..l3 + 10) && is_same(l3 + 12..l4)
        };
        is_same(0..l3) && is_same_ip && is_same(l4..l4 + 4)
    }
}

/// Appends to `first` the frames at the front of `queue` that fit into one burst with it. Their
/// buffers return to `pool`.
pub(crate) fn coalesce(first: Frame, queue: &mut VecDeque<Frame>, pool: &mut FramePool) -> Frame {
    let Some(head) = Datagram::locate(first.as_slice()) else {
        return first;
    };
    let l4 = head.layers.l4;
    let headers = l4 + UDP_BYTES - head.layers.l3;
    let (mut count, mut payload_bytes) = (1, head.payload_bytes);
    for next in queue.iter().take(SEGMENTS_MAX - 1) {
        let fits = |datagram: &Datagram| {
            datagram.payload_bytes <= head.payload_bytes
                && headers + payload_bytes + datagram.payload_bytes <= IP_BYTES_MAX
                && datagram.layers == head.layers
                && head.is_alike(first.as_slice(), next.as_slice())
        };
        let Some(datagram) = Datagram::locate(next.as_slice()).filter(fits) else {
            break;
        };
        payload_bytes += datagram.payload_bytes;
        count += 1;
        if datagram.payload_bytes < head.payload_bytes {
            break; // only the last may be shorter
        }
    }
    if count == 1 {
        return first;
    }
    let mut burst = pool.take(FRAME_BYTES_MAX);
    let payload_offset = VNET_BYTES + l4 + UDP_BYTES;
    let bytes = burst.buffer();
    bytes[..first.as_slice().len()].copy_from_slice(first.as_slice());
    let mut end = first.as_slice().len();
    pool.give(first);
    for next in queue.drain(..count - 1) {
        let payload = &next.as_slice()[payload_offset..];
        bytes[end..end + payload.len()].copy_from_slice(payload);
        end += payload.len();
        pool.give(next);
    }
    bytes[1] = GSO_UDP_L4;
    bytes[2..4].copy_from_slice(&((l4 + UDP_BYTES) as u16).to_le_bytes());
    bytes[4..6].copy_from_slice(&(head.payload_bytes as u16).to_le_bytes());
    let ethernet = &mut bytes[VNET_BYTES..end];
    let udp_bytes = (payload_bytes + UDP_BYTES) as u16;
    let pseudo = head.layers.set_length(ethernet, IPPROTO_UDP, udp_bytes);
    ethernet[l4 + 4..l4 + 6].copy_from_slice(&udp_bytes.to_be_bytes());
    ethernet[l4 + UDP_CHECKSUM..l4 + UDP_BYTES].copy_from_slice(&pseudo.to_be_bytes());
    burst.set_len(end);
    burst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{fold, sum16};

    /// Returns a UDP/IPv4 datagram from `port` with `payload`, as a kernel delivers it.
    fn datagram(port: u16, payload: &[u8]) -> Frame {
        let mut bytes = vec![NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, 6, 0];
        bytes.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
        bytes.extend([0x45, 0]);
        bytes.extend((28 + payload.len() as u16).to_be_bytes());
        bytes.extend([7, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(port.to_be_bytes());
        bytes.extend([0, 53]);
        bytes.extend((8 + payload.len() as u16).to_be_bytes());
        bytes.extend([0xab, 0xcd]);
        bytes.extend(payload);
        let mut frame = FramePool::default().take(bytes.len());
        frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
        frame
    }

    fn run(frames: Vec<Frame>) -> Vec<Vec<u8>> {
        let (mut queue, mut pool) = (VecDeque::from(frames), FramePool::default());
        let mut out = Vec::new();
        while let Some(first) = queue.pop_front() {
            out.push(coalesce(first, &mut queue, &mut pool).as_slice().to_vec());
        }
        out
    }

    #[test]
    fn coalesce__equal_datagrams_and_a_shorter_last__form_one_burst() {
        let payloads: Vec<Vec<u8>> = [100, 100, 100, 40, 100]
            .iter()
            .enumerate()
            .map(|(index, bytes)| vec![index as u8; *bytes])
            .collect();
        let out = run(payloads
            .iter()
            .map(|payload| datagram(9, payload))
            .collect());
        assert_eq!(out.len(), 2);
        let burst = &out[0];
        assert_eq!((burst[0], burst[1]), (NEEDS_CSUM, GSO_UDP_L4));
        assert_eq!(burst[2..6], [42, 0, 100, 0], "header and segment bytes");
        assert_eq!(burst[VNET_BYTES + 42..], payloads[..4].concat());
        assert_eq!(be16(burst, VNET_BYTES + 16), Some(28 + 340), "IP length");
        assert_eq!(be16(burst, VNET_BYTES + 38), Some(8 + 340), "UDP length");
        assert_eq!(
            fold(sum16(&burst[VNET_BYTES + 14..VNET_BYTES + 34])),
            0xffff
        );
        assert_eq!(out[1], datagram(9, &payloads[4]).as_slice());
    }

    #[test]
    fn coalesce__incompatible_datagrams__are_not_joined() {
        let mut other_ttl = datagram(9, &[1; 50]);
        other_ttl.buffer()[VNET_BYTES + 22] = 63;
        let mut fragment = datagram(9, &[1; 50]);
        fragment.buffer()[VNET_BYTES + 20] = 0x20;
        let mut summed = datagram(9, &[1; 50]);
        summed.buffer()[0] = 0;
        let frames = [
            datagram(9, &[1; 50]),
            datagram(8, &[1; 50]),
            datagram(8, &[1; 51]),
            other_ttl,
            fragment,
            summed,
            datagram(9, &[]),
        ];
        let expected: Vec<Vec<u8>> = frames.iter().map(|f| f.as_slice().to_vec()).collect();
        assert_eq!(run(frames.into()), expected);
    }

    #[test]
    fn coalesce__long_run__keeps_each_burst_within_the_ip_length_limit() {
        let out = run((0..200).map(|_| datagram(9, &[5; 1350])).collect());
        assert!(
            out.iter()
                .all(|burst| burst.len() < VNET_BYTES + 14 + IP_BYTES_MAX)
        );
        let payload: usize = out.iter().map(|burst| burst.len() - VNET_BYTES - 42).sum();
        assert_eq!(payload, 200 * 1350);
        assert!(out.len() < 8, "{} bursts", out.len());
    }

    #[test]
    fn coalesce__truncated_frame__is_not_recognized_as_a_datagram() {
        let full = datagram(9, &[1; 50]).as_slice().to_vec();
        for length in 0..full.len() {
            let mut frame = FramePool::default().take(length);
            frame.buffer()[..length].copy_from_slice(&full[..length]);
            assert_eq!(Datagram::locate(frame.as_slice()), None, "{length}");
        }
    }
}
