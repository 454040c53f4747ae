//! Splits a segmentation burst of UDP datagrams for a host that does not take bursts.
//!
//! From Linux 6.2 on, the kernel of a sender hands over bursts (`VIRTIO_NET_HDR_GSO_UDP_L4`). An
//! older kernel refuses them with EINVAL. Bursts cross the links whole, which costs least. The
//! receiver knows its own kernel, so nothing needs to be negotiated.

use crate::frame::{Frame, FramePool, VNET_BYTES};
use crate::headers::{Layers, NEEDS_CSUM, be16};
use std::collections::VecDeque;

/// Value of virtio_net `gso_type`: a burst of UDP datagrams (virtio 1.2, §5.1.6).
const GSO_UDP_L4: u8 = 5;
const UDP_BYTES: usize = 8;
const UDP_CHECKSUM: usize = 6;
const IPPROTO_UDP: u8 = 17;
/// Largest number of datagrams in a burst (`UDP_MAX_SEGMENTS` since Linux 6.9).
const SEGMENTS_MAX: usize = 128;
/// Largest IP headers, in bytes, with options or extension headers. Each datagram gets a copy of
/// them.
const IP_HEADERS_BYTES_MAX: usize = 256;

/// Headers of a burst, in bytes from the start of the Ethernet frame.
struct Burst {
    layers: Layers,
    payload: usize,
    segment_bytes: usize,
}

impl Burst {
    /// Finds the headers, if the frame is a burst whose checksum is partial.
    fn locate(frame: &[u8]) -> Option<Self> {
        let (vnet, ethernet) = frame.split_at_checked(VNET_BYTES)?;
        let field = |index: usize| usize::from(u16::from_le_bytes([vnet[index], vnet[index + 1]]));
        if vnet[0] & NEEDS_CSUM == 0 || vnet[1] != GSO_UDP_L4 || field(8) != UDP_CHECKSUM {
            return None;
        }
        let mut l3 = 14;
        while matches!(be16(ethernet, l3 - 2)?, 0x8100 | 0x88a8) {
            l3 += 4;
        }
        let (l4, segment_bytes) = (field(6), field(4));
        let (v6, ip_bytes) = match be16(ethernet, l3 - 2)? {
            0x0800 => (false, 20),
            0x86dd => (true, 40),
            _ => return None,
        };
        let payload = l4 + UDP_BYTES;
        let is_complete = l4 >= l3 + ip_bytes && payload < ethernet.len() && segment_bytes > 0;
        // A peer must not turn one frame into more datagrams than a kernel would.
        let is_genuine = is_complete
            && l4 <= l3 + IP_HEADERS_BYTES_MAX
            && (ethernet.len() - payload).div_ceil(segment_bytes) <= SEGMENTS_MAX;
        is_genuine.then_some(Self {
            layers: Layers { l3, l4, v6 },
            payload,
            segment_bytes,
        })
    }

