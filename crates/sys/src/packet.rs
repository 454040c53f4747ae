//! Raw Ethernet frames through `AF_PACKET`: a mapped receive ring, and batches out.
//!
//! TPACKET_V2 (Linux, `Documentation/networking/packet_mmap.rst`): the kernel writes each frame
//! into a slot of a ring both sides have mapped and sets the slot's status; who has the slot is
//! that word alone. Frames go out with `sendmmsg` past the queueing discipline, which is the
//! network's business here and not this interface's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a ring slot: a frame of MTU 9216 with headers does not fit and is dropped by the
/// kernel, one of 1500 leaves room for the slot's own header.
const SLOT_BYTES: usize = 2048;

/// Slots of a ring: 8 ms of full frames at 1 Gb/s, many times any tolerable lateness.
const SLOTS: usize = 1024;

/// Frames on their way to a host count against the sender until the host has looked at them. The kernel
/// allows 200 KB, which is 90 frames; a slow moment of the host must not lose any.
const SEND_BUFFER_BYTES: libc::c_int = 32 << 20;

/// Bytes of a block of the ring; a multiple of the page size and of [`SLOT_BYTES`].
const BLOCK_BYTES: usize = 65_536;

/// Most frames a call of [`PacketSocket::send`] hands to the kernel at once.
pub const SEND_BATCH_MAX: usize = 64;

/// A frame in the receive ring.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// From the Ethernet header on; a VLAN tag that travelled beside the frame is not in it.
    pub bytes: &'a [u8],
    /// The VLAN tag beside the frame: its four bytes, to go in after the addresses.
    pub vlan: Option<[u8; 4]>,
    /// When the kernel had it, by the real-time clock, in nanoseconds.
    pub realtime_ns: u64,
}

/// What became of frames that were to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// So many, from the first on, are done with.
    pub done: usize,
    /// Of these the kernel refused so many.
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
    // SAFETY: `value` is a live reference, and its size is what is passed.
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

/// As much as may be had: without CAP_NET_ADMIN in the first user namespace, what the sysctl allows.
fn set_send_buffer(fd: BorrowedFd<'_>) {
    let bytes = SEND_BUFFER_BYTES;
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        // SAFETY: the value is a live integer, and its size is what is passed.
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
    /// There is no such interface, or CAP_NET_RAW is missing.
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
        // SAFETY: `raw` was just opened and belongs to nobody else.
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
        // SAFETY: `address` is a sockaddr_ll, and its size is what is passed.
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

    /// Calls `take` for up to `frames_max` received frames, in order, and frees their slots;
    /// returns how many there were.
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
            // SAFETY: the status gives the slot to us, so nobody writes it until we hand it back.
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

    /// Sends `frames`, in order, until the receiver has no room; what the kernel refuses for another
    /// reason (an interface that is down, a frame beyond the MTU) is passed over.
    pub fn send<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> Sent {
        let mut all = Sent::default();
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
                // outlive the call ('a); the kernel only reads what they point at.
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
                    all.done += sent as usize;
                    continue;
                }
                let error = io::Error::last_os_error().raw_os_error();
                if matches!(error, Some(libc::ENOBUFS | libc::EAGAIN)) {
                    return all;
                }
                // The first of the rest is refused; the others have their own chance.
                done += 1;
                all.done += 1;
                all.refused += 1;
            }
        }
        all
    }

    /// Frames that found the ring full since this was last asked.
    pub fn overruns(&self) -> u64 {
        let mut stats = [0_u32; 2]; // struct tpacket_stats: packets, drops
        let mut length = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: `stats` is writable for `length` bytes, which is what the kernel is told.
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

    /// Takes a pending error off the socket, such as that its interface went down; until then
    /// `poll` would report it again and again.
    pub fn clear_error(&self) {
        // An error in asking for the error leaves nothing to be done.
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
