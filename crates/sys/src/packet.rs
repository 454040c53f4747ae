//! Raw Ethernet frames through `AF_PACKET`: a mapped receive ring, and batches for sending.
//!
//! The ring is TPACKET_V2 (Linux, `Documentation/networking/packet_mmap.rst`). The kernel and this
//! process have both mapped it. The kernel writes each frame into a slot and sets the slot's status
//! word, which alone decides who owns the slot. Frames are sent with `sendmmsg` and bypass the
//! queueing discipline, because the emulated network does the queueing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Size of a ring slot, in bytes. A frame of MTU 1500 fits with the slot's header. One of MTU 9216
/// does not, and the kernel drops it.
const SLOT_BYTES: usize = 2048;

/// Slots of a ring: 8 ms of full frames at 1 Gb/s, many times any tolerable lateness.
const SLOTS: usize = 1024;

/// Send buffer, in bytes. Frames sent to a host count against it until the host has processed them.
/// The kernel's default of 200 KB is 90 frames, too few for a host that is briefly busy.
const SEND_BUFFER_BYTES: libc::c_int = 32 << 20;

/// Size of a block of the ring, in bytes: a multiple of the page size and of [`SLOT_BYTES`].
const BLOCK_BYTES: usize = 65_536;

/// Most frames that [`PacketSocket::send`] passes to the kernel in one call.
pub const SEND_BATCH_MAX: usize = 64;

/// A frame in the receive ring.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The frame from its Ethernet header on, without a VLAN tag that the kernel reports
    /// separately.
    pub bytes: &'a [u8],
    /// The VLAN tag that the kernel reported separately: four bytes, to be inserted after the
    /// addresses.
    pub vlan: Option<[u8; 4]>,
    /// Time at which the kernel received the frame, by the real-time clock, in nanoseconds.
    pub realtime_ns: u64,
}

/// Result of sending frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of frames processed, from the first on.
    pub done: usize,
    /// Number of processed frames that the kernel refused.
    pub refused: usize,
}

/// A socket bound to one interface, with its receive ring.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ring: NonNull<u8>,
    ring_bytes: usize,
    slots: usize,
    slot_bytes: usize,
    next: usize,
}

// SAFETY: the ring is a mapping that this value alone owns; only `&mut self` touches it.
unsafe impl Send for PacketSocket {}

fn set_option<T>(fd: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is a live reference, and its size is passed.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets the largest send buffer that is permitted. Without CAP_NET_ADMIN in the first user
/// namespace, the sysctl limits it.
fn set_send_buffer(fd: BorrowedFd<'_>) {
    let bytes = SEND_BUFFER_BYTES;
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        // SAFETY: the value is a live integer, and its size is passed.
        let status = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size_of_val(&bytes) as libc::socklen_t,
            )
        };
        if status == 0 {
            return;
        }
    }
}

impl PacketSocket {
    /// Opens a socket on `interface`, in the calling thread's network namespace, for frames up to
    /// `mtu` bytes of payload.
    ///
    /// # Errors
    /// The interface does not exist, or CAP_NET_RAW is missing.
    pub fn open(interface: &str, mtu: u32) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(interface)?;
        // SAFETY: a plain system call; protocol 0 receives nothing until the bind below.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just opened, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(fd.as_fd(), libc::PACKET_VERSION, &version)?;
        set_option(fd.as_fd(), libc::PACKET_QDISC_BYPASS, &1_i32)?;
        const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
        set_option(fd.as_fd(), PACKET_IGNORE_OUTGOING, &1_i32)?;
        set_send_buffer(fd.as_fd());
        let slot_bytes = (mtu as usize + 256).next_power_of_two().max(SLOT_BYTES);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (SLOTS * slot_bytes / BLOCK_BYTES) as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set_option(fd.as_fd(), libc::PACKET_RX_RING, &request)?;
        let ring_bytes = SLOTS * slot_bytes;
        // SAFETY: a fresh mapping of the ring the socket has just made, of that ring's size; it is
        // unmapped in `drop` and nowhere else.
        let ring = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ring_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = NonNull::new(ring.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let socket = Self {
            fd,
            ring,
            ring_bytes,
            slots: SLOTS,
            slot_bytes,
            next: 0,
        };
        socket.bind(index)?;
        Ok(socket)
    }

