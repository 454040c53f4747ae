//! Noise handshake `NNpsk0`: one round trip, with a secret of the job as the PSK.
//!
//! ```text
//! init:  | kind 1, version | 0 (24) | 0 (32) | initiator's index in its message … (64) | Noise |
//! reply: | kind 2, version | 0 (24) | initiator's index (32) | 0 (64)                  | Noise |
//! ```
//!
//! The PSK comes first, so a responder drops a message of a stranger without a Diffie-Hellman. Both
//! messages have the same length.
//!
//! An Init may be a replay of an old one. The session that it begins therefore replaces none before
//! its initiator has proved with a sealed packet that it runs (`endpoint.rs`).

use crate::protocol::wire::{Flags, HEADER_BYTES, Header, Kind};
use kumi_multilink::noise_cipher::Resolver;
use kumi_multilink::secure::Seal;
use kumi_multilink::wire::Reader;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
const PROLOGUE: &[u8] = b"kumihimo wind 1";
/// Bytes of a Noise message beyond its payload: an X25519 key and a tag.
const NOISE_BYTES: usize = 32 + 16;
const PAYLOAD_BYTES: usize = 32;

/// Length of both messages, in bytes.
pub const MESSAGE_BYTES: usize = HEADER_BYTES + NOISE_BYTES + PAYLOAD_BYTES;

/// Secret that the processes of a job share.
pub type Secret = [u8; 32];

/// Parameters of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Random number of the process's run. A restarted process has another one.
    pub epoch: u64,
    /// Index under which this side receives packets of the session.
    pub index: u32,
    /// Longest datagram that this side receives, in bytes.
    pub datagram_bytes_max: u16,
    /// Bytes that the other side may send before the first grant.
    pub granted_bytes: u64,
    /// Longest time for which this side holds an acknowledgement, in µs.
    pub ack_delay_us: u32,
    /// Protection of packets, which both sides must have.
    pub seal: Seal,
}

impl Params {
    fn to_bytes(self) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.index.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.datagram_bytes_max.to_be_bytes());
        bytes[15] = self.seal as u8;
        bytes[16..24].copy_from_slice(&self.granted_bytes.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.ack_delay_us.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (epoch, index) = (reader.u64().ok()?, reader.u32().ok()?);
        let datagram_bytes_max = reader.u16().ok()?;
        let seal = Seal::from_wire(u8::try_from(reader.u16().ok()?).ok()?)?;
        Some(Self {
            epoch,
            index,
            datagram_bytes_max,
            granted_bytes: reader.u64().ok()?,
            ack_delay_us: reader.u32().ok()?,
            seal,
        })
    }
}

/// Keys of a session.
pub struct Keys {
    /// Seals packets to the peer.
    pub sending: [u8; 32],
    /// Opens packets from the peer.
    pub receiving: [u8; 32],
}

fn noise(secret: &Secret) -> snow::Builder<'_> {
    let pattern = PATTERN.parse().expect("the pattern is a valid Noise name");
    snow::Builder::with_resolver(pattern, Box::new(Resolver))
        .psk(0, secret)
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("psk and prologue are set once")
}

fn message(kind: Kind, receiver: u32, noise: &mut snow::HandshakeState, own: &Params) -> Vec<u8> {
    let header = Header {
        kind,
        flags: Flags::default(),
        receiver,
        number: 0,
    };
    let mut out = vec![0; MESSAGE_BYTES];
    out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    noise
        .write_message(&own.to_bytes(), &mut out[HEADER_BYTES..])
        .expect("the buffer fits the message");
    out
}

fn read(noise: &mut snow::HandshakeState, packet: &[u8]) -> Option<Params> {
    if packet.len() != MESSAGE_BYTES {
        return None;
    }
    let mut payload = [0; MESSAGE_BYTES];
    let bytes = noise
        .read_message(&packet[HEADER_BYTES..], &mut payload)
        .ok()?;
    Params::parse(&payload[..bytes])
}

/// A handshake that this side has begun.
pub struct Initiator {
    noise: Box<snow::HandshakeState>,
    /// The Init, which is sent until the Reply arrives.
    pub packet: Vec<u8>,
}

impl Initiator {
    /// Begins a handshake.
    pub fn new(secret: &Secret, own: &Params) -> Self {
        let mut noise = noise(secret).build_initiator().expect("NN needs no keys");
        let packet = message(Kind::Init, 0, &mut noise, own);
        Self {
            noise: Box::new(noise),
            packet,
        }
    }

    /// Reads the Reply; `None` for one that was not made with the secret for this Init. A forged
    /// Reply does not end the handshake.
    pub fn finish(&mut self, reply: &[u8]) -> Option<(Params, Keys)> {
        let params = read(&mut self.noise, reply)?;
        let (sending, receiving) = self.noise.dangerously_get_raw_split();
        Some((params, Keys { sending, receiving }))
    }
}

/// Reads an Init and answers it with the parameters that `own` gives for those of the initiator.
/// Returns the Reply; `None` for an Init that was not made with the secret, or if `own` gives none.
/// Only the answer costs a Diffie-Hellman.
pub fn answer(
    secret: &Secret,
    init: &[u8],
    own: impl FnOnce(&Params) -> Option<Params>,
) -> Option<(Params, Keys, Vec<u8>)> {
    let mut noise = noise(secret).build_responder().expect("NN needs no keys");
    let params = read(&mut noise, init)?;
    let packet = message(Kind::Reply, params.index, &mut noise, &own(&params)?);
    let (receiving, sending) = noise.dangerously_get_raw_split();
    Some((params, Keys { sending, receiving }, packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = [5; 32];

    fn params(index: u32) -> Params {
        Params {
            epoch: 1 << 40 | u64::from(index),
            index,
            datagram_bytes_max: 1452,
            granted_bytes: 1 << 33,
            ack_delay_us: 200,
            seal: Seal::Encrypt,
        }
    }

    #[test]
    fn handshake__both_sides__agree_on_parameters_and_keys() {
        let mut initiator = Initiator::new(&SECRET, &params(1));
        let (theirs, keys, reply) =
            answer(&SECRET, &initiator.packet, |_| Some(params(2))).unwrap();
        assert_eq!(theirs, params(1));
        assert_eq!(
            (initiator.packet.len(), reply.len()),
            (MESSAGE_BYTES, MESSAGE_BYTES)
        );
        let mut damaged = reply.clone();
        damaged[HEADER_BYTES + 3] ^= 1;
        assert!(
            initiator.finish(&damaged).is_none(),
            "a forged Reply is ignored"
        );
        let (ours, own_keys) = initiator.finish(&reply).unwrap();
        assert_eq!(ours, params(2));
        assert_eq!(own_keys.sending, keys.receiving);
        assert_eq!(own_keys.receiving, keys.sending);
    }

    #[test]
    fn init__of_another_secret_or_truncated__is_not_answered() {
        let initiator = Initiator::new(&[6; 32], &params(1));
        assert!(answer(&SECRET, &initiator.packet, |_| Some(params(2))).is_none());
        let initiator = Initiator::new(&SECRET, &params(1));
        for length in 0..MESSAGE_BYTES {
            assert!(answer(&SECRET, &initiator.packet[..length], |_| Some(params(2))).is_none());
        }
    }
}
