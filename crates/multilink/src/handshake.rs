//! Noise handshake `NNpsk0`: one round trip, with the cluster key as the PSK.
//!
//! ```text
//! init:  | kind=4 ver=2 | reserved (24) | cookie, or 0 (128)    | Noise message | MAC (128) |
//! reply: | kind=5 ver=2 | reserved (24) | MAC of the Init (128) | Noise message | MAC (128) |
//! ```
//!
//! MAC is HMAC-SHA-256 of all bytes before it, truncated to 16 bytes.
//!
//! Both messages travel in an envelope, a MAC over the whole message (ADR 025). It is checked
//! first. The check costs a microsecond and drops every message that no node of the cluster made. A
//! Reply names the MAC of the Init that it answers, so only one Reply to a dial reaches the
//! Diffie-Hellman.
//!
//! The PSK comes first (`psk0`), so the responder reads the first message without a Diffie-Hellman.
//! The initiator pads its message so that the Reply is never larger than the Init.
//!
//! `snow` takes the ephemeral keys from the operating system. Their values affect nothing that a
//! simulation observes, so the core need not take this randomness as an argument.

use crate::noise_cipher::Resolver;
use crate::secure::{ClusterKey, ENVELOPE_MAC_BYTES, PacketKey, Tag};
use crate::wire::{Kind, NAME_BYTES_MAX, Params, Reader, lead};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
const PROLOGUE: &[u8] = b"kumihimo multilink 2";

/// Bytes of a Noise message beyond its payload: an X25519 key and a tag.
const NOISE_BYTES: usize = 32 + 16;
/// Longest payload, in bytes: the fixed parameters and a name of [`NAME_BYTES_MAX`].
const PAYLOAD_BYTES_MAX: usize = 47 + NAME_BYTES_MAX;
/// Bytes before the Noise message: kind, reserved bits and `tie`.
const HEAD_BYTES: usize = 4 + ENVELOPE_MAC_BYTES;
/// Length of both messages, in bytes. They are padded to it, so neither amplifies the other.
const MESSAGE_BYTES: usize = HEAD_BYTES + NOISE_BYTES + PAYLOAD_BYTES_MAX + ENVELOPE_MAC_BYTES;

/// Reason to drop a handshake message without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Made with another cluster key, or damaged.
    #[error("not made with this cluster's key")]
    Key,
    /// Made with the right key, but with invalid contents.
    #[error("handshake message malformed")]
    Malformed,
}

/// Keys that result from a finished handshake.
pub struct Keys {
    /// Key that seals datagrams to the peer.
    pub tx: [u8; 32],
    /// Key that opens datagrams from the peer.
    pub rx: [u8; 32],
}

impl Keys {
    /// Returns the packet keys (sending, receiving) under the agreed seal.
    pub fn packet_keys(&self, seal: crate::secure::Seal) -> (PacketKey, PacketKey) {
        (
            PacketKey::new(&self.tx, seal),
            PacketKey::new(&self.rx, seal),
        )
    }
}

fn builder(key: &ClusterKey) -> snow::Builder<'_> {
    let pattern = PATTERN.parse().expect("the pattern is a valid Noise name");
    snow::Builder::with_resolver(pattern, Box::new(Resolver))
        .psk(0, key.psk())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("psk and prologue are set once")
}

/// A handshake message with a valid MAC: a node of the cluster made it, now or earlier.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Cookie of an Init (0: absent), or the MAC of the Init that a Reply answers.
    pub tie: Tag,
    /// MAC of all bytes before it.
    pub tag: Tag,
    noise: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Checks the MAC of an Init or a Reply. Costs one HMAC.
    pub fn open(kind: Kind, key: &ClusterKey, datagram: &'a [u8]) -> Result<Self, Refused> {
        if datagram.len() != MESSAGE_BYTES || datagram[..4] != [lead(kind), 0, 0, 0] {
            return Err(Refused::Malformed);
        }
        let (body, mac) = datagram.split_at(MESSAGE_BYTES - ENVELOPE_MAC_BYTES);
        if !key.verify_envelope(body, mac) {
            return Err(Refused::Key);
        }
        let tag = |bytes: &[u8]| Tag::try_from(bytes).expect("16 bytes");
        Ok(Self {
            tie: tag(&body[4..HEAD_BYTES]),
            tag: tag(mac),
            noise: &body[HEAD_BYTES..],
        })
    }
}

