//! One set of keys with a peer, and what was received under it.

use crate::arrivals::Arrivals;
use crate::handshake::Keys;
use crate::secure::{Forged, PacketKey, Seal};
use crate::seq::extend;
use crate::wire::LINKS_MAX;

/// A session is renewed after this long, as WireGuard's `REKEY_AFTER_TIME`.
pub const REKEY_NS: u64 = 120_000_000_000;
/// Packets of the session before are accepted for this long after a renewal.
pub const OVERLAP_NS: u64 = 10_000_000_000;
/// A session that the peer is not heard to use for this long is made anew: the peer may have lost it.
pub const CONFIRM_NS: u64 = 1_000_000_000;
/// Packets one link may carry under a session: far below the 2³² at which a peer that hears only
/// the low half could be confused, and below AES-GCM's limit for one key.
pub const LINK_PACKETS_MAX: u64 = 1 << 31;

/// Keys, numbers and arrivals.
pub struct Session {
    /// The number on packets to this side.
    pub local: u16,
    /// The number on packets to the peer.
    pub remote: u16,
    /// How packets are sealed.
    pub seal: Seal,
    /// When it was made.
    pub made_at_ns: u64,
    /// Whether the peer has been heard to use it.
    pub is_confirmed: bool,
    tx: PacketKey,
    rx: PacketKey,
    arrivals: Vec<Arrivals>,
}

/// Why a packet of a session was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// Accepted before, or too old to tell.
    Replayed,
    /// The tag does not fit.
    Forged,
}

impl Session {
    /// A session from a finished handshake.
    pub fn new(local: u16, remote: u16, seal: Seal, keys: &Keys, now_ns: u64) -> Self {
        let (tx, rx) = keys.packet_keys(seal);
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
            arrivals,
        }
    }

    /// Appends a sealed datagram to `out`.
    pub fn seal(&self, link: u8, link_seq: u64, header: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        self.tx.seal(link, link_seq, header, payload, out);
    }

    /// Opens a datagram in place; gives its full link sequence number and the payload's range.
    /// What is rejected leaves no trace.
    pub fn open(
        &mut self,
        link: u8,
        link_seq: u32,
        header_bytes: usize,
        datagram: &mut [u8],
    ) -> Result<(u64, std::ops::Range<usize>), Rejected> {
        let arrivals = &self.arrivals[usize::from(link)];
        let seq = extend(link_seq, arrivals.next());
        if !arrivals.is_fresh(seq) {
            return Err(Rejected::Replayed);
        }
        let payload = self.rx.open(link, seq, header_bytes, datagram);
        let bytes = payload.map_err(|Forged| Rejected::Forged)?.len();
        Ok((seq, header_bytes..header_bytes + bytes))
    }

    /// Notes an opened packet. True if it left a gap behind it.
    pub fn accept(&mut self, link: u8, seq: u64, now_ns: u64) -> bool {
        self.is_confirmed = true;
        self.arrivals[usize::from(link)].accept(seq, now_ns)
    }

    /// The arrivals of all links.
    pub fn arrivals(&mut self) -> &mut [Arrivals] {
        &mut self.arrivals
    }

    /// Whether it is time for new keys.
    pub fn is_old(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.made_at_ns) > REKEY_NS
    }
}
