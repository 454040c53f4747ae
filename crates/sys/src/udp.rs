//! UDP sockets with segmentation offload in both directions.

mod group;

pub use group::interface_towards;

use crate::datagrams::Datagrams;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrIn6, bind, sendmsg,
    setsockopt, socket, sockopt,
};
use std::io::{self, IoSlice};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Socket buffer requested for each direction, in bytes: 30 ms at 2 Gb/s for a late reader.
const BUFFER_BYTES: usize = 8 << 20;

/// `UDP_NO_CHECK6_RX` of linux/udp.h.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Number of sockets that this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A dual-stack UDP socket, on one interface only or on all.
#[derive(Debug)]
pub struct LinkSocket {
    fd: OwnedFd,
    number: u64,
}

impl LinkSocket {
    fn new(fd: OwnedFd) -> Self {
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Self { fd, number }
    }

    /// Returns a number that no other socket of this process has had. The kernel gives the
    /// descriptor of a closed socket to the next one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Opens a socket on `interface` (with index `index`), bound to `port` on all its addresses,
    /// joined to the multicast `group`.
    ///
    /// The port is not shared (no `SO_REUSEADDR`). With two sockets on one port, the kernel would
    /// deliver every unicast datagram to the later one.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the port there, `PermissionDenied` without CAP_NET_RAW
    /// (kernels before 5.7), `NoDevice` if the interface is gone.
    pub fn open(interface: &str, index: u32, port: u16, group: Ipv6Addr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
        setsockopt(&fd, sockopt::BindToDevice, &interface.into())?;
        let address = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
        bind(fd.as_raw_fd(), &SockaddrIn6::from(address))?;
        let socket = Self::new(fd);
        socket.join(index, group)?;
        socket.enlarge_buffers();
        Ok(socket)
    }

    /// Opens a socket on all interfaces, bound to `address`. For port 0 the kernel chooses one.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the port.
    pub fn bound(address: SocketAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
        bind(fd.as_raw_fd(), &SockaddrIn6::from(to_ipv6_mapped(address)))?;
        let socket = Self::new(fd);
        socket.forbid_fragments()?;
        socket.enlarge_buffers();
        Ok(socket)
    }

    /// Returns the address to which the socket is bound.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let address: SockaddrIn6 = nix::sys::socket::getsockname(self.fd.as_raw_fd())?;
        Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
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
        // A host that does not receive its own hellos has a firewall on the port.
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, &1i32)?;
        self.forbid_fragments()
    }

    /// Makes a datagram that is too long for the path an error.
    fn forbid_fragments(&self) -> io::Result<()> {
        let probe = libc::IPV6_PMTUDISC_PROBE;
        self.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &probe)?;
        self.set_raw(
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            &libc::IP_PMTUDISC_PROBE,
        )
    }

    /// Accepts datagrams without a checksum over IPv6, which have an authentication of their own.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn accept_without_checksum(&self) -> io::Result<()> {
        self.set_raw(libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, &1i32)
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

    /// Installs a filter that drops datagrams with fewer than `bytes_min` bytes, and those whose
    /// first byte is not in `leads`. They take no place in the socket's buffer.
    ///
    /// # Errors
    /// The kernel's error; `InvalidInput` for more than 255 `leads`.
    pub fn set_filter(&self, bytes_min: u32, leads: &[u8]) -> io::Result<()> {
        let program = filter(bytes_min, leads)?;
        let request = libc::sock_fprog {
            len: program.len() as libc::c_ushort,
            filter: program.as_ptr().cast_mut(),
        };
        self.set_raw(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &request)
    }

    /// Sets receive coalescing of datagrams of one sender (UDP GRO). Returns false if the kernel
    /// lacks it.
    pub fn set_coalescing(&self, is_on: bool) -> bool {
        setsockopt(&self.fd, sockopt::UdpGroSegment, &is_on).is_ok()
    }

    /// Sends `bytes` as datagrams of `segment_bytes` each; the last may be shorter.
    ///
    /// # Errors
    /// `WouldBlock` if the socket's buffer is full; others as the kernel returns them.
    pub fn send(&self, bytes: &[u8], segment_bytes: usize, target: SocketAddr) -> io::Result<()> {
        let target = SockaddrIn6::from(to_ipv6_mapped(target));
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
            Some(&target),
        )?;
        Ok(())
    }

    /// Receives the available datagrams into places of `place_bytes`. Returns `WouldBlock` without
    /// one. With receive coalescing, a place must hold [`RECEIVE_BYTES_MAX`].
    ///
    /// [`RECEIVE_BYTES_MAX`]: crate::datagrams::RECEIVE_BYTES_MAX
    pub fn receive(&self, datagrams: &mut Datagrams, place_bytes: usize) -> io::Result<()> {
        datagrams.receive(self.fd.as_fd(), place_bytes)
    }

    /// Returns the kernel memory of datagrams that were sent and have not left the host, in bytes
    /// of buffer, which exceeds the datagrams' own bytes.
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

