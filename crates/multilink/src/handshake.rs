//! The Noise handshake: `NNpsk0`, one round trip, the cluster key as the PSK.
//!
//! The PSK comes first (`psk0`), so the responder knows from the first message, before any
//! Diffie-Hellman and before it stores or answers anything, that the sender holds the cluster key.
//! The initiator pads its message so that the answer is never larger than the question.
//!
//! Ephemeral keys come from the operating system inside `snow`: their values decide nothing that a
//! simulation observes, so a core that takes its randomness as an argument loses nothing by it.

use crate::secure::{ClusterKey, PacketKey};
use crate::wire::{Kind, NAME_BYTES_MAX, Params, Reader, lead};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
const PROLOGUE: &[u8] = b"kumihimo multilink 1";

/// Bytes of a Noise message beyond its payload: an X25519 key and a tag.
const NOISE_BYTES: usize = 32 + 16;
/// The longest payload: the fixed parameters and a name of [`NAME_BYTES_MAX`].
const PAYLOAD_BYTES_MAX: usize = 39 + NAME_BYTES_MAX;
/// Both messages are padded to this, so neither amplifies the other.
const MESSAGE_BYTES: usize = 4 + NOISE_BYTES + PAYLOAD_BYTES_MAX;

/// Why a handshake message was refused. Nothing is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Made with another cluster key, or damaged.
    #[error("not made with this cluster's key")]
    Key,
    /// The key is right and the contents are not.
    #[error("handshake message malformed")]
    Malformed,
}

/// The keys a finished handshake gives.
pub struct Keys {
    /// Seals what this side sends.
    pub tx: [u8; 32],
    /// Opens what it receives.
    pub rx: [u8; 32],
}

impl Keys {
    /// Packet keys under the agreed seal.
    pub fn packet_keys(&self, seal: crate::secure::Seal) -> (PacketKey, PacketKey) {
        (
            PacketKey::new(&self.tx, seal),
            PacketKey::new(&self.rx, seal),
        )
    }
}

fn builder(key: &ClusterKey) -> snow::Builder<'_> {
    let pattern = PATTERN.parse().expect("the pattern is a valid Noise name");
    snow::Builder::new(pattern)
        .psk(0, key.psk())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("psk and prologue are set once")
}

fn message(kind: Kind, noise: &mut snow::HandshakeState, params: &Params) -> Vec<u8> {
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES_MAX);
    params.emit(&mut payload);
    payload.resize(PAYLOAD_BYTES_MAX, 0);
    let mut out = vec![0; MESSAGE_BYTES];
    out[0] = lead(kind);
    let written = noise
        .write_message(&payload, &mut out[4..])
        .expect("the buffer fits the message");
    assert_eq!(
        written + 4,
        MESSAGE_BYTES,
        "Noise message length is fixed by the pattern"
    );
    out
}

fn read(noise: &mut snow::HandshakeState, datagram: &[u8]) -> Result<Params, Refused> {
    if datagram.len() != MESSAGE_BYTES || datagram[1..4] != [0; 3] {
        return Err(Refused::Malformed);
    }
    let mut payload = [0; MESSAGE_BYTES];
    let bytes = noise
        .read_message(&datagram[4..], &mut payload)
        .map_err(|_| Refused::Key)?;
    Params::parse(&mut Reader::new(&payload[..bytes])).map_err(|_| Refused::Malformed)
}

/// A handshake this side began.
pub struct Initiator {
    noise: Box<snow::HandshakeState>,
    /// The number this side wants on packets of the session.
    pub session: u16,
}

impl Initiator {
    /// Begins a handshake; gives the datagram to send.
    pub fn start(key: &ClusterKey, params: &Params) -> (Self, Vec<u8>) {
        let mut noise = builder(key)
            .build_initiator()
            .expect("NNpsk0 needs no static key");
        let datagram = message(Kind::Init, &mut noise, params);
        (
            Self {
                noise: Box::new(noise),
                session: params.session,
            },
            datagram,
        )
    }

    /// Reads the answer. On refusal the handshake stays as it was: a forged reply must not end it.
    pub fn finish(&mut self, datagram: &[u8]) -> Result<(Params, Keys), Refused> {
        let params = read(&mut self.noise, datagram)?;
        let (tx, rx) = self.noise.dangerously_get_raw_split();
        Ok((params, Keys { tx, rx }))
    }
}

/// The answering side, between reading the question and deciding to answer.
pub struct Responder {
    noise: snow::HandshakeState,
}

impl Responder {
    /// Reads a first message. Costs two hashes and one AEAD until the key is known to be right.
    pub fn read(key: &ClusterKey, datagram: &[u8]) -> Result<(Self, Params), Refused> {
        let mut noise = builder(key)
            .build_responder()
            .expect("NNpsk0 needs no static key");
        let params = read(&mut noise, datagram)?;
        Ok((Self { noise }, params))
    }

    /// Answers; gives the datagram to send and the keys.
    pub fn answer(mut self, params: &Params) -> (Vec<u8>, Keys) {
        let datagram = message(Kind::Reply, &mut self.noise, params);
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

    #[test]
    fn handshake__same_key__agrees_on_keys_and_parameters() {
        let key = ClusterKey::from_bytes([1; 32]);
        let (mut initiator, init) = Initiator::start(&key, &params(1));
        let (responder, seen) = Responder::read(&key, &init).unwrap();
        assert_eq!(seen, params(1));
        let (reply, theirs) = responder.answer(&params(2));
        assert!(reply.len() <= init.len(), "an answer must not amplify");
        let (seen, ours) = initiator.finish(&reply).unwrap();
        assert_eq!(seen, params(2));
        assert_eq!((ours.tx, ours.rx), (theirs.rx, theirs.tx));
        assert_ne!(ours.tx, ours.rx);
    }

    #[test]
    fn handshake__wrong_key__is_refused_before_an_answer() {
        let (_, init) = Initiator::start(&ClusterKey::from_bytes([1; 32]), &params(1));
        let refused = Responder::read(&ClusterKey::from_bytes([2; 32]), &init);
        assert_eq!(refused.err(), Some(Refused::Key));
    }

    #[test]
    fn handshake__forged_reply__does_not_end_it() {
        let key = ClusterKey::from_bytes([1; 32]);
        let (mut initiator, init) = Initiator::start(&key, &params(1));
        let (responder, _) = Responder::read(&key, &init).unwrap();
        let (reply, _) = responder.answer(&params(2));
        let mut forged = reply.clone();
        forged[60] ^= 1;
        assert_eq!(initiator.finish(&forged).err(), Some(Refused::Key));
        assert!(initiator.finish(&reply).is_ok());
    }
}
