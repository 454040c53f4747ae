//! TAP devices with offloads.

use nix::libc;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
const TUNSETCARRIER: u64 = 0x4004_54e2;

const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const TUN_F_CSUM: u64 = 0x01;
const TUN_F_TSO4: u64 = 0x02;
const TUN_F_TSO6: u64 = 0x04;
const TUN_F_TSO_ECN: u64 = 0x08;
const TUN_F_USO4: u64 = 0x20;
const TUN_F_USO6: u64 = 0x40;

/// Size of the virtio_net header on every frame, in bytes: `struct virtio_net_hdr`.
pub const VNET_HEADER_BYTES: i32 = 10;

/// Offloads that a device offers to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapOffloads {
    /// Checksums may be left partial.
    pub checksum: bool,
    /// TCP bursts may be left unsegmented.
    pub tcp_segmentation: bool,
    /// UDP bursts may be left unsegmented (Linux 6.2 and later).
    pub udp_segmentation: bool,
}

impl TapOffloads {
    /// All offloads, which are tried first.
    pub const ALL: Self = Self {
        checksum: true,
        tcp_segmentation: true,
        udp_segmentation: true,
    };

    fn bits(self) -> u64 {
        let mut bits = 0;
        if self.checksum {
            bits |= TUN_F_CSUM;
        }
        if self.tcp_segmentation {
            bits |= TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        }
        if self.udp_segmentation {
            bits |= TUN_F_USO4 | TUN_F_USO6;
        }
        bits
    }
}

/// Returns whether the TUN or TAP device `name` has several queues; `None` if there is no such
/// device.
pub fn is_multi_queue(name: &str) -> Option<bool> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/tun_flags")).ok()?;
    let flags = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
    Some(flags & u32::from(IFF_MULTI_QUEUE) != 0)
}

/// One queue of a TAP device.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

/// Runs an ioctl whose argument is an integer.
fn ioctl_int(file: &File, request: u64, value: u64) -> io::Result<()> {
    // SAFETY: these tun ioctls take their argument by value and touch no memory of this process.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, value) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

impl Tap {
    /// Creates the device `name`, or attaches to it if it persists without a reader. Reads and
    /// writes do not block.
    ///
    /// # Errors
    /// `NotFound` without `/dev/net/tun`, `PermissionDenied` without CAP_NET_ADMIN, `ResourceBusy`
    /// if another process has the device.
    pub fn open(name: &str, multi_queue: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let mut request = [0u8; 40]; // struct ifreq
        if name.len() >= libc::IFNAMSIZ {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "interface name too long",
            ));
        }
        request[..name.len()].copy_from_slice(name.as_bytes());
        let queues = if multi_queue { IFF_MULTI_QUEUE } else { 0 };
        let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | queues;
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq` of 40 bytes, which `request` is.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, request.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = VNET_HEADER_BYTES;
        // SAFETY: TUNSETVNETHDRSZ reads one int, which `header` is.
        let result =
            unsafe { libc::ioctl(file.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw const header) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file })
    }

    /// Offers `preferred` to the kernel, reduced to the offloads that it supports. Returns the
    /// offloads in effect. Without this call a persistent device keeps its previous ones.
    pub fn set_offloads(&self, preferred: TapOffloads) -> io::Result<TapOffloads> {
        let without_udp = TapOffloads {
            udp_segmentation: false,
            ..preferred
        };
        for offloads in [preferred, without_udp] {
            if ioctl_int(&self.file, TUNSETOFFLOAD, offloads.bits()).is_ok() {
                return Ok(offloads);
            }
        }
        let none = TapOffloads {
            checksum: false,
            tcp_segmentation: false,
            udp_segmentation: false,
        };
        ioctl_int(&self.file, TUNSETOFFLOAD, 0)?;
        Ok(none)
    }

    /// Sets whether the device outlives this process.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        ioctl_int(&self.file, TUNSETPERSIST, u64::from(persistent))
    }

    /// Sets the device's carrier (Linux 5.0).
    pub fn set_carrier(&self, has_carrier: bool) -> io::Result<()> {
        let value = libc::c_int::from(has_carrier);
        // SAFETY: TUNSETCARRIER reads one int, which `value` is.
        let result =
            unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER as _, &raw const value) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Reads one frame, virtio_net header first. Returns `WouldBlock` if no frame is available.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        nix::unistd::read(&self.file, buffer).map_err(io::Error::from)
    }

    /// Writes one frame, virtio_net header first.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        nix::unistd::write(&self.file, frame)
            .map(drop)
            .map_err(io::Error::from)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
