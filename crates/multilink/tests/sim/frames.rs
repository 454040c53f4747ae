//! Frames of the traffic generator, made from a flow and a position and checked against both.

use kumi_multilink::frame::VNET_BYTES;
use std::sync::OnceLock;

/// Period of the contents, in bytes. It is prime, so that shifted contents never match.
const PERIOD: usize = 65_521;
const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_UDP_L4: u8 = 5;
const PSH_ACK: u8 = 0x18;
const PSH: u8 = 0x08;
/// EtherType for local experiments (IEEE 802).
const RAW_ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Kind of a flow's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Frames of one UDP datagram each.
    Udp,
    /// Segmentation-offload bursts of a TCP stream.
    Tcp,
    /// Segmentation-offload bursts of UDP datagrams, which cannot be salvaged.
    UdpBurst,
    /// Broadcast frames that are not IP.
    Broadcast,
}

/// A flow and the properties that its frames share.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    pub id: u16,
    pub from: usize,
    pub to: usize,
    pub shape: Shape,
    /// Segment size of its bursts, in bytes.
    pub segment_bytes: u16,
}

/// Returns the MAC address of a host's device.
pub fn device_mac(host: usize) -> [u8; 6] {
    [2, 0xaa, 0, 0, 0, host as u8]
}

fn contents(flow: u16, position: u64, bytes: usize) -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut rng = fastrand::Rng::with_seed(1);
        let period: Vec<u8> = (0..PERIOD).map(|_| rng.u8(..)).collect();
        period
            .iter()
            .chain(&period)
            .chain(&period[..16])
            .copied()
            .collect()
    });
    let start = (position + u64::from(flow) * 977) as usize % PERIOD;
    &table[start..start + bytes]
}

