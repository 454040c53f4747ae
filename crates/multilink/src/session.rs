//! A set of keys with a peer, and the packets received under it.

use crate::arrivals::Arrivals;
use crate::handshake::Keys;
use crate::secure::{Forged, PacketKey, Seal};
use crate::seq::extend;
use crate::wire::LINKS_MAX;

/// Age at which a session is renewed, in ns: WireGuard's `REKEY_AFTER_TIME`.
pub const REKEY_NS: u64 = 120_000_000_000;
/// Time after a renewal for which packets of the previous session are accepted, in ns.
pub const OVERLAP_NS: u64 = 10_000_000_000;
/// Age at which a session is replaced if the peer has not been heard to use it, in ns. The peer may
/// have lost it.
pub const CONFIRM_NS: u64 = 1_000_000_000;
/// Packets that one link may carry under a session. This is far below 2³², at which a peer that
/// hears only the low half could be confused, and below AES-GCM's limit for one key.
pub const LINK_PACKETS_MAX: u64 = 1 << 31;

/// Keys, session numbers and received packets.
pub struct Session {
    /// Session number on packets to this side.
    pub local: u16,
    /// Session number on packets to the peer.
    pub remote: u16,
    /// Protection of the packets.
    pub seal: Seal,
    /// Time at which the session was made.
    pub made_at_ns: u64,
    /// True if the peer has been heard to use it.
    pub is_confirmed: bool,
    tx: PacketKey,
    rx: PacketKey,
    /// Keys of messages that are encrypted in each session: sending, receiving. A plain session
    /// uses its keys for nothing else.
    secret: Option<(PacketKey, PacketKey)>,
    arrivals: Vec<Arrivals>,
}

/// Reason to reject a packet of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// Accepted before, or too old to decide.
    Replayed,
    /// The tag is wrong.
    Forged,
}

impl Session {
    /// Returns a session with the keys of a finished handshake.
    pub fn new(local: u16, remote: u16, seal: Seal, keys: &Keys, now_ns: u64) -> Self {
        let (tx, rx) = keys.packet_keys(seal);
        let is_plain = seal == Seal::Plain;
        let secret = is_plain.then(|| keys.packet_keys(Seal::Encrypt));
        let mut arrivals = Vec::new();
        arrivals.resize_with(LINKS_MAX, Arrivals::default);
        Self {
            local,
            remote,
            seal,
            made_at_ns: now_ns,
            is_confirmed: false,
            tx,
            rx,
            secret,
            arrivals,
        }
    }

    /// Returns the key that seals packets. `is_secret` ones are encrypted in each session.
    pub fn key(&self, is_secret: bool) -> &PacketKey {
        let secret = self.secret.as_ref().filter(|_| is_secret);
        secret.map_or(&self.tx, |(tx, _)| tx)
    }

    /// Appends a sealed datagram to `out`.
    pub fn seal(&self, link: u8, link_seq: u64, header: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        self.tx.seal(link, link_seq, header, payload, out);
    }

    /// Opens a datagram in place; `is_secret` as in [`Self::key`]. Returns its full link sequence
    /// number and the range of the payload. A rejected datagram leaves the session unchanged.
    pub fn open(
        &mut self,
        (link, link_seq): (u8, u32),
        header_bytes: usize,
        is_secret: bool,
        datagram: &mut [u8],
    ) -> Result<(u64, std::ops::Range<usize>), Rejected> {
        let arrivals = &self.arrivals[usize::from(link)];
        let seq = extend(link_seq, arrivals.next());
        if !arrivals.is_fresh(seq) {
            return Err(Rejected::Replayed);
        }
        let secret = self.secret.as_ref().filter(|_| is_secret);
        let key = secret.map_or(&self.rx, |(_, rx)| rx);
        let payload = key.open(link, seq, header_bytes, datagram);
        let bytes = payload.map_err(|Forged| Rejected::Forged)?.len();
        Ok((seq, header_bytes..header_bytes + bytes))
    }

    /// Records an opened packet. Returns whether it left a gap before it.
    pub fn accept(&mut self, link: u8, seq: u64, now_ns: u64) -> bool {
        self.is_confirmed = true;
        self.arrivals[usize::from(link)].accept(seq, now_ns)
    }

    /// Returns the received packets of all links.
    pub fn arrivals(&mut self) -> &mut [Arrivals] {
        &mut self.arrivals
    }

    /// Returns whether new keys are due.
    pub fn is_old(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.made_at_ns) > REKEY_NS
    }
}
