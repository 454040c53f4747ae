//! What the kernel says of its interfaces: their state now, and changes as they happen.

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST_DUMP: u16 = 0x001 | 0x300;
const RTMGRP_LINK: u32 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFF_UP: u32 = 0x1;
const IFF_LOWER_UP: u32 = 0x1_0000;

/// `struct nlmsghdr` and `struct ifinfomsg`.
const MESSAGE_HEADER_BYTES: usize = 16;
const LINK_HEADER_BYTES: usize = 16;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its number in this namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Its hardware address, if it has six bytes.
    pub mac: Option<[u8; 6]>,
    /// Whether the administrator has set it up.
    pub is_up: bool,
    /// Whether it is up and has its carrier.
    pub has_carrier: bool,
    /// Whether it has been removed.
    pub is_gone: bool,
}

/// A socket that hears of every change to an interface.
#[derive(Debug)]
pub struct LinkMonitor {
    fd: OwnedFd,
}

impl LinkMonitor {
    /// Opens the monitor in the caller's network namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            fd: route_socket(RTMGRP_LINK)?,
        })
    }

    /// The changes that have come since the last call.
    pub fn changes(&self) -> io::Result<Vec<Interface>> {
        let mut buffer = vec![0; 32_768];
        let mut changes = Vec::new();
        loop {
            match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(bytes) => {
                    parse(&buffer[..bytes], &mut changes);
                }
                Err(nix::errno::Errno::EAGAIN) => return Ok(changes),
                // Some were lost: ask for all of them.
                Err(nix::errno::Errno::ENOBUFS) => return interfaces(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn route_socket(groups: u32) -> io::Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(fd)
}

/// All interfaces of the caller's network namespace.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let fd = route_socket(0)?;
    let mut request = Vec::with_capacity(32);
    request.extend_from_slice(&32u32.to_ne_bytes());
    request.extend_from_slice(&RTM_GETLINK.to_ne_bytes());
    request.extend_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    request.resize(MESSAGE_HEADER_BYTES + LINK_HEADER_BYTES, 0);
    send(fd.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut buffer = vec![0; 65_536];
    let mut found = Vec::new();
    loop {
        let bytes = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if parse(&buffer[..bytes], &mut found) {
            return Ok(found);
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads the messages of one datagram. True when a dump has ended.
fn parse(mut bytes: &[u8], found: &mut Vec<Interface>) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes
            .get(..length)
            .filter(|_| length >= MESSAGE_HEADER_BYTES)
        else {
            return false;
        };
        match kind {
            NLMSG_DONE | NLMSG_ERROR => return true,
            RTM_NEWLINK | RTM_DELLINK => {
                found.extend(interface(
                    &message[MESSAGE_HEADER_BYTES..],
                    kind == RTM_DELLINK,
                ));
            }
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn interface(body: &[u8], is_gone: bool) -> Option<Interface> {
    let flags = u32_at(body, 8)?;
    let mut interface = Interface {
        index: u32_at(body, 4)?,
        name: String::new(),
        mtu: 0,
        mac: None,
        is_up: flags & IFF_UP != 0,
        has_carrier: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
        is_gone,
    };
    let mut attributes = body.get(LINK_HEADER_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(4..length) else {
            break;
        };
        match kind {
            IFLA_IFNAME => {
                interface.name = String::from_utf8_lossy(value)
                    .trim_end_matches('\0')
                    .to_owned();
            }
            IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            IFLA_ADDRESS => interface.mac = value.try_into().ok(),
            _ => {}
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Some(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces__of_any_namespace__include_loopback() {
        let found = interfaces().expect("rtnetlink answers everyone");
        let lo = found
            .iter()
            .find(|interface| interface.name == "lo")
            .expect("lo is always there");
        assert_eq!(lo.mtu, 65_536);
    }

    #[test]
    fn parse__truncated_messages__are_ignored() {
        let mut message = vec![60u8, 0, 0, 0, RTM_NEWLINK as u8, 0];
        message.resize(60, 0xff);
        for length in 0..60 {
            parse(&message[..length], &mut Vec::new());
        }
    }
}
