//! Keys and seals: the proof of membership by the cluster key, and the AEAD on every packet of a
//! session.
//!
//! The nodes of a cluster share one 32-byte cluster key. It signs hellos and is the PSK of the
//! Noise handshake ([`crate::handshake`]). The keys that result from the handshake seal the packets
//! with AES-256-GCM. The nonce is the link and its 64-bit sequence number; the header is associated
//! data. A nonce is never used twice: sequence numbers count per link and session, and each
//! direction has its own key.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{constant_time, hkdf, hmac};

use crate::wire::TAG_BYTES;

/// Length of a cluster key, in bytes.
pub const CLUSTER_KEY_BYTES: usize = 32;

/// Length of a hello's truncated HMAC, in bytes: 128 bits, as the AEAD's tag.
pub const HELLO_MAC_BYTES: usize = 16;

/// Length of the truncated HMAC around a handshake message, and of a cookie, in bytes: 128 bits as
/// well.
pub const ENVELOPE_MAC_BYTES: usize = 16;

/// MAC of a handshake message, or a cookie.
pub type Tag = [u8; ENVELOPE_MAC_BYTES];

fn truncated(key: &hmac::Key, body: &[u8]) -> Tag {
    let tag = hmac::sign(key, body);
    let mut out = Tag::default();
    out.copy_from_slice(&tag.as_ref()[..ENVELOPE_MAC_BYTES]);
    out
}

/// Derives a key for `purpose` from the key of one direction of a session: HMAC-SHA256, truncated.
pub fn derive(session_key: &[u8; 32], purpose: &str) -> Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, session_key);
    truncated(&key, purpose.as_bytes())
}

/// Secret that all nodes of a cluster share.
#[derive(Clone)]
pub struct ClusterKey {
    psk: [u8; CLUSTER_KEY_BYTES],
    hello: hmac::Key,
    envelope: hmac::Key,
    cookie: hmac::Key,
    wind: [u8; CLUSTER_KEY_BYTES],
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

impl ClusterKey {
    /// Derives one key for each use from the bytes of the key file, so that no use of the secret
    /// can serve another.
    pub fn from_bytes(bytes: [u8; CLUSTER_KEY_BYTES]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"kumihimo multilink 1").extract(&bytes);
        let derive = |label: &'static [u8]| {
            let mut out = [0; CLUSTER_KEY_BYTES];
            root.expand(&[label], hkdf::HKDF_SHA256)
                .and_then(|okm| okm.fill(&mut out))
                .expect("32 bytes are within HKDF's limit");
            out
        };
        Self {
            psk: derive(b"psk"),
            hello: hmac::Key::new(hmac::HMAC_SHA256, &derive(b"hello")),
            envelope: hmac::Key::new(hmac::HMAC_SHA256, &derive(b"envelope")),
            cookie: hmac::Key::new(hmac::HMAC_SHA256, &derive(b"cookie")),
            wind: derive(b"wind"),
        }
    }

    /// Returns the PSK of the Noise handshake.
    pub(crate) fn psk(&self) -> &[u8; CLUSTER_KEY_BYTES] {
        &self.psk
    }

    /// Returns the secret of Wind's handshake, for processes that share the cluster key.
    pub fn wind_secret(&self) -> [u8; CLUSTER_KEY_BYTES] {
        self.wind
    }

    /// Returns the MAC of a hello.
    pub fn hello_mac(&self, body: &[u8]) -> [u8; HELLO_MAC_BYTES] {
        truncated(&self.hello, body)
    }

    /// Returns the MAC of a handshake message.
    pub fn envelope_mac(&self, body: &[u8]) -> Tag {
        truncated(&self.envelope, body)
    }

    /// Returns the cookie by which `sender` proves that it receives at its address. Only nodes of
    /// the cluster can compute or use a cookie. It therefore needs no secret of its own and may be
    /// sent in clear.
    pub fn cookie(&self, sender: &[u8]) -> Tag {
        truncated(&self.cookie, sender)
    }

    /// Returns whether `mac` is the MAC of `body`.
    pub fn verify_envelope(&self, body: &[u8], mac: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(&self.envelope_mac(body), mac).is_ok()
    }

    /// Returns whether `mac` is the MAC of the hello `body`.
    pub fn verify_hello(&self, body: &[u8], mac: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(&self.hello_mac(body), mac).is_ok()
    }
}

/// Returns the cluster key bytes that the text of a key file states: 64 hexadecimal digits.
///
/// # Errors
/// Says what is wrong with the text.
pub fn parse_key_text(text: &str) -> Result<[u8; CLUSTER_KEY_BYTES], String> {
    if let Some(wrong) = text.chars().find(|c| !c.is_ascii_hexdigit()) {
        return Err(format!("`{wrong}` is not a hexadecimal digit"));
    }
    if text.len() != CLUSTER_KEY_BYTES * 2 {
        return Err(format!("it has {} digits", text.len()));
    }
    let mut bytes = [0; CLUSTER_KEY_BYTES];
    for (byte, offset) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte =
            u8::from_str_radix(&text[offset..offset + 2], 16).map_err(|error| error.to_string())?;
    }
    Ok(bytes)
}

/// Returns the key of a Wind region that each process with the job's `secret` derives from
/// `number`.
pub fn region_key(secret: &[u8; CLUSTER_KEY_BYTES], number: u64) -> Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    truncated(&key, &[b"wind region", &number.to_be_bytes()[..]].concat())
}

/// Returns the key of the datagrams of an IP multicast transfer, which each process with the job's
/// `secret` derives from the transfer's random `name`.
pub fn multicast_key(secret: &[u8; CLUSTER_KEY_BYTES], name: &[u8; 16]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, &[&b"wind multicast"[..], name].concat());
    tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

