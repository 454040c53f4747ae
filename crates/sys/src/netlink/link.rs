//! The kernel's network interfaces: their state, changes as they happen, and settings.

use super::{Rtnetlink, messages, route_socket};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_sys::Socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// `RTMGRP_LINK`: the multicast group with the changes of interfaces.
const LINK_GROUP: u32 = 1;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index in this network namespace.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Hardware address, if it has six bytes.
    pub mac: Option<[u8; 6]>,
    /// The administrator has set the interface up.
    pub is_up: bool,
    /// The interface is up and has a carrier.
    pub has_carrier: bool,
    /// The interface is a loopback interface.
    pub is_loopback: bool,
    /// Index and kind (`bridge`, `bond`, `vrf`, …) of the interface's master, if it has one.
    pub master: Option<(u32, String)>,
    /// The interface has been removed.
    pub is_gone: bool,
}

/// A socket that receives every change of an interface.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
}

impl LinkMonitor {
    /// Opens the monitor in the caller's network namespace.
    pub fn open() -> io::Result<Self> {
        let socket = route_socket(LINK_GROUP)?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// Returns the changes since the last call.
    pub fn changes(&self) -> io::Result<Vec<Interface>> {
        let mut changes = Vec::new();
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => changes.extend(parse_interfaces(&bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
                // The kernel dropped some messages, so read the state of all interfaces.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return interfaces(),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns all interfaces of the caller's network namespace.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let objects = Rtnetlink::open()?.dump(request)?;
    Ok(objects.into_iter().filter_map(interface).collect())
}

/// Sets the largest packet of an interface, in bytes, and its queue, in packets.
///
/// # Errors
/// The kernel's error, such as EINVAL for an MTU that the interface cannot have.
pub fn set_sizes(interface_index: u32, mtu_bytes: u32, queue_packets: u32) -> io::Result<()> {
    let sizes = vec![
        LinkAttribute::Mtu(mtu_bytes),
        LinkAttribute::TxQueueLen(queue_packets),
    ];
    set(interface_index, LinkFlags::empty(), sizes)
}

/// Sets the largest burst that the kernel passes to an interface as one packet, in bytes.
pub fn set_gso_max_bytes(interface_index: u32, gso_max_bytes: u32) -> io::Result<()> {
    let size = vec![LinkAttribute::GsoMaxSize(gso_max_bytes)];
    set(interface_index, LinkFlags::empty(), size)
}

/// Sets the most segments of a burst that TCP hands to an interface.
pub fn set_gso_max_segments(interface_index: u32, segments: u32) -> io::Result<()> {
    let most = vec![LinkAttribute::GsoMaxSegs(segments)];
    set(interface_index, LinkFlags::empty(), most)
}

/// Sets an interface up.
pub fn set_up(interface_index: u32) -> io::Result<()> {
    set(interface_index, LinkFlags::Up, Vec::new())
}

/// Removes an interface.
pub fn remove(interface_index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    Rtnetlink::open()?.change(RouteNetlinkMessage::DelLink(message), 0)
}

fn set(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = flags;
    message.header.change_mask = flags;
    message.attributes = attributes;
    Rtnetlink::open()?.change(RouteNetlinkMessage::SetLink(message), 0)
}

fn parse_interfaces(bytes: &[u8]) -> impl Iterator<Item = Interface> {
    messages(bytes)
        .into_iter()
        .filter_map(|message| match message.payload {
            NetlinkPayload::InnerMessage(message) => interface(message),
            _ => None,
        })
}

fn interface(message: RouteNetlinkMessage) -> Option<Interface> {
    let (message, is_gone) = match message {
        RouteNetlinkMessage::NewLink(message) => (message, false),
        RouteNetlinkMessage::DelLink(message) => (message, true),
        _ => return None,
    };
    let flags = message.header.flags;
    let mut interface = Interface {
        index: message.header.index,
        name: String::new(),
        mtu: 0,
        mac: None,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        is_loopback: flags.contains(LinkFlags::Loopback),
        master: None,
        is_gone,
    };
    let (mut master, mut master_kind) = (None, String::new());
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(bytes) => interface.mtu = bytes,
            LinkAttribute::Address(mac) => interface.mac = mac.try_into().ok(),
            LinkAttribute::Controller(index) => master = Some(index),
            LinkAttribute::LinkInfo(parts) => {
                let kind = parts.into_iter().find_map(|part| match part {
                    LinkInfo::PortKind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                master_kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    interface.master = master.map(|index| (index, master_kind));
    Some(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces__any_namespace__include_loopback() {
        let interfaces = interfaces().expect("rtnetlink answers everyone");
        let lo = interfaces
            .iter()
            .find(|interface| interface.name == "lo")
            .expect("lo is always there");
        assert_eq!(lo.mtu, 65_536);
        assert!(lo.is_loopback && lo.master.is_none(), "{lo:?}");
    }

    #[test]
    fn changes__truncated_or_damaged_message__are_ignored() {
        let mut message = vec![60u8, 0, 0, 0, 16, 0];
        message.resize(60, 0xff);
        for length in 0..=60 {
            assert_eq!(parse_interfaces(&message[..length]).count(), 0);
        }
    }
}
