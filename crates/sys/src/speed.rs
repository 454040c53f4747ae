//! Link speed of a NIC.

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::{AsRawFd, OwnedFd};

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
/// Largest number of 32-bit words in one of the three sets of link modes that follow the head.
/// `link_mode_masks_nwords` is a signed byte.
const MODE_WORDS_MAX: usize = 127;

/// Head of `struct ethtool_link_settings`, with room for the sets of link modes.
#[repr(C)]
struct LinkSettings {
    command: u32,
    speed_mbps: u32,
    duplex_to_control: [u8; 7],
    mode_words: i8,
    transceiver_to_reserved: [u8; 32],
    modes: [u32; 3 * MODE_WORDS_MAX],
}

/// `struct ifreq` with a pointer as its data.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut LinkSettings,
    padding: [u8; 16],
}

/// Returns the speed of `interface` in bits per second, if its driver reports one.
///
/// The first call tells the number of words in the kernel's sets of link modes, and the second one
/// reads the settings (linux/ethtool.h, Linux 4.6).
pub fn link_speed_bps(interface: &str) -> Option<u64> {
    if interface.len() >= libc::IFNAMSIZ {
        return None;
    }
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .ok()?;
    let words = settings(&socket, interface, 0)?.mode_words.checked_neg()?;
    let speed_mbps = settings(&socket, interface, words)?.speed_mbps;
    (speed_mbps > 0 && speed_mbps < u32::MAX).then_some(u64::from(speed_mbps) * 1_000_000)
}

fn settings(socket: &OwnedFd, interface: &str, mode_words: i8) -> Option<LinkSettings> {
    let mut settings = LinkSettings {
        command: ETHTOOL_GLINKSETTINGS,
        speed_mbps: 0,
        duplex_to_control: [0; 7],
        mode_words,
        transceiver_to_reserved: [0; 32],
        modes: [0; 3 * MODE_WORDS_MAX],
    };
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        data: &raw mut settings,
        padding: [0; 16],
    };
    request.name[..interface.len()].copy_from_slice(interface.as_bytes());
    // SAFETY: SIOCETHTOOL reads a `struct ifreq`, whose data pointer leads to the head of a `struct
    // ethtool_link_settings` and room for three sets of as many words as the kernel can ask for.
    // Both live on this stack for the whole call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    (result == 0).then_some(settings)
}