    fn bind(&self, index: u32) -> io::Result<()> {
        // SAFETY: all-zero bytes are a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: `address` is a sockaddr_ll, and its size is passed.
        let status = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Calls `take` for up to `frames_max` received frames, in order, and frees their slots.
    /// Returns the number of frames.
    pub fn receive(&mut self, frames_max: usize, mut take: impl FnMut(Received<'_>)) -> usize {
        for count in 0..frames_max {
            // SAFETY: `next < slots`, so the slot lies inside the mapping.
            let slot = unsafe { self.ring.as_ptr().add(self.next * self.slot_bytes) };
            let header = slot.cast::<libc::tpacket2_hdr>();
            // SAFETY: a slot begins with its header, aligned to the slot size; the kernel writes
            // the status concurrently, hence the volatile read.
            let status = unsafe { std::ptr::read_volatile(&raw const (*header).tp_status) };
            if status & libc::TP_STATUS_USER == 0 {
                return count;
            }
            fence(Ordering::Acquire);
            // SAFETY: the status gives the slot to this process, so the kernel does not write it
            // until it is handed back.
            let h = unsafe { &*header };
            let (start, length) = (h.tp_mac as usize, h.tp_snaplen as usize);
            if start + length <= self.slot_bytes && h.tp_len as usize == length {
                // SAFETY: the bounds were just checked against the slot, and the slot is ours.
                let bytes = unsafe { std::slice::from_raw_parts(slot.add(start), length) };
                let vlan = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
                    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                        h.tp_vlan_tpid
                    } else {
                        0x8100
                    };
                    let ([a, b], [c, d]) = (tpid.to_be_bytes(), h.tp_vlan_tci.to_be_bytes());
                    [a, b, c, d]
                });
                let realtime_ns = u64::from(h.tp_sec) * 1_000_000_000 + u64::from(h.tp_nsec);
                take(Received {
                    bytes,
                    vlan,
                    realtime_ns,
                });
            }
            fence(Ordering::Release);
            // SAFETY: as the read above; this hands the slot back.
            unsafe {
                std::ptr::write_volatile(&raw mut (*header).tp_status, libc::TP_STATUS_KERNEL);
            }
            self.next = (self.next + 1) % self.slots;
        }
        frames_max
    }

    /// Sends `frames` in order until the receiver has no room. Frames that the kernel refuses for
    /// another reason are skipped: the interface is down, or a frame exceeds the MTU.
    pub fn send<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> Sent {
        let mut total = Sent::default();
        let mut frames = frames.into_iter().peekable();
        while frames.peek().is_some() {
            // SAFETY: all-zero bytes are a valid iovec and a valid mmsghdr.
            let mut parts: [libc::iovec; SEND_BATCH_MAX] = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            let mut messages: [libc::mmsghdr; SEND_BATCH_MAX] = unsafe { std::mem::zeroed() };
            let mut count = 0;
            for frame in frames.by_ref().take(SEND_BATCH_MAX) {
                parts[count] = libc::iovec {
                    iov_base: frame.as_ptr().cast_mut().cast(),
                    iov_len: frame.len(),
                };
                messages[count].msg_hdr.msg_iov = &raw mut parts[count];
                messages[count].msg_hdr.msg_iovlen = 1;
                count += 1;
            }
            let mut done = 0;
            while done < count {
                // SAFETY: `messages[done..count]` point at `parts`, and those at frames that
                // outlive the call ('a). The kernel only reads them.
                let sent = unsafe {
                    libc::sendmmsg(
                        self.fd.as_raw_fd(),
                        messages.as_mut_ptr().add(done),
                        (count - done) as u32,
                        libc::MSG_DONTWAIT as _,
                    )
                };
                if sent > 0 {
                    done += sent as usize;
                    total.done += sent as usize;
                    continue;
                }
                let error = io::Error::last_os_error().raw_os_error();
                if matches!(error, Some(libc::ENOBUFS | libc::EAGAIN)) {
                    return total;
                }
                // Only the first of the rest is refused. The others are tried separately.
                done += 1;
                total.done += 1;
                total.refused += 1;
            }
        }
        total
    }

    /// Returns the number of frames that found the ring full since the last call.
    pub fn overruns(&self) -> u64 {
        let mut stats = [0_u32; 2]; // struct tpacket_stats: packets, drops
        let mut length = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: `stats` is writable for `length` bytes, and that length is passed.
        let status = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                stats.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if status == 0 { u64::from(stats[1]) } else { 0 }
    }

    /// Clears a pending error of the socket, such as "interface down", which `poll` would report
    /// again and again.
    pub fn clear_error(&self) {
        // If the error cannot be read, nothing can be done.
        let _ = nix::sys::socket::getsockopt(&self.fd, nix::sys::socket::sockopt::SocketError);
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open` with this size, and nothing borrows it any more.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.ring_bytes) };
    }
}
