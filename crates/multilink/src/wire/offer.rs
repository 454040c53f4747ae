//! Offer of a direct path: the sender's kernel takes frames of the peer on a link, without the
//! daemon.
//!
//! ```text
//! | address (48) | alias (48) | accepted (48) |
//! | sent (64) | received (64) | marker (64) | read at (64) | answer (8) |
//! ```
//!
//! Frames to the sender of the offer go to `address`. Its own frames come from `alias`, a random
//! address. `accepted` is the alias of the peer whose frames its kernel takes at present, or 0.
//!
//! The counts tell how many bytes wait or are lost on the way. An offer is behind the frames that
//! were sent before it. So of the `marker` bytes that the peer's last offer named as sent, all that
//! are not in `received` are lost.

use super::{Malformed, Reader};

/// Length of an offer, in bytes.
pub const OFFER_BYTES: usize = 51;

/// A MAC address.
pub type Mac = [u8; 6];

/// Body of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Addresses of frames on the path.
    pub addresses: Addresses,
    /// Bytes on the path.
    pub counts: Counts,
    /// The offer answers one of the receiver, and wants no answer.
    pub is_answer: bool,
}

/// Addresses of frames on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// MAC address of the sender's link.
    pub address: Mac,
    /// Source address of the sender's frames on the link.
    pub alias: Mac,
    /// Alias of the peer whose frames the sender takes; 0 for none.
    pub accepted: Mac,
}

/// Bytes that a kernel has sent and received on a path, as on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes sent to the peer before this offer.
    pub sent: u64,
    /// Bytes received from the peer.
    pub received: u64,
    /// `sent` of the peer's last offer that arrived before `received` was read.
    pub marker: u64,
    /// Time at which `received` was read, by the sender's clock, in ns.
    pub at_ns: u64,
}

impl Offer {
    /// Writes the offer.
    pub fn emit(&self) -> [u8; OFFER_BYTES] {
        let Self {
            addresses, counts, ..
        } = self;
        let mut out = [0; OFFER_BYTES];
        out[..6].copy_from_slice(&addresses.address);
        out[6..12].copy_from_slice(&addresses.alias);
        out[12..18].copy_from_slice(&addresses.accepted);
        let numbers = [counts.sent, counts.received, counts.marker, counts.at_ns];
        for (field, number) in out[18..].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_be_bytes());
        }
        out[OFFER_BYTES - 1] = self.is_answer.into();
        out
    }

    /// Parses and checks an offer. Addresses of several hosts are refused: a frame to one would be
    /// flooded.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let addresses = Addresses {
            address: reader.mac()?,
            alias: reader.mac()?,
            accepted: reader.mac()?,
        };
        let counts = Counts {
            sent: reader.u64()?,
            received: reader.u64()?,
            marker: reader.u64()?,
            at_ns: reader.u64()?,
        };
        let answer = reader.u8()?;
        let is_of_one = |mac: &Mac| mac[0] & 1 == 0 && *mac != Mac::default();
        match is_of_one(&addresses.address) && is_of_one(&addresses.alias) {
            true => Ok(Self {
                addresses,
                counts,
                is_answer: answer & 1 == 1,
            }),
            false => Err(Malformed::Field("address")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            addresses: Addresses {
                address: [2, 1, 1, 1, 1, 1],
                alias: [2, 2, 2, 2, 2, 2],
                accepted: [0; 6],
            },
            counts: Counts {
                sent: 1,
                received: 2,
                marker: 3,
                at_ns: 4,
            },
            is_answer: true,
        }
    }

    #[test]
    fn offer__golden_bytes__are_stable() {
        let bytes = offer().emit();
        assert_eq!(
            bytes[..18],
            [2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            bytes[18..34],
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
        );
        assert_eq!(
            bytes[34..],
            [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 1]
        );
        assert_eq!(Offer::parse(&bytes), Ok(offer()));
    }

    #[test]
    fn offer__cut_or_with_an_address_of_several_hosts__is_refused() {
        let bytes = offer().emit();
        for len in 0..OFFER_BYTES {
            assert_eq!(Offer::parse(&bytes[..len]), Err(Malformed::Short));
        }
        for (at, value) in [(0, 1), (6, 0xff)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(Offer::parse(&bytes), Err(Malformed::Field("address")));
        }
        let zeroes = [0; OFFER_BYTES];
        assert_eq!(Offer::parse(&zeroes), Err(Malformed::Field("address")));
    }
}
