//! The kernel's network interfaces: their state, and changes as they happen.

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
/// `NLA_TYPE_MASK`: an attribute's type without the flags for nesting and byte order.
const NLA_TYPE_MASK: u16 = 0x3fff;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_LOWER_UP: u32 = 0x1_0000;

/// Sizes of `struct nlmsghdr` and `struct ifinfomsg`.
const MESSAGE_HEADER_BYTES: usize = 16;
const LINK_HEADER_BYTES: usize = 16;

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
    fd: OwnedFd,
}

impl LinkMonitor {
    /// Opens the monitor in the caller's network namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            fd: route_socket(RTMGRP_LINK)?,
        })
    }

    /// Returns the changes since the last call.
    pub fn changes(&self) -> io::Result<Vec<Interface>> {
        let mut buffer = vec![0; 32_768];
        let mut changes = Vec::new();
        loop {
            match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(bytes) => parse_changes(&buffer[..bytes], &mut changes),
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => return Ok(changes),
                // The kernel dropped some messages, so read the state of all interfaces.
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

/// Asks the kernel for all objects of a kind and hands each message's body to `take`.
///
/// `request` is the message type, `header_bytes` the length of its fixed part.
pub(crate) fn dump(
    request: u16,
    header_bytes: usize,
    mut take: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    let fd = route_socket(0)?;
    let length = MESSAGE_HEADER_BYTES + header_bytes;
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&request.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    message.resize(length, 0);
    send(fd.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut buffer = vec![0; 65_536];
    loop {
        let bytes = match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            received => received?,
        };
        for (kind, body) in messages(&buffer[..bytes]) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = u32_at(body, 0).unwrap_or_default() as i32;
                    return Err(io::Error::from_raw_os_error(-code));
                }
                kind => take(kind, body),
            }
        }
    }
}

/// Waits for the kernel's acknowledgement of the request with `sequence`, and skips older ones.
pub(crate) fn acknowledgement(fd: &OwnedFd, sequence: u32) -> io::Result<()> {
    let mut answer = [0; 1024];
    loop {
        let bytes = match recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            received => received?,
        };
        let answer = &answer[..bytes];
        let (Some(answered), Some(code)) = (u32_at(answer, 8), u32_at(answer, 16)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match (answered == sequence, code as i32) {
            (false, _) => {}
            (true, 0) => return Ok(()),
            (true, code) => return Err(io::Error::from_raw_os_error(-code)),
        }
    }
}

/// Returns all interfaces of the caller's network namespace.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    dump(RTM_GETLINK, LINK_HEADER_BYTES, |kind, body| {
        if kind == RTM_NEWLINK {
            found.extend(interface(body, false));
        }
    })?;
    Ok(found)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Iterates over the messages of one datagram: type, and body after the header. Stops at a damaged
/// one.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (u32_at(bytes, 0)? as usize, u16_at(bytes, 4)?);
        let body = bytes.get(MESSAGE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Iterates over the attributes in `bytes`: type without flags, and value. Stops at a damaged one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// Appends an attribute to `out`, padded to four bytes.
pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn parse_changes(bytes: &[u8], found: &mut Vec<Interface>) {
    for (kind, body) in messages(bytes) {
        if matches!(kind, RTM_NEWLINK | RTM_DELLINK) {
            found.extend(interface(body, kind == RTM_DELLINK));
        }
    }
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
        is_loopback: flags & IFF_LOOPBACK != 0,
        master: None,
        is_gone,
    };
    let (mut master, mut master_kind) = (None, String::new());
    for (kind, value) in attributes(body.get(LINK_HEADER_BYTES..)?) {
        match kind {
            IFLA_IFNAME => interface.name = text(value),
            IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            IFLA_ADDRESS => interface.mac = value.try_into().ok(),
            IFLA_MASTER => master = u32_at(value, 0),
            IFLA_LINKINFO => {
                let mut parts = attributes(value);
                let slave = parts.find(|(kind, _)| *kind == IFLA_INFO_SLAVE_KIND);
                master_kind = slave.map_or_else(String::new, |(_, kind)| text(kind));
            }
            _ => {}
        }
    }
    interface.master = master.map(|index| (index, master_kind));
    Some(interface)
}

fn text(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces__any_namespace__include_loopback() {
        let found = interfaces().expect("rtnetlink answers everyone");
        let lo = found
            .iter()
            .find(|interface| interface.name == "lo")
            .expect("lo is always there");
        assert_eq!(lo.mtu, 65_536);
        assert!(lo.is_loopback && lo.master.is_none(), "{lo:?}");
    }

    #[test]
    fn parse__truncated_messages__are_ignored() {
        let mut message = vec![60u8, 0, 0, 0, RTM_NEWLINK as u8, 0];
        message.resize(60, 0xff);
        for length in 0..60 {
            parse_changes(&message[..length], &mut Vec::new());
        }
    }
}
