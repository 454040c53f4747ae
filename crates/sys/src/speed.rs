//! Link speed of a NIC.

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GSET: u32 = 1;
/// Size of `struct ethtool_cmd`, in bytes.
const COMMAND_BYTES: usize = 44;

/// Returns the speed of `interface` in bits per second, if its driver reports one.
pub fn link_speed_bps(interface: &str) -> Option<u64> {
    if interface.len() >= libc::IFNAMSIZ {
        return None;
    }
    let fd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .ok()?;
    let mut command = [0u8; COMMAND_BYTES];
    command[..4].copy_from_slice(&ETHTOOL_GSET.to_ne_bytes());
    let mut request = [0u8; 40]; // struct ifreq: a name, then a pointer
    request[..interface.len()].copy_from_slice(interface.as_bytes());
    request[16..24].copy_from_slice(&(command.as_mut_ptr() as usize).to_ne_bytes());
    // SAFETY: SIOCETHTOOL reads a `struct ifreq` of 40 bytes whose data pointer leads to a `struct
    // ethtool_cmd` of 44 bytes; both live on this stack for the whole call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL as _, request.as_mut_ptr()) };
    let low = u16::from_ne_bytes([command[12], command[13]]);
    let high = u16::from_ne_bytes([command[28], command[29]]);
    let mbps = u64::from(high) << 16 | u64::from(low);
    (result == 0 && mbps > 0 && mbps < u64::from(u32::MAX)).then_some(mbps * 1_000_000)
}
