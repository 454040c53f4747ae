//! How nodes introduce themselves: the parameters of a node, alone in the handshake's encrypted
//! payloads, and the multicast hello that carries them on a LAN.
//!
//! ```text
//! hello:  | kind=3 ver=2 | reserved (24) | parameters … | HMAC-SHA-256 of all before, 16 bytes |
//! parameters:
//! | node (64) | instance (64) | sent at (64) | knows (64) | session (16) | link (8) | seal (8) |
//! | unit bytes max (16) | lanes − 1 (4) | lane (4) | links (8) | MAC (48) | name length (8) | name … |
//! ```

use super::{Kind, LINKS_MAX, Malformed, Reader, lead};
use crate::lane::Lane;
use crate::secure::{ClusterKey, HELLO_MAC_BYTES, Seal};

/// Bytes of a node's name: a host name's limit.
pub const NAME_BYTES_MAX: usize = 64;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Identity of the node's device: random, kept as long as the device lives.
    pub node: u64,
    /// Random at every start of the daemon: a new one starts all sequences afresh.
    pub instance: u64,
    /// The sender's clock in ns; grows within an instance, so that an old handshake message
    /// cannot be replayed.
    pub sent_at_ns: u64,
    /// The receiver's instance with which the sender counts units; 0 if it remembers none, so that
    /// both count from 0 again (handshake only).
    pub knows: u64,
    /// The number the sender wants on packets of the session (handshake only).
    pub session: u16,
    /// The sender's number for the link this was sent on.
    pub link: u8,
    /// How packets are to be sealed; both ends must agree.
    pub seal: Seal,
    /// Largest unit payload the sender can take, in bytes, over its smallest link.
    pub unit_bytes_max: u16,
    /// Which of the device's lanes (queues) this is, and how many it has.
    pub lane: Lane,
    /// How many links the sender has.
    pub links: u8,
    /// MAC address of the sender's device.
    pub mac: [u8; 6],
    /// Host name, for people.
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

    /// Reads the fields; what follows them is padding.
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
                // A name is shown to people: what is not printable ASCII must not reach a terminal.
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

/// Smallest unit a peer may ask for: IPv6's least MTU less our framing, rounded down, so that a
/// hostile peer cannot make us cut a frame into more units than the header can number.
pub const UNIT_BYTES_LEAST: u16 = 512;

/// A node's introduction on one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// What the node says.
    pub params: Params,
}

impl Hello {
    /// The datagram, signed with the cluster key.
    pub fn emit(&self, key: &ClusterKey) -> Vec<u8> {
        let mut out = vec![lead(Kind::Hello), 0, 0, 0];
        self.params.emit(&mut out);
        let mac = key.hello_mac(&out);
        out.extend_from_slice(&mac);
        out
    }

    /// The identity that a hello claims, unverified: enough for a node to know its own.
    pub fn claimed_node(datagram: &[u8]) -> Option<u64> {
        let node = datagram.get(4..)?.first_chunk()?;
        (datagram[0] == lead(Kind::Hello)).then(|| u64::from_be_bytes(*node))
    }

    /// Reads a hello. `Ok(None)`: it was made with another key.
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
        if reader.rest().is_empty() {
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
    fn hello__with_the_cluster_key__reads_back() {
        let key = ClusterKey::from_bytes([7; 32]);
        let bytes = hello().emit(&key);
        assert_eq!(Hello::parse(&bytes, &key), Ok(Some(hello())));
    }

    #[test]
    fn hello__with_another_key_or_a_flipped_bit__is_refused() {
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
