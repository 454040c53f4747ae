//! The cookie reply. It asks for an Init again, with proof of its sender's address.
//!
//! ```text
//! | kind=6 ver=2 | reserved (24) | MAC of the Init (128) | cookie (128) |
//! | HMAC-SHA-256 of all before, 16 bytes |
//! ```
//!
//! The initiator sends its Init again and includes the cookie. The MAC of the Init ties the cookie
//! to the one open dial, so a replayed cookie reply has no effect.

use super::{Kind, Malformed, Reader, lead};
use crate::secure::{ClusterKey, ENVELOPE_MAC_BYTES, Tag};

/// Length of a cookie reply, in bytes. It is shorter than the Init that it answers.
pub const COOKIE_BYTES: usize = 4 + 3 * ENVELOPE_MAC_BYTES;

/// A cookie and the Init that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieReply {
    /// MAC at the end of the Init.
    pub init: Tag,
    /// Cookie that the repeated Init must carry.
    pub cookie: Tag,
}

impl CookieReply {
    /// Returns the datagram.
    pub fn emit(&self, key: &ClusterKey) -> Vec<u8> {
        let mut out = vec![lead(Kind::Cookie), 0, 0, 0];
        out.extend_from_slice(&self.init);
        out.extend_from_slice(&self.cookie);
        let mac = key.envelope_mac(&out);
        out.extend_from_slice(&mac);
        out
    }

    /// Parses a cookie reply. Returns `Ok(None)` if it was made with another key.
    pub fn parse(datagram: &[u8], key: &ClusterKey) -> Result<Option<Self>, Malformed> {
        if datagram.len() != COOKIE_BYTES {
            return Err(Malformed::Field("length"));
        }
        let (body, mac) = datagram.split_at(COOKIE_BYTES - ENVELOPE_MAC_BYTES);
        if !key.verify_envelope(body, mac) {
            return Ok(None);
        }
        let mut reader = Reader::new(body);
        if reader.take(4)? != [lead(Kind::Cookie), 0, 0, 0] {
            return Err(Malformed::Field("reserved"));
        }
        let mut tag = || -> Result<Tag, Malformed> {
            let bytes = reader.take(ENVELOPE_MAC_BYTES)?;
            Ok(Tag::try_from(bytes).expect("as many bytes as were asked for"))
        };
        Ok(Some(Self {
            init: tag()?,
            cookie: tag()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie__golden_bytes__are_stable_and_read_back() {
        let key = ClusterKey::from_bytes([7; 32]);
        let reply = CookieReply {
            init: [0x11; 16],
            cookie: [0x22; 16],
        };
        let bytes = reply.emit(&key);
        let golden = [&[0x62, 0, 0, 0][..], &[0x11; 16], &[0x22; 16]].concat();
        assert_eq!(bytes[..golden.len()], golden);
        assert_eq!(bytes.len(), COOKIE_BYTES);
        assert_eq!(CookieReply::parse(&bytes, &key), Ok(Some(reply)));
    }

    #[test]
    fn cookie__wrong_key_or_length__is_refused() {
        let key = ClusterKey::from_bytes([7; 32]);
        let reply = CookieReply {
            init: [1; 16],
            cookie: [2; 16],
        };
        let bytes = reply.emit(&ClusterKey::from_bytes([8; 32]));
        assert_eq!(CookieReply::parse(&bytes, &key), Ok(None));
        let cut = CookieReply::parse(&bytes[..40], &key);
        assert_eq!(cut, Err(Malformed::Field("length")));
    }
}
