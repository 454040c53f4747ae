//! Requests to the kernel's network configuration (rtnetlink).
//!
//! The messages are those of the crate `netlink-packet-route`. An administrator can check each
//! setting with `ip` or `tc`, which these modules do not run: their versions differ in the options
//! that they know, and in the text that they print.

pub mod address;
pub mod htb;
pub mod link;
pub mod route;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;

/// A socket for requests, in the network namespace of the thread that opened it.
pub(crate) struct Rtnetlink {
    socket: Socket,
    sequence: u32,
}

impl Rtnetlink {
    /// Opens the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: route_socket(0)?,
            sequence: 0,
        })
    }

    /// Sends a change and waits for the kernel's answer. `flags` are those beyond request and
    /// acknowledgement.
    ///
    /// # Errors
    /// The kernel's error for this change.
    pub fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_ACK | flags)?;
        loop {
            for answer in self.receive()? {
                match answer.payload {
                    _ if answer.header.sequence_number != self.sequence => {}
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Returns all objects of the kind for which `message` asks.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_DUMP)?;
        let mut objects = Vec::new();
        loop {
            for answer in self.receive()? {
                match answer.payload {
                    _ if answer.header.sequence_number != self.sequence => {}
                    NetlinkPayload::InnerMessage(object) => objects.push(object),
                    NetlinkPayload::Done(_) => return Ok(objects),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    fn receive(&self) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        loop {
            match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return Ok(messages(&received?.0)),
            }
        }
    }
}

/// Opens a socket that also receives the messages of the multicast `groups`, a bit set.
fn route_socket(groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

/// Parses the messages of one datagram. A message of a kind or form that the crate does not know is
/// skipped, and a truncated one ends the list.
fn messages(mut bytes: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    let mut messages = Vec::new();
    while let Ok(header) = NetlinkBuffer::new_checked(bytes) {
        let length = header.length() as usize;
        messages.extend(NetlinkMessage::deserialize(&bytes[..length]));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}
