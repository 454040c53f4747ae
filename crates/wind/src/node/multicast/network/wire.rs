//! Format of the datagrams of a transfer, and of the messages about it.
//!
//! ```text
//!   datagram: | "kwm1" | number (32) | name of the transfer (128) | data | tag |
//!   message:  | kind (8) | name of the transfer (128) | fields |
//! ```

use super::super::relay::{emit_place, parse_place, take};
use crate::protocol::{Class, Endpoint, Message, Mode, PeerId, Place};
use std::net::{Ipv6Addr, SocketAddr};

/// Random name of a transfer.
pub type TransferName = [u8; 16];

const MAGIC: &[u8; 4] = b"kwm1";

/// Length of the header of a datagram, in bytes.
pub const HEADER_BYTES: usize = 4 + 4 + 16;

/// Longest datagram to a group, in bytes.
pub const DATAGRAM_BYTES_MAX: u16 = 2048;

/// Number of a datagram without data, by which a member finds that it hears the group.
pub const PROBE: u32 = u32::MAX;

/// Least kind of a message; the ones below are those of relays.
pub const KIND_MIN: u8 = INVITE;

const INVITE: u8 = 4;
const HEARD: u8 = 5;
const UNABLE: u8 = 6;
const REPORT: u8 = 7;
const ASK: u8 = 8;
const END: u8 = 9;

/// A transfer, as its root announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invite {
    /// Place of the first byte in the member's memory.
    pub place: Place,
    /// Length of the data.
    pub bytes: u64,
    /// Data of each datagram, except the last one.
    pub packet_bytes: u16,
    /// Group to which the datagrams are sent.
    pub group: SocketAddr,
}

/// Progress of a member since its last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Chunks that it has: the first, and their number.
    pub complete: Vec<(u32, u32)>,
    /// Chunks of which packets are missing, with a bit for each packet that it has. It takes no
    /// further datagrams of these.
    pub missing: Vec<(u32, u8)>,
}

/// A message about a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// The root asks the member to join.
    Invite(Invite),
    /// The member hears the group.
    Heard,
    /// The member cannot join, or cannot place the data.
    Unable,
    /// The member's report.
    Report(Report),
    /// The root wants a report now, and that chunks below `end` count as missing.
    Ask {
        /// First chunk that does not count.
        end: u32,
    },
    /// The transfer is over.
    End,
}

fn emit(name: TransferName, control: &Control) -> Vec<u8> {
    let kind = match control {
        Control::Invite(_) => INVITE,
        Control::Heard => HEARD,
        Control::Unable => UNABLE,
        Control::Report(_) => REPORT,
        Control::Ask { .. } => ASK,
        Control::End => END,
    };
    let mut out = vec![kind];
    out.extend_from_slice(&name);
    match control {
        Control::Heard | Control::Unable | Control::End => {}
        Control::Ask { end } => out.extend_from_slice(&end.to_be_bytes()),
        Control::Invite(invite) => {
            emit_place(&invite.place, &mut out);
            out.extend_from_slice(&invite.bytes.to_be_bytes());
            out.extend_from_slice(&invite.packet_bytes.to_be_bytes());
            out.extend_from_slice(&kumi_sys::udp::to_ipv6_mapped(invite.group).ip().octets());
            out.extend_from_slice(&invite.group.port().to_be_bytes());
        }
        Control::Report(report) => {
            out.extend_from_slice(&(report.complete.len() as u32).to_be_bytes());
            for (first, count) in &report.complete {
                out.extend_from_slice(&first.to_be_bytes());
                out.extend_from_slice(&count.to_be_bytes());
            }
            for (chunk, has) in &report.missing {
                out.extend_from_slice(&chunk.to_be_bytes());
                out.push(*has);
            }
        }
    }
    out
}

/// Parses a message; `None` for one that is not understood.
pub fn parse(mut bytes: &[u8]) -> Option<(TransferName, Control)> {
    let bytes = &mut bytes;
    let [kind] = *take(bytes)?;
    let name = *take(bytes)?;
    let control = match kind {
        INVITE => Control::Invite(Invite {
            place: parse_place(bytes)?,
            bytes: u64::from_be_bytes(*take(bytes)?),
            packet_bytes: u16::from_be_bytes(*take(bytes)?),
            group: {
                let ip = Ipv6Addr::from(*take::<16>(bytes)?).to_canonical();
                SocketAddr::new(ip, u16::from_be_bytes(*take(bytes)?))
            },
        }),
        HEARD => Control::Heard,
        UNABLE => Control::Unable,
        REPORT => Control::Report(parse_report(bytes)?),
        ASK => Control::Ask {
            end: u32::from_be_bytes(*take(bytes)?),
        },
        END => Control::End,
        _ => return None,
    };
    Some((name, control))
}

fn parse_report(bytes: &mut &[u8]) -> Option<Report> {
    let mut report = Report::default();
    for _ in 0..u32::from_be_bytes(*take(bytes)?) {
        let first = u32::from_be_bytes(*take(bytes)?);
        let count = u32::from_be_bytes(*take(bytes)?);
        report.complete.push((first, count));
    }
    while !bytes.is_empty() {
        let chunk = u32::from_be_bytes(*take(bytes)?);
        let [has] = *take(bytes)?;
        report.missing.push((chunk, has));
    }
    Some(report)
}

/// Returns the message about a transfer.
pub fn message(name: TransferName, control: &Control) -> Message {
    Message {
        class: Class::Unordered,
        mode: Mode::Relay,
        header: emit(name, control),
        data: vec![Vec::new()],
        place: None,
    }
}

/// Sends a message about a transfer. A peer that is lost needs none.
pub fn send(
    endpoint: &mut Endpoint<SocketAddr>,
    peer: PeerId,
    name: TransferName,
    control: &Control,
) {
    let _ = endpoint.send(peer, message(name, control));
}

/// Returns the header of a datagram.
pub fn datagram_header(name: TransferName, number: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&number.to_be_bytes());
    header[8..].copy_from_slice(&name);
    header
}

/// Parses the header of a datagram: the transfer, and the number of its packet.
pub fn parse_datagram(mut datagram: &[u8]) -> Option<(TransferName, u32)> {
    let bytes = &mut datagram;
    if take::<4>(bytes)? != MAGIC {
        return None;
    }
    let number = u32::from_be_bytes(*take(bytes)?);
    Some((*take(bytes)?, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control__each__is_read_as_written() {
        let place = Place {
            region: 3,
            key: [4; 16],
            offset: 1 << 40,
        };
        let invite = |group: &str| {
            Control::Invite(Invite {
                place,
                bytes: 5 << 33,
                packet_bytes: 1400,
                group: group.parse().unwrap(),
            })
        };
        let report = Report {
            complete: vec![(0, 7), (9, 1)],
            missing: vec![(7, 0b1011), (8, 0)],
        };
        for control in [
            invite("239.255.1.2:5000"),
            invite("[ff12::1]:5000"),
            Control::Heard,
            Control::Unable,
            Control::Report(report),
            Control::Report(Report::default()),
            Control::Ask { end: 77 },
            Control::End,
        ] {
            let bytes = emit([9; 16], &control);
            assert_eq!(parse(&bytes), Some(([9; 16], control)));
        }
        let header = datagram_header([8; 16], 0x0102_0304);
        assert_eq!(parse_datagram(&header), Some(([8; 16], 0x0102_0304)));
        assert_eq!(parse_datagram(&header[..HEADER_BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn parse__any_bytes__ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse_datagram(&bytes);
        }
    }
}
