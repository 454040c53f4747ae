//! Structures of `bpf/wind/intf.h`, in the host's byte order.

use zerocopy::{Immutable, IntoBytes};

/// Most regions of all programs: `KUMI_WIND_REGIONS_MAX`.
pub const REGIONS_MAX: u32 = 1024;
/// Most programs: `KUMI_WIND_OWNERS_MAX`.
pub const OWNERS_MAX: u32 = 1024;
/// Length of a page of a region, in bytes: `KUMI_WIND_PAGE_BYTES`.
pub const PAGE_BYTES: u32 = 4096;

/// `struct kumi_wind_name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, Immutable)]
#[repr(C)]
pub struct Name {
    /// `receiver` of the requests.
    pub index: u32,
    /// UDP port of the program.
    pub port: u16,
    /// Always 0.
    pub reserved: u16,
}

/// `struct kumi_wind_session`.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct Session {
    /// Address of the peer, as IPv6.
    pub peer: [u8; 16],
    /// Key of the tags of requests.
    pub request_key: [u8; 16],
    /// Key of the tags of responses.
    pub response_key: [u8; 16],
    /// `receiver` of the responses.
    pub peer_index: u32,
    /// Number of the program.
    pub owner: u32,
    /// Number of the window.
    pub window: u32,
    /// UDP port of the peer.
    pub peer_port: u16,
    /// 0 or 1.
    pub has_tags: u16,
}

/// `struct kumi_wind_region`.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct Region {
    /// Secret that a request states.
    pub key: [u8; 16],
    /// Length in bytes; 0 for none.
    pub bytes: u64,
    /// Number of the program.
    pub owner: u32,
    /// Always 0.
    pub reserved: u32,
}