/// Writes `tie` and the MAC around the Noise message in `out`. Returns the MAC.
fn enclose(key: &ClusterKey, tie: Tag, out: &mut [u8]) -> Tag {
    out[4..HEAD_BYTES].copy_from_slice(&tie);
    let (body, mac) = out.split_at_mut(MESSAGE_BYTES - ENVELOPE_MAC_BYTES);
    let tag = key.envelope_mac(body);
    mac.copy_from_slice(&tag);
    tag
}

fn message(
    kind: Kind,
    key: &ClusterKey,
    tie: Tag,
    noise: &mut snow::HandshakeState,
    params: &Params,
) -> (Vec<u8>, Tag) {
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES_MAX);
    params.emit(&mut payload);
    payload.resize(PAYLOAD_BYTES_MAX, 0);
    let mut out = vec![0; MESSAGE_BYTES];
    out[0] = lead(kind);
    let room = HEAD_BYTES..MESSAGE_BYTES - ENVELOPE_MAC_BYTES;
    let written = noise
        .write_message(&payload, &mut out[room.clone()])
        .expect("the buffer fits the message");
    assert_eq!(
        written,
        room.len(),
        "Noise message length is fixed by the pattern"
    );
    let tag = enclose(key, tie, &mut out);
    (out, tag)
}

fn read(noise: &mut snow::HandshakeState, envelope: &Envelope<'_>) -> Result<Params, Refused> {
    let mut payload = [0; MESSAGE_BYTES];
    let bytes = noise
        .read_message(envelope.noise, &mut payload)
        .map_err(|_| Refused::Key)?;
    Params::parse(&mut Reader::new(&payload[..bytes])).map_err(|_| Refused::Malformed)
}

/// Handshake that this side began.
pub struct Initiator {
    noise: Box<snow::HandshakeState>,
    datagram: Vec<u8>,
    /// MAC of the Init that was sent last. The Reply must name it.
    pub tag: Tag,
    /// Number that this side wants on packets of the session.
    pub session: u16,
}

impl Initiator {
    /// Begins a handshake. Returns the datagram to send.
    pub fn start(key: &ClusterKey, params: &Params) -> (Self, Vec<u8>) {
        let mut noise = builder(key)
            .build_initiator()
            .expect("NNpsk0 needs no static key");
        let (datagram, tag) = message(Kind::Init, key, Tag::default(), &mut noise, params);
        let initiator = Self {
            noise: Box::new(noise),
            datagram: datagram.clone(),
            tag,
            session: params.session,
        };
        (initiator, datagram)
    }

    /// Returns the same Init with the cookie that the responder asks for.
    pub fn with_cookie(&mut self, key: &ClusterKey, cookie: Tag) -> &[u8] {
        self.tag = enclose(key, cookie, &mut self.datagram);
        &self.datagram
    }

    /// Reads the answer. A refusal leaves the handshake unchanged, because a forged Reply must not
    /// end it.
    pub fn finish(&mut self, reply: &Envelope<'_>) -> Result<(Params, Keys), Refused> {
        if reply.tie != self.tag {
            return Err(Refused::Key);
        }
        let params = read(&mut self.noise, reply)?;
        let (tx, rx) = self.noise.dangerously_get_raw_split();
        Ok((params, Keys { tx, rx }))
    }
}

/// Responder's side of a handshake, after it has read the Init and before it answers.
pub struct Responder {
    noise: snow::HandshakeState,
    init: Tag,
}

impl Responder {
    /// Reads an Init. Costs two hashes and one AEAD.
    pub fn read(key: &ClusterKey, init: &Envelope<'_>) -> Result<(Self, Params), Refused> {
        let mut noise = builder(key)
            .build_responder()
            .expect("NNpsk0 needs no static key");
        let params = read(&mut noise, init)?;
        let init = init.tag;
        Ok((Self { noise, init }, params))
    }

