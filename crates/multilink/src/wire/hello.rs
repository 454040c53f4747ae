//! Parameters of a node, and the multicast hello that carries them on a LAN. The encrypted payloads
//! of the handshake carry the parameters without the hello's frame.
//!
//! ```text
//! hello:  | kind=3 ver=2 | reserved (24) | parameters … | HMAC-SHA-256 of all before, 16 bytes |
//! parameters:
//! | node (64) | instance (64) | sent at (64) | knows (64) | session (16) | link (8) | seal (8) |
//! | unit bytes max (16) | lanes − 1 (4) | lane (4) | links (8) | MAC (48) |
//! | name length (8) | name … |
//! ```

use super::{Kind, LINKS_MAX, Malformed, Reader, lead};
use crate::lane::Lane;
use crate::secure::{ClusterKey, HELLO_MAC_BYTES, Seal};

/// Longest name of a node, in bytes: the limit of a host name.
pub const NAME_BYTES_MAX: usize = 64;

/// Parameters of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Identity of the node's device: random, and kept for the life of the device.
    pub node: u64,
    /// Random number drawn at every start of the daemon. A new instance starts all sequences at 0.
    pub instance: u64,
    /// Sender's clock, in nanoseconds. It grows within an instance, so that an old handshake
    /// message cannot be replayed.
    pub sent_at_ns: u64,
    /// Receiver's instance for which the sender counts units, or 0 if it remembers none. If it is
    /// not the receiver's current instance, both sides count from 0 again (handshake only).
    pub knows: u64,
    /// Number that the sender wants on packets of the session (handshake only).
    pub session: u16,
    /// Sender's number for the link on which this was sent.
    pub link: u8,
    /// Protection of the packets. Both ends must have the same setting.
    pub seal: Seal,
    /// Largest unit payload that the sender's smallest link can receive, in bytes.
    pub unit_bytes_max: u16,
    /// This lane (queue) of the sender's device, and the number of its lanes.
    pub lane: Lane,
    /// Number of the sender's links.
    pub links: u8,
    /// MAC address of the sender's device.
    pub mac: [u8; 6],
    /// Host name, for display.
    pub name: String,
}

impl Params {
    /// Appends the fields to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.node.to_be_bytes());
        out.extend_from_slice(&self.instance.to_be_bytes());
        out.extend_from_slice(&self.sent_at_ns.to_be_bytes());
        out.extend_from_slice(&self.knows.to_be_bytes());
        out.extend_from_slice(&self.session.to_be_bytes());
        out.push(self.link);
        out.push(self.seal as u8);
        out.extend_from_slice(&self.unit_bytes_max.to_be_bytes());
        out.push(self.lane.to_wire());
        out.push(self.links);
        out.extend_from_slice(&self.mac);
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_BYTES_MAX)];
        out.push(name.len() as u8);
        out.extend_from_slice(name);
    }

    /// Parses the fields. Bytes after them are left in `reader`: a handshake has padding there, a
    /// hello must have none.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let params = Self {
            node: reader.u64()?,
            instance: reader.u64()?,
            sent_at_ns: reader.u64()?,
            knows: reader.u64()?,
            session: reader.u16()?,
            link: reader.u8()?,
            seal: Seal::from_wire(reader.u8()?).ok_or(Malformed::Field("seal"))?,
            unit_bytes_max: reader.u16()?,
            lane: Lane::from_wire(reader.u8()?).ok_or(Malformed::Field("lane"))?,
            links: reader.u8()?,
            mac: reader.mac()?,
            name: {
                let bytes = usize::from(reader.u8()?);
                if bytes > NAME_BYTES_MAX {
                    return Err(Malformed::Field("name"));
                }
                // The name is displayed. Characters that are not printable ASCII must not reach a
                // terminal.
                let raw = reader.take(bytes)?;
                raw.iter()
                    .map(|b| {
                        if b.is_ascii_graphic() {
                            *b as char
                        } else {
                            '?'
                        }
                    })
                    .collect()
            },
        };
        if usize::from(params.link) >= LINKS_MAX || usize::from(params.links) > LINKS_MAX {
            return Err(Malformed::Field("link"));
        }
        if params.unit_bytes_max < UNIT_BYTES_LEAST {
            return Err(Malformed::Field("unit bytes max"));
        }
        Ok(params)
    }
}