fn sum16(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn header_bytes(shape: Shape) -> usize {
    match shape {
        Shape::Tcp => 20,
        Shape::Udp | Shape::UdpBurst => 8,
        Shape::Broadcast => 0,
    }
}

/// Returns the bytes of a frame without its payload.
pub fn overhead_bytes(shape: Shape) -> usize {
    let ip = if shape == Shape::Broadcast {
        0
    } else {
        IP_BYTES
    };
    VNET_BYTES + ETHERNET_BYTES + ip + header_bytes(shape)
}

/// Returns the smallest payload, in bytes. It has room for the flow's number and the position, and
/// makes the frame as long as Ethernet's minimum of 60 bytes.
pub fn payload_bytes_min(shape: Shape) -> usize {
    match shape {
        Shape::Broadcast => 46,
        Shape::Udp | Shape::UdpBurst => 18,
        Shape::Tcp => 6,
    }
}

/// Returns the frame of `flow` at `position` with `bytes` of payload, after its virtio_net header.
/// The position counts bytes in a TCP flow and frames in other flows.
pub fn build(flow: &Flow, position: u64, bytes: usize) -> Vec<u8> {
    assert!(bytes >= payload_bytes_min(flow.shape));
    let mut frame = Vec::with_capacity(overhead_bytes(flow.shape) + bytes);
    let is_burst = matches!(flow.shape, Shape::Tcp | Shape::UdpBurst)
        && bytes > usize::from(flow.segment_bytes);
    let mut vnet = [0; VNET_BYTES];
    if is_burst {
        vnet[1] = if flow.shape == Shape::Tcp {
            GSO_TCPV4
        } else {
            GSO_UDP_L4
        };
        vnet[4..6].copy_from_slice(&flow.segment_bytes.to_le_bytes());
    }
    if flow.shape == Shape::Tcp {
        vnet[0] = NEEDS_CSUM;
        vnet[6..8].copy_from_slice(&((ETHERNET_BYTES + IP_BYTES) as u16).to_le_bytes());
        vnet[8..10].copy_from_slice(&16u16.to_le_bytes());
    }
    frame.extend(vnet);
    let to = if flow.shape == Shape::Broadcast {
        [0xff; 6]
    } else {
        device_mac(flow.to)
    };
    frame.extend(to);
    frame.extend(device_mac(flow.from));
    if flow.shape == Shape::Broadcast {
        frame.extend(RAW_ETHERTYPE);
    } else {
        frame.extend([8, 0]);
        extend_ip(&mut frame, flow, position, bytes);
    }
    if flow.shape == Shape::Tcp {
        frame.extend(contents(flow.id, position, bytes));
    } else {
        frame.extend(flow.id.to_be_bytes());
        frame.extend((position as u32).to_be_bytes());
        frame.extend((bytes as u32).to_be_bytes());
        frame.extend(contents(flow.id, position * 7919, bytes - 10));
    }
    frame
}

fn extend_ip(frame: &mut Vec<u8>, flow: &Flow, position: u64, bytes: usize) {
    let l4_bytes = header_bytes(flow.shape) + bytes;
    let protocol = if flow.shape == Shape::Tcp { 6 } else { 17 };
    let start = frame.len();
    frame.extend([0x45, 0]);
    frame.extend(((IP_BYTES + l4_bytes) as u16).to_be_bytes());
    frame.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend([10, 0, 0, flow.from as u8, 10, 0, 0, flow.to as u8]);
    let checksum = !fold(sum16(&frame[start..]));
    frame[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
    let pseudo = fold(sum16(&frame[start + 12..]) + u32::from(protocol) + l4_bytes as u32);
    frame.extend((10_000 + flow.id).to_be_bytes());
    frame.extend([0x4e, 0x20]);
    if flow.shape == Shape::Tcp {
        frame.extend((position as u32).to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x50, PSH_ACK, 0xff, 0xff]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend([0, 0]);
    } else {
        frame.extend((l4_bytes as u16).to_be_bytes());
        frame.extend([0, 0]); // no checksum, which IPv4 allows
    }
}

/// Returns the flow's number, the position and the bytes of payload of a frame.
pub fn identify(frame: &[u8]) -> Option<(u16, u64, usize)> {
    let ethernet = frame.get(VNET_BYTES..)?;
    let be16 = |offset: usize| {
        Some(u16::from_be_bytes(
            ethernet.get(offset..offset + 2)?.try_into().ok()?,
        ))
    };
    let be32 = |offset: usize| {
        Some(u32::from_be_bytes(
            ethernet.get(offset..offset + 4)?.try_into().ok()?,
        ))
    };
    if ethernet.get(12..14)? == RAW_ETHERTYPE {
        return Some((
            be16(14)?,
            u64::from(be32(16)?),
            ethernet.len() - ETHERNET_BYTES,
        ));
    }
    let l4 = ETHERNET_BYTES + IP_BYTES;
    let total = usize::from(be16(16)?);
    let flow = be16(l4)?.checked_sub(10_000)?;
    match ethernet.get(23)? {
        6 => Some((
            flow,
            u64::from(be32(l4 + 4)?),
            total.checked_sub(IP_BYTES + 20)?,
        )),
        17 => Some((
            flow,
            u64::from(be32(l4 + 10)?),
            total.checked_sub(IP_BYTES + 8)?,
        )),
        _ => None,
    }
}

/// Returns the stretch of `bytes` at `position` of a TCP burst, as the core should cut it: a
/// segment or a shorter burst with correct lengths, sequence number and checksums. `is_end` is true
/// at the burst's end.
pub fn stretch(flow: &Flow, position: u64, bytes: usize, is_end: bool) -> Vec<u8> {
    let mut frame = vec![0; 0];
    frame.extend(build_any_length(flow, position, bytes));
    if !is_end {
        frame[VNET_BYTES + ETHERNET_BYTES + IP_BYTES + 13] &= !PSH;
    }
    frame
}

fn build_any_length(flow: &Flow, position: u64, bytes: usize) -> Vec<u8> {
    let least = payload_bytes_min(flow.shape);
    if bytes >= least {
        return build(flow, position, bytes);
    }
    // This is shorter than a generated frame can be, so its headers are built separately.
    let mut frame = build(flow, position, least);
    frame.truncate(overhead_bytes(flow.shape));
    let mut short = frame[..VNET_BYTES + ETHERNET_BYTES].to_vec();
    extend_ip(&mut short, flow, position, bytes);
    short.extend(contents(flow.id, position, bytes));
    short
}