    /// Answers the Init. Returns the datagram to send and the keys. Costs a Diffie-Hellman.
    pub fn answer(mut self, key: &ClusterKey, params: &Params) -> (Vec<u8>, Keys) {
        let (datagram, _) = message(Kind::Reply, key, self.init, &mut self.noise, params);
        let (rx, tx) = self.noise.dangerously_get_raw_split();
        (datagram, Keys { tx, rx })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secure::Seal;

    fn params(node: u64) -> Params {
        Params {
            node,
            instance: 1,
            sent_at_ns: 5,
            knows: 0,
            session: 11,
            link: 0,
            seal: Seal::Encrypt,
            unit_bytes_max: 1420,
            lane: crate::lane::Lane::ONLY,
            links: 2,
            mac: [2, 0, 0, 0, 0, node as u8],
            name: "x".repeat(NAME_BYTES_MAX),
        }
    }

    fn open<'a>(kind: Kind, key: &ClusterKey, datagram: &'a [u8]) -> Envelope<'a> {
        Envelope::open(kind, key, datagram).expect("its MAC is valid")
    }

    #[test]
    fn handshake__same_key__agrees_on_keys_and_parameters() {
        let key = ClusterKey::from_bytes([1; 32]);
        let (mut initiator, init) = Initiator::start(&key, &params(1));
        let (responder, received) = Responder::read(&key, &open(Kind::Init, &key, &init)).unwrap();
        assert_eq!(received, params(1));
        let (reply, theirs) = responder.answer(&key, &params(2));
        assert!(reply.len() <= init.len(), "an answer must not amplify");
        let reply = open(Kind::Reply, &key, &reply);
        let (received, ours) = initiator.finish(&reply).unwrap();
        assert_eq!(received, params(2));
        assert_eq!((ours.tx, ours.rx), (theirs.rx, theirs.tx));
        assert_ne!(ours.tx, ours.rx);
    }

    #[test]
    fn handshake__golden_bytes__are_stable() {
        let key = ClusterKey::from_bytes([1; 32]);
        let (mut initiator, init) = Initiator::start(&key, &params(1));
        assert_eq!((init.len(), &init[..4]), (195, &[0x42, 0, 0, 0][..]));
        assert_eq!(init[4..20], [0; 16], "no cookie");
        let with_cookie = initiator.with_cookie(&key, [9; 16]);
        assert_eq!(with_cookie[4..20], [9; 16]);
        assert_eq!(with_cookie[20..179], init[20..179], "the Noise message");
        let envelope = Envelope::open(Kind::Init, &key, &init).unwrap();
        let reply = Responder::read(&key, &envelope).unwrap().0;
        let (reply, _) = reply.answer(&key, &params(2));
        assert_eq!((reply.len(), &reply[..4]), (195, &[0x52, 0, 0, 0][..]));
        assert_eq!(reply[4..20], init[179..], "names its Init");
    }

    #[test]
    fn handshake__wrong_key_or_flipped_bit__fails_the_mac_check() {
        let (ours, theirs) = (
            ClusterKey::from_bytes([1; 32]),
            ClusterKey::from_bytes([2; 32]),
        );
        let (_, mut init) = Initiator::start(&ours, &params(1));
        let refused = |init: &[u8], key| Envelope::open(Kind::Init, key, init).err();
        assert_eq!(refused(&init, &theirs), Some(Refused::Key));
        assert_eq!(refused(&init, &ours), None);
        for offset in [10, 60, 190] {
            init[offset] ^= 1;
            assert_eq!(refused(&init, &ours), Some(Refused::Key));
            init[offset] ^= 1;
        }
        assert_eq!(refused(&init[1..], &ours), Some(Refused::Malformed));
        for (init, key, message) in [
            (&init[..], &theirs, "not made with this cluster's key"),
            (&init[1..], &ours, "handshake message malformed"),
        ] {
            assert_eq!(refused(init, key).unwrap().to_string(), message);
        }
    }

    #[test]
    fn handshake__reply_to_another_init__is_refused_and_the_genuine_reply_still_accepted() {
        let key = ClusterKey::from_bytes([1; 32]);
        let answer = |init: &[u8]| {
            let init = Envelope::open(Kind::Init, &key, init).unwrap();
            let (responder, _) = Responder::read(&key, &init).unwrap();
            responder.answer(&key, &params(2)).0
        };
        let (mut initiator, init) = Initiator::start(&key, &params(1));
        let (_, second) = Initiator::start(&key, &params(1));
        let (reply, forged) = (answer(&init), answer(&second));
        let refused = initiator.finish(&open(Kind::Reply, &key, &forged));
        assert_eq!(refused.err(), Some(Refused::Key));
        assert!(initiator.finish(&open(Kind::Reply, &key, &reply)).is_ok());
    }
}
