//! Offer of a direct path: the sender's kernel takes frames of the peer on a link, without the
//! daemon.
//!
//! ```text
//! | address (48) | alias (48) | accepted (48) | key (128) |
//! ```

use super::{Malformed, Reader};

/// Length of an offer, in bytes.
pub const OFFER_BYTES: usize = 34;

/// A MAC address.
pub type Mac = [u8; 6];

/// Key of the tags on a device's questions between kernels: one of SipHash.
pub type QuestionKey = [u8; 16];

/// Body of an offer: addresses of frames on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// MAC address of the sender's link, to which frames to the sender go.
    pub address: Mac,
    /// Source address of the sender's frames on the link: a random one.
    pub alias: Mac,
    /// Alias of the peer whose frames the sender's kernel takes at present; 0 for none.
    pub accepted: Mac,
    /// Key of the sender's questions on the link, and of the answers to them.
    pub key: QuestionKey,
}

impl Offer {
    /// Writes the offer.
    pub fn emit(&self) -> [u8; OFFER_BYTES] {
        let mut out = [0; OFFER_BYTES];
        out[..6].copy_from_slice(&self.address);
        out[6..12].copy_from_slice(&self.alias);
        out[12..18].copy_from_slice(&self.accepted);
        out[18..].copy_from_slice(&self.key);
        out
    }

    /// Parses and checks an offer. Addresses of several hosts are refused: a frame to one would be
    /// flooded.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let offer = Self {
            address: reader.mac()?,
            alias: reader.mac()?,
            accepted: reader.mac()?,
            key: reader.array()?,
        };
        let is_of_one = |mac: &Mac| mac[0] & 1 == 0 && *mac != Mac::default();
        match is_of_one(&offer.address) && is_of_one(&offer.alias) {
            true => Ok(offer),
            false => Err(Malformed::Field("address")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            address: [2, 1, 1, 1, 1, 1],
            alias: [2, 2, 2, 2, 2, 2],
            accepted: [0; 6],
            key: [3; 16],
        }
    }

    #[test]
    fn offer__golden_bytes__are_stable() {
        let bytes = offer().emit();
        assert_eq!(
            bytes[..18],
            [2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[18..], [3; 16]);
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