/// Returns the classic BPF program of [`LinkSocket::set_filter`]. On a UDP socket it sees the UDP
/// header first.
fn filter(bytes_min: u32, leads: &[u8]) -> io::Result<Vec<libc::sock_filter>> {
    const UDP_HEADER_BYTES: u32 = 8;
    const ACCEPT_ALL: u32 = u32::MAX;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The drop follows the last comparison, and the acceptance follows the drop.
    let count = u8::try_from(leads.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut program = vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
            0,
            count.checked_add(1).ok_or(io::ErrorKind::InvalidInput)?,
            UDP_HEADER_BYTES + bytes_min,
        ),
        step(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            0,
            0,
            UDP_HEADER_BYTES,
        ),
    ];
    for (lead, jump) in leads.iter().zip((1..=count).rev()) {
        let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(step(compare, jump, 0, u32::from(*lead)));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, ACCEPT_ALL));
    Ok(program)
}

/// Returns the address in the form that a dual-stack socket needs.
pub fn to_ipv6_mapped(address: SocketAddr) -> SocketAddrV6 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6b75, 1);

    fn loopback() -> (LinkSocket, u16) {
        let index = nix::net::if_::if_nametoindex("lo").expect("lo is always there");
        let free = UdpSocket::bind("[::1]:0").expect("a port is free");
        let port = free.local_addr().expect("is bound").port();
        drop(free);
        let socket = LinkSocket::open("lo", index, port, GROUP).expect("the port is free");
        (socket, port)
    }

    /// Returns the entries available at the socket, each with its bytes and segment length.
    fn receive_all(socket: &LinkSocket, place_bytes: usize) -> Vec<(Vec<u8>, usize)> {
        let mut datagrams = Datagrams::default();
        let mut received = Vec::new();
        while socket.receive(&mut datagrams, place_bytes).is_ok() {
            let entries = datagrams.iter_mut();
            received.extend(entries.map(|(bytes, entry)| (bytes.to_vec(), entry.segment_bytes)));
        }
        received
    }

    #[test]
    fn receive__more_datagrams_than_slots__returns_all_in_order_except_the_oversized() {
        let (socket, port) = loopback();
        let sender = UdpSocket::bind("[::1]:0").expect("a port is free");
        for number in 0..40u8 {
            let bytes = vec![number; if number == 20 { 3000 } else { 1400 }];
            sender.send_to(&bytes, ("::1", port)).expect("is sent");
        }
        let mut datagrams = Datagrams::default();
        socket.receive(&mut datagrams, 2048).expect("40 wait");
        assert!(datagrams.is_full());
        let origin = datagrams.iter_mut().next().map(|(_, entry)| entry.sender);
        assert_eq!(origin, sender.local_addr().ok());
        let first: Vec<u8> = datagrams.iter_mut().map(|(bytes, _)| bytes[0]).collect();
        let tail = receive_all(&socket, 2048);
        let all = first.into_iter().chain(tail.iter().map(|entry| entry.0[0]));
        assert!(all.eq((0..40).filter(|number| *number != 20)));
        assert!(
            tail.iter()
                .all(|(bytes, segment)| (bytes.len(), *segment) == (1400, 1400))
        );
    }

    #[test]
    fn receive__coalesced_datagrams__are_one_entry_with_the_segment_length() {
        let (socket, port) = loopback();
        let (sender, _) = loopback();
        assert!(socket.set_coalescing(true));
        let target = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        sender.send(&[7; 2500], 1000, target).expect("is sent");
        let entries = receive_all(&socket, crate::datagrams::RECEIVE_BYTES_MAX);
        assert_eq!(entries, [(vec![7; 2500], 1000)]);
    }

    #[test]
    fn receive__after_coalesced_datagrams__takes_few_at_once() {
        let (socket, port) = loopback();
        let (sender, _) = loopback();
        assert!(socket.set_coalescing(true));
        let target = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let mut datagrams =
            Datagrams::with_longest(crate::datagrams::PLACES_MAX).limit_coalesced(2);
        let place_bytes = crate::datagrams::RECEIVE_BYTES_MAX;
        let mut count_of = |sent: &[u8], count: usize| {
            for _ in 0..count {
                sender.send(sent, 1000, target).expect("is sent");
            }
            socket
                .receive(&mut datagrams, place_bytes)
                .expect("some wait");
            datagrams.iter_mut().count()
        };
        assert_eq!(count_of(&[7; 500], 5), 5);
        assert_eq!(count_of(&[7; 2000], 5), 5);
        assert_eq!(count_of(&[7; 2000], 5), 2);
    }

    #[test]
    fn link_socket__port_in_use_on_the_interface__is_refused() {
        let (_first, port) = loopback();
        let index = nix::net::if_::if_nametoindex("lo").expect("lo is always there");
        let second = LinkSocket::open("lo", index, port, GROUP);
        let kind = second.map(drop).expect_err("the port is taken").kind();
        assert_eq!(kind, io::ErrorKind::AddrInUse);
    }

    #[test]
    fn link_socket__filter__passes_only_known_first_bytes_and_sufficient_length() {
        let (socket, port) = loopback();
        socket
            .set_filter(4, &[0x11, 0x21])
            .expect("a valid program");
        let sender = UdpSocket::bind("[::1]:0").expect("a port is free");
        let datagrams: [&[u8]; 7] = [
            b"",
            b"\x11",
            b"\x11ab",
            b"\x31abc",
            b"\x11abc",
            b"\x00abcdef",
            b"\x21abcd",
        ];
        for datagram in datagrams {
            sender.send_to(datagram, ("::1", port)).expect("is sent");
        }
        let passed: Vec<Vec<u8>> = receive_all(&socket, 2048)
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        assert_eq!(passed, [b"\x11abc".to_vec(), b"\x21abcd".to_vec()]);
    }
}