/// Smallest unit payload that a peer may request, in bytes. It is well below IPv6's minimum MTU
/// (1280 bytes) less the framing. A hostile peer therefore cannot force more units per frame than
/// the header can number.
pub const UNIT_BYTES_LEAST: u16 = 512;

/// A node's introduction on one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Parameters of the node.
    pub params: Params,
}

impl Hello {
    /// Returns the datagram, authenticated with the cluster key.
    pub fn emit(&self, key: &ClusterKey) -> Vec<u8> {
        let mut out = vec![lead(Kind::Hello), 0, 0, 0];
        self.params.emit(&mut out);
        let mac = key.hello_mac(&out);
        out.extend_from_slice(&mac);
        out
    }

    /// Returns the identity that a hello claims, without verification. A node uses it to recognise
    /// its own hellos.
    pub fn claimed_node(datagram: &[u8]) -> Option<u64> {
        let node = datagram.get(4..)?.first_chunk()?;
        (datagram[0] == lead(Kind::Hello)).then(|| u64::from_be_bytes(*node))
    }

    /// Parses a hello. Returns `Ok(None)` if it was made with another key.
    pub fn parse(datagram: &[u8], key: &ClusterKey) -> Result<Option<Self>, Malformed> {
        let split = datagram
            .len()
            .checked_sub(HELLO_MAC_BYTES)
            .ok_or(Malformed::Short)?;
        let (body, mac) = datagram.split_at(split);
        if !key.verify_hello(body, mac) {
            return Ok(None);
        }
        let mut reader = Reader::new(body);
        if reader.take(4)? != [lead(Kind::Hello), 0, 0, 0] {
            return Err(Malformed::Field("reserved"));
        }
        let params = Params::parse(&mut reader)?;
        if reader.remaining().is_empty() {
            Ok(Some(Self { params }))
        } else {
            Err(Malformed::Field("length"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            params: Params {
                node: 1,
                instance: 2,
                sent_at_ns: 3,
                knows: 5,
                session: 4,
                link: 1,
                seal: Seal::Encrypt,
                unit_bytes_max: 1420,
                lane: Lane::ONLY,
                links: 2,
                mac: [2, 0, 0, 0, 0, 1],
                name: "h1".into(),
            },
        }
    }

    #[test]
    fn hello__same_cluster_key__round_trips() {
        let key = ClusterKey::from_bytes([7; 32]);
        let bytes = hello().emit(&key);
        assert_eq!(Hello::parse(&bytes, &key), Ok(Some(hello())));
    }

    #[test]
    fn hello__wrong_key_or_flipped_bit__is_refused() {
        let key = ClusterKey::from_bytes([7; 32]);
        let mut bytes = hello().emit(&key);
        assert_eq!(
            Hello::parse(&bytes, &ClusterKey::from_bytes([8; 32])),
            Ok(None)
        );
        bytes[10] ^= 1;
        assert_eq!(Hello::parse(&bytes, &key), Ok(None));
        assert_eq!(Hello::parse(&bytes[..3], &key), Err(Malformed::Short));
    }

    #[test]
    fn hello__golden_bytes__are_stable() {
        let bytes = hello().emit(&ClusterKey::from_bytes([7; 32]));
        let golden = [
            0x32, 0, 0, 0, // kind, version, reserved
            0, 0, 0, 0, 0, 0, 0, 1, // node
            0, 0, 0, 0, 0, 0, 0, 2, // instance
            0, 0, 0, 0, 0, 0, 0, 3, // sent at
            0, 0, 0, 0, 0, 0, 0, 5, // knows
            0, 4, 1, 1, 0x05, 0x8c, // session, link, seal, unit bytes max
            0, 2, 2, 0, 0, 0, 0, 1, // lane, links, MAC
            2, b'h', b'1', // name
        ];
        assert_eq!(bytes[..golden.len()], golden);
        assert_eq!(Hello::claimed_node(&bytes), Some(1));
        assert_eq!(Hello::claimed_node(&bytes[..11]), None);
        assert_eq!(bytes.len(), golden.len() + HELLO_MAC_BYTES);
    }
}