/// Protection of the packets of a session. Both ends must have the same setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Seal {
    /// Encrypted and authenticated: the default.
    Encrypt = 1,
    /// Authenticated, payload readable (AES-GMAC).
    Authenticate = 2,
    /// Neither encrypted nor authenticated (`--plain`): only for networks in which no other host
    /// can send.
    Plain = 3,
}

impl Seal {
    /// Returns the seal with the wire's value.
    pub fn from_wire(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::Encrypt),
            2 => Some(Self::Authenticate),
            3 => Some(Self::Plain),
            _ => None,
        }
    }

    /// Returns the bytes that the seal adds to a datagram.
    pub const fn tag_bytes(self) -> usize {
        match self {
            Self::Encrypt | Self::Authenticate => TAG_BYTES,
            Self::Plain => 0,
        }
    }

    /// Returns the setting's name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Authenticate => "authenticate",
            Self::Plain => "plain",
        }
    }
}

/// Error of a datagram whose tag is wrong: forged, damaged, or of another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forged;

/// Key that seals the packets of one direction of a session, or opens them.
pub struct PacketKey {
    key: LessSafeKey,
    seal: Seal,
}

impl PacketKey {
    /// Returns a key for one direction of a session.
    pub fn new(bytes: &[u8; 32], seal: Seal) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("an AES-256 key has 32 bytes");
        Self {
            key: LessSafeKey::new(key),
            seal,
        }
    }

    /// Returns the bytes that the key adds to a datagram.
    pub fn tag_bytes(&self) -> usize {
        self.seal.tag_bytes()
    }

    fn nonce(link: u8, link_seq: u64) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = link;
        nonce[4..].copy_from_slice(&link_seq.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends `header`, `payload` and the tag to `out`, sealed.
    pub fn seal(&self, link: u8, link_seq: u64, header: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(header);
        out.extend_from_slice(payload);
        self.seal_at(link, link_seq, start, header.len(), out);
    }

    /// Seals the datagram from `start` to the end of `out` in place, and appends the tag. Its
    /// header has `header_bytes` bytes.
    pub fn seal_at(
        &self,
        link: u8,
        link_seq: u64,
        start: usize,
        header_bytes: usize,
        out: &mut Vec<u8>,
    ) {
        let body = &mut out[start..];
        let nonce = Self::nonce(link, link_seq);
        let tag = match self.seal {
            Seal::Plain => return,
            Seal::Encrypt => {
                let (header, text) = body.split_at_mut(header_bytes);
                self.key
                    .seal_in_place_separate_tag(nonce, Aad::from(&*header), text)
            }
            Seal::Authenticate => {
                self.key
                    .seal_in_place_separate_tag(nonce, Aad::from(&*body), &mut [])
            }
        }
        .expect("a datagram is far below AES-GCM's length limit");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens `datagram` in place. Returns the payload, which begins after `header_bytes`.
    pub fn open<'a>(
        &self,
        link: u8,
        link_seq: u64,
        header_bytes: usize,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], Forged> {
        if datagram.len() < header_bytes + self.seal.tag_bytes() {
            return Err(Forged);
        }
        let nonce = Self::nonce(link, link_seq);
        match self.seal {
            Seal::Plain => Ok(&datagram[header_bytes..]),
            Seal::Encrypt => {
                let (header, text) = datagram.split_at_mut(header_bytes);
                let plain = self.key.open_in_place(nonce, Aad::from(&*header), text);
                plain.map(|plain| &*plain).map_err(|_| Forged)
            }
            Seal::Authenticate => {
                let (body, tag) = datagram.split_at_mut(datagram.len() - TAG_BYTES);
                self.key
                    .open_in_place(nonce, Aad::from(&*body), tag)
                    .map_err(|_| Forged)?;
                Ok(&body[header_bytes..])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_key__secret_and_number__each_change_it() {
        let key = region_key(&[1; 32], 7);
        assert_eq!(key, region_key(&[1; 32], 7));
        assert_ne!(key, region_key(&[1; 32], 8));
        assert_ne!(key, region_key(&[2; 32], 7));
    }

    #[test]
    fn packet_key__each_seal__opens_its_own_and_authenticated_ones_refuse_changes() {
        for seal in [Seal::Encrypt, Seal::Authenticate, Seal::Plain] {
            let key = PacketKey::new(&[3; 32], seal);
            let mut datagram = Vec::new();
            key.seal(2, 9, b"head", b"payload", &mut datagram);
            assert_eq!(datagram.len(), 11 + seal.tag_bytes());
            assert_eq!(
                key.open(2, 9, 4, &mut datagram.clone()),
                Ok(&b"payload"[..])
            );
            if seal == Seal::Plain {
                continue;
            }
            assert_eq!(
                key.open(1, 9, 4, &mut datagram.clone()),
                Err(Forged),
                "another link"
            );
            assert_eq!(
                key.open(2, 10, 4, &mut datagram.clone()),
                Err(Forged),
                "another number"
            );
            for position in 0..datagram.len() {
                let mut damaged = datagram.clone();
                damaged[position] ^= 1;
                assert_eq!(
                    key.open(2, 9, 4, &mut damaged),
                    Err(Forged),
                    "bit at {position}"
                );
            }
            assert_eq!(
                key.open(2, 9, 4, &mut datagram[..10]),
                Err(Forged),
                "truncated"
            );
        }
    }

    #[test]
    fn cluster_key__debug_output__hides_the_key() {
        assert_eq!(
            format!("{:?}", ClusterKey::from_bytes([1; 32])),
            "ClusterKey(…)"
        );
    }
}
