//! UDP sockets bound to one NIC, with segmentation offload in both directions.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn6,
    bind, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of socket buffer asked for in each direction: 30 ms at 2 Gb/s for a reader that was late.
const BUFFER_BYTES: usize = 8 << 20;

/// Bytes one receive may give: `UDP_GRO` never gathers more.
pub const RECEIVE_BYTES_MAX: usize = 65_536;

/// A dual-stack UDP socket that sends and receives on one interface only.
#[derive(Debug)]
pub struct LinkSocket {
    fd: OwnedFd,
    control: Vec<u8>,
}

/// What a receive gave.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Bytes in the buffer.
    pub bytes: usize,
    /// Length of each datagram but the last; equal to `bytes` for a single one.
    pub segment_bytes: usize,
    /// Where they came from.
    pub from: SocketAddr,
}

impl LinkSocket {
    /// A socket on `interface` (with index `index`), bound to `port` on all its addresses, joined
    /// to the multicast `group`.
    ///
    /// # Errors
    /// `AddrInUse` if another process has the port there, `PermissionDenied` without CAP_NET_RAW
    /// (kernels before 5.7), `NoDevice` if the interface is gone.
    pub fn open(interface: &str, index: u32, port: u16, group: Ipv6Addr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
        setsockopt(&fd, sockopt::BindToDevice, &interface.into())?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
        bind(fd.as_raw_fd(), &SockaddrIn6::from(any))?;
        let socket = Self {
            fd,
            control: nix::cmsg_space!(i32),
        };
        socket.join(index, group)?;
        socket.enlarge_buffers();
        Ok(socket)
    }

    fn join(&self, index: u32, group: Ipv6Addr) -> io::Result<()> {
        let request = libc::ipv6_mreq {
            ipv6mr_multiaddr: libc::in6_addr {
                s6_addr: group.octets(),
            },
            ipv6mr_interface: index,
        };
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)?;
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, &0i32)?;
        // Never fragment: a datagram too long for the link is to be known, not cut.
        let probe = libc::IPV6_PMTUDISC_PROBE;
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &probe)?;
        self.set_raw(
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            &libc::IP_PMTUDISC_PROBE,
        )
    }

    fn set_raw<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        let bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads `bytes` bytes at `value`, a live reference to a plain C value.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                bytes,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    fn enlarge_buffers(&self) {
        if setsockopt(&self.fd, sockopt::SndBufForce, &BUFFER_BYTES).is_err() {
            let _ = setsockopt(&self.fd, sockopt::SndBuf, &BUFFER_BYTES);
        }
        if setsockopt(&self.fd, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
            let _ = setsockopt(&self.fd, sockopt::RcvBuf, &BUFFER_BYTES);
        }
    }

    /// Lets the kernel gather datagrams of one sender into one receive, or not. False if it cannot.
    pub fn set_gathering(&self, on: bool) -> bool {
        setsockopt(&self.fd, sockopt::UdpGroSegment, &on).is_ok()
    }

    /// Sends `bytes` as datagrams of `segment_bytes` each (the last may be shorter).
    ///
    /// # Errors
    /// `WouldBlock` when the socket's buffer is full; others as the kernel gives them.
    pub fn send(&self, bytes: &[u8], segment_bytes: usize, to: SocketAddr) -> io::Result<()> {
        let to = SockaddrIn6::from(mapped(to));
        let segment = segment_bytes as u16;
        let segmentation = [ControlMessage::UdpGsoSegments(&segment)];
        let control: &[ControlMessage<'_>] = if bytes.len() > segment_bytes {
            &segmentation
        } else {
            &[]
        };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendmsg(
            self.fd.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            flags,
            Some(&to),
        )?;
        Ok(())
    }

    /// Receives what is there into `buffer`. `WouldBlock` when there is nothing.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut slices = [IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrIn6>(
            self.fd.as_raw_fd(),
            &mut slices,
            Some(&mut self.control),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let gathered = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
            _ => None,
        });
        let from = message.address.ok_or(Errno::EINVAL)?;
        let from = SocketAddrV6::new(from.ip(), from.port(), 0, from.scope_id());
        let bytes = message.bytes;
        Ok(Received {
            bytes,
            segment_bytes: gathered.filter(|bytes| *bytes > 0).unwrap_or(bytes.max(1)),
            from: from.into(),
        })
    }

    /// Memory the kernel holds of what was sent and has not left the host, in bytes of buffer
    /// (more than the datagrams' own bytes).
    pub fn unsent_buffer_bytes(&self) -> io::Result<usize> {
        let mut value: libc::c_int = 0;
        // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one int, which `value` is.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(value.max(0) as usize)
        }
    }
}

/// The address as a dual-stack socket wants it.
pub fn mapped(address: SocketAddr) -> SocketAddrV6 {
    match address {
        SocketAddr::V6(address) => address,
        SocketAddr::V4(address) => {
            SocketAddrV6::new(address.ip().to_ipv6_mapped(), address.port(), 0, 0)
        }
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
