//! Raw Ethernet frames of one EtherType on one interface, through its queueing discipline.
//!
//! Sent frames wait in the NIC's queue, as frames of the kernel do. The socket's send buffer bounds
//! their number.

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most frames of one send or receive call.
pub const BATCH_FRAMES_MAX: usize = 32;

/// Send buffer, in bytes. The kernel doubles it and charges 2.3 KB for a full frame. That makes 450
/// frames, less than the 1000 of an Ethernet device's queue, so that the queue drops none.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Receive buffer, in bytes, charged the same way: 7000 full frames, 40 ms at 2 Gb/s for a late
/// reader.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// Length of an Ethernet header with a VLAN tag, in bytes.
const LINK_HEADER_BYTES: usize = 18;

/// A socket for the frames of one EtherType on one interface.
#[derive(Debug)]
pub struct RawEthernet {
    fd: OwnedFd,
    buffer: Vec<u8>,
    frame_bytes: usize,
}

fn set_option<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `value`, a live reference to a plain C
    // value.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Returns the address of an interface for frames of an EtherType.
fn address(index: u32, ether_type: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

impl RawEthernet {
    /// Opens a socket on the interface with `index` for frames of `ether_type` with up to `mtu`
    /// bytes after the Ethernet header. The interface receives frames for any address while the
    /// socket is open.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW, `NoDevice` if the interface is gone.
    pub fn open(index: u32, ether_type: u16, mtu: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; protocol 0 receives nothing until the bind below.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        check(raw)?;
        // SAFETY: `raw` was just opened, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        if setsockopt(&fd, sockopt::SndBufForce, &SEND_BUFFER_BYTES).is_err() {
            let _ = setsockopt(&fd, sockopt::SndBuf, &SEND_BUFFER_BYTES);
        }
        if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
            let _ = setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
        }
        let membership = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&fd, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        let frame_bytes = mtu as usize + LINK_HEADER_BYTES;
        let socket = Self {
            fd,
            buffer: vec![0; BATCH_FRAMES_MAX * frame_bytes],
            frame_bytes,
        };
        socket.bind(index, ether_type)?;
        Ok(socket)
    }

    fn bind(&self, index: u32, ether_type: u16) -> io::Result<()> {
        let address = address(index, ether_type);
        // SAFETY: `address` is a sockaddr_ll, and its size is passed.
        check(unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        })
    }

    /// Sends the first [`BATCH_FRAMES_MAX`] of `frames`, whole Ethernet frames, in order. Returns
    /// the number that the kernel accepted.
    ///
    /// # Errors
    /// The error of the first frame, if none was accepted: `WouldBlock` if the socket's buffer is
    /// full, `ENOBUFS` if the interface's queue dropped it, `NetworkDown`, `EMSGSIZE` beyond the
    /// MTU.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        // SAFETY: all-zero bytes are a valid iovec and a valid mmsghdr.
        let mut parts: [libc::iovec; BATCH_FRAMES_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH_FRAMES_MAX] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for (frame, (part, message)) in frames.zip(parts.iter_mut().zip(&mut messages)) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: `messages[..count]` point at `parts`, and those at frames that outlive the call
        // ('a). The kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
            )
        };
        check(sent)?;
        Ok(sent as usize)
    }

    /// Calls `take` with each of up to [`BATCH_FRAMES_MAX`] received frames, in order, and returns
    /// their number. Frames longer than the MTU are left out.
    ///
    /// # Errors
    /// `WouldBlock` if no frame is available; `NetworkDown`, once, when the interface went down.
    pub fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        // SAFETY: all-zero bytes are a valid iovec and a valid mmsghdr.
        let mut parts: [libc::iovec; BATCH_FRAMES_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH_FRAMES_MAX] = unsafe { std::mem::zeroed() };
        let buffers = self.buffer.chunks_exact_mut(self.frame_bytes);
        for (buffer, (part, message)) in buffers.zip(parts.iter_mut().zip(&mut messages)) {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = buffer.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each message points at one part, and each part at its own range of `self.buffer`,
        // which no other code touches during the call.
        let received = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH_FRAMES_MAX as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        check(received)?;
        let received = received as usize;
        let buffers = self.buffer.chunks_exact(self.frame_bytes);
        for (buffer, message) in buffers.zip(&messages[..received]) {
            let is_complete = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let frame = buffer.get(..message.msg_len as usize);
            if let Some(frame) = frame.filter(|_| is_complete) {
                take(frame);
            }
        }
        Ok(received)
    }

    /// Returns the frames that the kernel dropped since the last call because the receive buffer
    /// was full.
    pub fn take_drops(&self) -> u32 {
        let mut drops = [0u32; 2]; // struct tpacket_stats: packets, drops
        let mut bytes = size_of_val(&drops) as libc::socklen_t;
        // SAFETY: PACKET_STATISTICS writes a `struct tpacket_stats` of eight bytes, which `drops`
        // holds, and its length to `bytes`.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                drops.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result == 0 { drops[1] } else { 0 }
    }
}

/// A socket that sends frames on any interface and receives none.
#[derive(Debug)]
pub struct FrameSender {
    fd: OwnedFd,
}

impl FrameSender {
    /// Opens a socket.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; protocol 0 receives nothing.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        check(raw)?;
        // SAFETY: `raw` was just opened, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { fd })
    }

    /// Sends a whole Ethernet frame of `ether_type` on the interface with `index`.
    ///
    /// # Errors
    /// The kernel's: `ENXIO` if the interface is gone, `NetworkDown`, `ENOBUFS` if its queue
    /// dropped the frame.
    pub fn send(&self, index: u32, ether_type: u16, frame: &[u8]) -> io::Result<()> {
        let address = address(index, ether_type);
        // SAFETY: the kernel reads `frame` and `address`, a sockaddr_ll, whose sizes are passed.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match sent {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl AsFd for RawEthernet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
