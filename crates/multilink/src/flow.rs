//! Assigns frames to transport flows. Only frames of one flow must keep their order.

use crate::frame::VNET_BYTES;

/// Number of flows that a sender distinguishes. Two flows in one bucket wait for each other
/// needlessly, which is rare and harmless. The table takes 8 KB per peer.
pub const FLOW_BUCKETS: usize = 1024;

/// Returns the bucket of a frame's flow: a hash of the addresses, and of the ports if there are
/// any. All fragments between two hosts, and all non-IP frames between two stations, therefore
/// count as one flow.
pub fn bucket(frame: &[u8]) -> usize {
    let Some(ethernet) = frame.get(VNET_BYTES..) else {
        return 0;
    };
    let mut l3 = 14;
    let mut ethertype = ethernet.get(12..14);
    while matches!(ethertype, Some([0x81, 0] | [0x88, 0xa8])) {
        ethertype = ethernet.get(l3 + 2..l3 + 4);
        l3 += 4;
    }
    let key = match ethertype {
        Some([0x08, 0x00]) => ipv4_key(ethernet, l3),
        Some([0x86, 0xdd]) => ipv6_key(ethernet, l3),
        _ => ethernet.get(..14).map(|macs| (macs, None)),
    };
    key.map_or(0, |(addresses, ports)| {
        mix(addresses, ports.unwrap_or_default())
    })
}

type Key<'a> = Option<(&'a [u8], Option<&'a [u8]>)>;

fn ipv4_key(ethernet: &[u8], l3: usize) -> Key<'_> {
    let header = ethernet.get(l3..l3 + 20)?;
    let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
    let l4 = l3 + usize::from(header[0] & 0x0f) * 4;
    let has_ports = matches!(header[9], 6 | 17) && !is_fragment;
    Some((
        &header[12..20],
        has_ports.then(|| ethernet.get(l4..l4 + 4)).flatten(),
    ))
}

fn ipv6_key(ethernet: &[u8], l3: usize) -> Key<'_> {
    let header = ethernet.get(l3..l3 + 40)?;
    let has_ports = matches!(header[6], 6 | 17);
    Some((
        &header[8..40],
        has_ports.then(|| ethernet.get(l3 + 40..l3 + 44)).flatten(),
    ))
}

/// Returns the FNV-1a hash of both parts, reduced to a bucket.
fn mix(addresses: &[u8], ports: &[u8]) -> usize {
    let hash = addresses
        .iter()
        .chain(ports)
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    ((hash ^ hash >> 32) as usize) % FLOW_BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(source_port: u16, fragment: bool) -> Vec<u8> {
        let mut frame = vec![0; VNET_BYTES];
        frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
        frame.extend([
            0x45,
            0,
            0,
            40,
            0,
            0,
            if fragment { 0x20 } else { 0x40 },
            0,
            64,
            6,
            0,
            0,
        ]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(source_port.to_be_bytes());
        frame.extend([0, 80]);
        frame
    }

    #[test]
    fn flow__64_different_ports__fall_into_more_than_50_buckets() {
        let buckets: std::collections::BTreeSet<usize> =
            (0..64).map(|port| bucket(&tcp(port, false))).collect();
        assert!(
            buckets.len() > 50,
            "64 flows fell into {} buckets",
            buckets.len()
        );
    }

    #[test]
    fn flow__ip_fragments__share_a_bucket_regardless_of_ports() {
        assert_eq!(bucket(&tcp(1, true)), bucket(&tcp(2, true)));
    }

    #[test]
    fn flow__truncated_frames__get_a_valid_bucket() {
        let frame = tcp(1, false);
        for length in 0..frame.len() {
            assert!(bucket(&frame[..length]) < FLOW_BUCKETS);
        }
    }
}
