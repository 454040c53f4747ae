//! The cipher of the handshake: the same AES-256-GCM that seals the packets of a session.
//!
//! Everything else of the handshake (X25519, BLAKE2s, random numbers) is `snow`'s own.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};

/// Length of the tag, in bytes.
const TAG_BYTES: usize = 16;

/// Provides the primitives of a handshake.
pub struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        DefaultResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let is_aes = *choice == CipherChoice::AESGCM;
        is_aes.then(|| Box::new(AesGcm::new(&[0; 32])) as Box<dyn Cipher>)
    }
}

struct AesGcm(LessSafeKey);

impl AesGcm {
    fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("an AES-256 key has 32 bytes");
        Self(LessSafeKey::new(key))
    }
}

/// Returns the nonce of Noise's AESGCM: 32 zero bits, then the counter, big-endian (Noise, §12.4).
fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        *self = Self::new(key);
    }

    fn encrypt(&self, counter: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, tail) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(counter), Aad::from(authtext), text)
            .expect("a handshake message is far below AES-GCM's length limit");
        tail[..TAG_BYTES].copy_from_slice(tag.as_ref());
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        counter: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let text_bytes = ciphertext
            .len()
            .checked_sub(TAG_BYTES)
            .ok_or(Error::Decrypt)?;
        let (text, tag) = ciphertext.split_at(text_bytes);
        let out = out.get_mut(..text_bytes).ok_or(Error::Decrypt)?;
        self.0
            .open_separate_gather(nonce(counter), Aad::from(authtext), text, tag, out)
            .map_err(|_| Error::Decrypt)?;
        Ok(text_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cipher__compared_with_snows_own__gives_equal_messages() {
        let choice = CipherChoice::AESGCM;
        let mut ours = Resolver.resolve_cipher(&choice).unwrap();
        let mut theirs = DefaultResolver.resolve_cipher(&choice).unwrap();
        let key: [u8; 32] = std::array::from_fn(|index| index as u8);
        ours.set(&key);
        theirs.set(&key);
        for (counter, text) in [(0, &b""[..]), (7, b"text"), (u64::MAX - 1, &[9; 300])] {
            let (mut sealed, mut expected) = ([0; 400], [0; 400]);
            let bytes = ours.encrypt(counter, b"header", text, &mut sealed);
            assert_eq!(
                theirs.encrypt(counter, b"header", text, &mut expected),
                bytes
            );
            assert_eq!(sealed, expected);
            let mut opened = [0; 400];
            let read = ours.decrypt(counter, b"header", &sealed[..bytes], &mut opened);
            assert_eq!(read.unwrap(), text.len());
            assert_eq!(&opened[..text.len()], text);
            sealed[bytes - 1] ^= 1;
            let refused = ours.decrypt(counter, b"header", &sealed[..bytes], &mut opened);
            assert!(refused.is_err(), "a changed tag is refused");
        }
        assert!(ours.decrypt(0, b"", &[0; 15], &mut [0; 15]).is_err());
    }
}
