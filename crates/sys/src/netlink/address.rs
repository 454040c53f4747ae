//! Addresses of a network interface.

use super::Rtnetlink;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// Adds the address `ip` with a prefix of `prefix_bits` to an interface. If the interface already
/// has it, nothing changes.
///
/// # Errors
/// The kernel's error, such as EACCES for IPv6 on an interface that has IPv6 switched off.
pub fn replace(interface_index: u32, ip: IpAddr, prefix_bits: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.prefix_len = prefix_bits;
    message.header.index = interface_index;
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    let request = RouteNetlinkMessage::NewAddress(message);
    Rtnetlink::open()?.change(request, NLM_F_CREATE | NLM_F_REPLACE)
}
