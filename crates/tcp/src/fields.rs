//! Reads fields of a kernel structure at their offsets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The structure's bytes. Reading beyond the end panics; callers check the size first.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[at..at + N]);
        field
    }

    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// Reads an address of sixteen bytes, of which IPv4 uses the first four, and a port at another
    /// offset.
    pub fn address(&self, at: usize, port_at: usize, is_ipv6: bool) -> SocketAddr {
        let ip = if is_ipv6 {
            IpAddr::from(Ipv6Addr::from(self.array::<16>(at))).to_canonical()
        } else {
            IpAddr::from(Ipv4Addr::from(self.array::<4>(at)))
        };
        SocketAddr::new(ip, self.u16(port_at))
    }
}
