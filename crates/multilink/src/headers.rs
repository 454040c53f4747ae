//! Headers of the frames that cross the device: their fields, and the fields that depend on the
//! length.

/// Bit in `flags` of a virtio_net header: the checksum is partial (virtio 1.2, §5.1.6).
pub const NEEDS_CSUM: u8 = 1;

/// Reads the 16-bit field at `offset`, if it exists.
pub fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(
        bytes.get(offset..offset + 2)?.try_into().ok()?,
    ))
}

/// Returns the sum of the 16-bit words, unfolded (RFC 1071).
pub fn sum16(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

/// Folds the carries of a sum into 16 bits (RFC 1071).
pub fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Offsets of the IP and transport headers of a frame, in bytes from the start of the Ethernet
/// frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// True if the packet is IPv6.
    pub v6: bool,
}

impl Layers {
    /// Writes the IP header's length field for `l4_bytes` of transport header and payload, and its
    /// checksum. Returns the sum of the pseudo-header, which the transport's checksum field holds
    /// while its checksum is partial.
    pub fn set_length(&self, ethernet: &mut [u8], protocol: u8, l4_bytes: u16) -> u16 {
        let (l3, l4) = (self.l3, self.l4);
        let addresses = if self.v6 {
            ethernet[l3 + 4..l3 + 6].copy_from_slice(&l4_bytes.to_be_bytes());
            l3 + 8..l3 + 40
        } else {
            let total = (l4 - l3) as u16 + l4_bytes;
            ethernet[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            ethernet[l3 + 10..l3 + 12].fill(0);
            let checksum = !fold(sum16(&ethernet[l3..l4]));
            ethernet[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
            l3 + 12..l3 + 20
        };
        fold(sum16(&ethernet[addresses]) + u32::from(protocol) + u32::from(l4_bytes))
    }
}