    /// Returns datagram `number` of the burst, with `payload`.
    fn datagram(&self, burst: &[u8], number: u16, payload: &[u8], pool: &mut FramePool) -> Frame {
        let headers = VNET_BYTES + self.payload;
        let mut frame = pool.take(headers + payload.len());
        let bytes = frame.buffer();
        bytes[..headers].copy_from_slice(&burst[..headers]);
        bytes[headers..headers + payload.len()].copy_from_slice(payload);
        bytes[1..6].fill(0); // no longer a burst
        let Layers { l3, l4, v6 } = self.layers;
        let ethernet = &mut bytes[VNET_BYTES..];
        if !v6 {
            let id = be16(ethernet, l3 + 4).unwrap_or(0).wrapping_add(number);
            ethernet[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
        }
        let udp_bytes = (payload.len() + UDP_BYTES) as u16;
        let pseudo = self.layers.set_length(ethernet, IPPROTO_UDP, udp_bytes);
        ethernet[l4 + 4..l4 + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        ethernet[l4 + UDP_CHECKSUM..l4 + UDP_BYTES].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }
}

/// Splits `first` if it is a burst of UDP datagrams. Returns the first datagram and puts the others
/// at the front of `queue`.
pub(crate) fn scatter(first: Frame, queue: &mut VecDeque<Frame>, pool: &mut FramePool) -> Frame {
    let Some(burst) = Burst::locate(first.as_slice()) else {
        return first;
    };
    let payload = &first.as_slice()[VNET_BYTES + burst.payload..];
    let chunks = payload.chunks(burst.segment_bytes).enumerate();
    let datagrams =
        chunks.map(|(number, chunk)| burst.datagram(first.as_slice(), number as u16, chunk, pool));
    let mut datagrams: Vec<Frame> = datagrams.collect();
    for datagram in datagrams.drain(1..).rev() {
        queue.push_front(datagram);
    }
    pool.give(first);
    datagrams.swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::coalesce;
    use crate::headers::{fold, sum16};

    /// Returns a UDP datagram as a kernel hands it over, with IPv4 or IPv6.
    fn datagram(v6: bool, payload: &[u8]) -> Frame {
        let udp = 8 + payload.len() as u16;
        let l4: u16 = if v6 { 54 } else { 34 };
        let mut bytes = vec![NEEDS_CSUM, 0, 0, 0, 0, 0, l4 as u8, 0, 6, 0];
        bytes.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(udp.to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend([0xfe; 32]);
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + udp).to_be_bytes());
            bytes.extend([0, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        bytes.extend([0, 9, 0, 53]);
        bytes.extend(udp.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(payload);
        let mut frame = FramePool::default().take(bytes.len());
        frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
        frame
    }

    fn burst(v6: bool, payloads: &[Vec<u8>]) -> Frame {
        let mut queue: VecDeque<Frame> = payloads.iter().map(|p| datagram(v6, p)).collect();
        let first = queue.pop_front().unwrap();
        let burst = coalesce(first, &mut queue, &mut FramePool::default());
        assert!(queue.is_empty(), "one burst of all");
        burst
    }

    #[test]
    fn scatter__burst__is_split_into_its_original_datagrams() {
        let payloads: Vec<Vec<u8>> = [700, 700, 700, 40]
            .iter()
            .enumerate()
            .map(|(index, bytes)| vec![index as u8 + 1; *bytes])
            .collect();
        for v6 in [false, true] {
            let (mut queue, mut pool) = (VecDeque::new(), FramePool::default());
            let first = scatter(burst(v6, &payloads), &mut queue, &mut pool);
            let frames: Vec<Frame> = [first].into_iter().chain(queue).collect();
            assert_eq!(frames.len(), payloads.len());
            let payload_offset = VNET_BYTES + if v6 { 62 } else { 42 };
            for (index, (frame, payload)) in frames.iter().zip(&payloads).enumerate() {
                let bytes = frame.as_slice();
                assert_eq!(bytes[payload_offset..], payload[..]);
                assert_eq!((bytes[0], bytes[1]), (NEEDS_CSUM, 0));
                let udp = be16(bytes, payload_offset - 4).map(usize::from);
                assert_eq!(udp, Some(payload.len() + 8));
                if !v6 {
                    assert_eq!(be16(bytes, VNET_BYTES + 18), Some(7 + index as u16), "id");
                    let header = &bytes[VNET_BYTES + 14..VNET_BYTES + 34];
                    assert_eq!(fold(sum16(header)), 0xffff, "header checksum");
                }
            }
        }
    }

    #[test]
    fn scatter__single_datagram_or_truncated_burst__is_unchanged() {
        let (mut queue, mut pool) = (VecDeque::new(), FramePool::default());
        let single = datagram(false, &[1; 50]);
        let output = scatter(single.clone(), &mut queue, &mut pool);
        assert_eq!(output, single);
        let full = burst(false, &[vec![1; 50], vec![2; 50]]);
        for length in 0..VNET_BYTES + 43 {
            let mut frame = pool.take(length);
            frame.buffer()[..length].copy_from_slice(&full.as_slice()[..length]);
            let output = scatter(frame.clone(), &mut queue, &mut pool);
            assert_eq!(output.as_slice(), frame.as_slice());
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn scatter__too_many_segments_or_oversized_headers__leave_the_burst_whole() {
        let burst = |segment_bytes: u16, l4: u16| {
            let mut frame = datagram(false, &[7; 40_000]);
            let bytes = frame.buffer();
            bytes[1] = GSO_UDP_L4;
            bytes[4..6].copy_from_slice(&segment_bytes.to_le_bytes());
            bytes[6..8].copy_from_slice(&l4.to_le_bytes());
            frame
        };
        for (segment_bytes, l4, count) in [(400, 34, 100), (100, 34, 1), (400, 30_000, 1)] {
            let (mut queue, mut pool) = (VecDeque::new(), FramePool::default());
            scatter(burst(segment_bytes, l4), &mut queue, &mut pool);
            assert_eq!(queue.len() + 1, count, "{segment_bytes} B, headers of {l4}");
        }
    }
}
