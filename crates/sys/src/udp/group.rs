//! Sockets of an IP multicast group on one interface.

use super::{LinkSocket, to_ipv6_mapped};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn6, SockaddrStorage, bind, setsockopt, socket,
    sockopt,
};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Hops that a datagram to a group may take: it stays in the local network.
const HOPS: i32 = 1;

/// Returns the index of the interface through which datagrams to `peer` leave.
///
/// # Errors
/// There is no route to the peer, or no interface has the address of this host on it.
pub fn interface_towards(peer: SocketAddr) -> io::Result<u32> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let route = UdpSocket::bind((any, 0))?;
    route.connect(peer)?;
    let own = route.local_addr()?.ip();
    let named = getifaddrs()?.find(|entry| entry.address.as_ref().and_then(ip) == Some(own));
    let named = named.ok_or_else(|| {
        let text = format!("no interface has the address {own}, from which {peer} is reached");
        io::Error::new(io::ErrorKind::AddrNotAvailable, text)
    })?;
    Ok(if_nametoindex(named.interface_name.as_str())?)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

impl LinkSocket {
    /// Opens a socket that receives what is sent to `group` on the interface with index `index`.
    /// Several sockets of a host may do so.
    ///
    /// # Errors
    /// `AddrInUse` if a socket has the port for itself; others as the kernel returns them.
    pub fn member(group: SocketAddr, index: u32) -> io::Result<Self> {
        let socket = Self::of_groups()?;
        setsockopt(&socket.fd, sockopt::ReuseAddr, &true)?;
        let mut address = to_ipv6_mapped(group);
        // Without it, the kernel refuses a group of one link.
        address.set_scope_id(index);
        bind(socket.fd.as_raw_fd(), &SockaddrIn6::from(address))?;
        match group {
            SocketAddr::V4(group) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(group.ip().octets()),
                    },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: index as i32,
                };
                socket.set_raw(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)?;
            }
            SocketAddr::V6(group) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr {
                        s6_addr: group.ip().octets(),
                    },
                    ipv6mr_interface: index,
                };
                socket.set_raw(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
            }
        }
        socket.enlarge_buffers();
        Ok(socket)
    }

    /// Opens a socket that sends to groups through the interface with index `index`, also to the
    /// members on this host.
    ///
    /// # Errors
    /// As the kernel returns them.
    pub fn to_groups(index: u32) -> io::Result<Self> {
        let socket = Self::of_groups()?;
        let request = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: index as i32,
        };
        socket.set_raw(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)?;
        socket.set_raw(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &HOPS)?;
        socket.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)?;
        socket.set_raw(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &HOPS)?;
        socket.forbid_fragments()?;
        socket.enlarge_buffers();
        Ok(socket)
    }

    fn of_groups() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
        Ok(Self::new(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagrams::Datagrams;

    fn loopback() -> u32 {
        if_nametoindex("lo").expect("lo is always there")
    }

    #[test]
    fn group__two_members_on_a_host__each_get_what_is_sent() {
        let group: SocketAddr = "239.255.7.9:49777".parse().expect("an address");
        let members: Vec<LinkSocket> = (0..2)
            .map(|_| LinkSocket::member(group, loopback()).expect("the port may be shared"))
            .collect();
        let sender = LinkSocket::to_groups(loopback()).expect("a socket");
        sender.send(&[7; 2500], 1000, group).expect("is sent");
        for member in members {
            let mut datagrams = Datagrams::default();
            member.receive(&mut datagrams, 2048).expect("three wait");
            let lengths = datagrams.iter_mut().map(|(bytes, _)| bytes.len());
            assert_eq!(lengths.collect::<Vec<_>>(), [1000, 1000, 500]);
        }
    }

    #[test]
    fn group__of_ipv6__has_members_on_an_interface() {
        // The loopback interface has no route to such a group.
        let group: SocketAddr = "[ff12::6b75:709]:49777".parse().expect("an address");
        let member = LinkSocket::member(group, loopback()).expect("a socket");
        assert_eq!(member.local_address().ok(), Some(group));
    }

    #[test]
    fn interface_towards__own_address__is_the_loopback_interface() {
        let own: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let index = interface_towards(own).expect("lo is always there");
        assert_eq!(index, loopback());
    }
}
