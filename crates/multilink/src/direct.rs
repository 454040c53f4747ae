//! Frames that the kernels of both sides carry on a path, without the daemons.
//!
//! ```text
//!   this side                                    peer
//!       │ offer: my address A, my alias a          │
//!       │ ───────────────────────────────────────▶ │  its kernel takes frames from a
//!       │     offer: its address B, accepted = a   │
//!       │ ◀─────────────────────────────────────── │
//!   its kernel sends frames to B, from a
//! ```
//!
//! Each direction begins when the sender has read its own alias in an offer. The frames stop when
//! the path is not up. While frames flow, offers also tell how many bytes have arrived, and the
//! reports on them show that the path is alive.

use crate::wire::{Addresses, Counts, Mac, Offer};

/// Time after the last frame for which a path counts as in use, in ns.
const USED_NS: u64 = 200_000_000;
/// Interval of offers on a path in use, in ns, of the side that sends more bytes, and of the other.
/// The answer is quick, so it is the side that sends more that asks.
const OFFER_SENDER_NS: u64 = 2_000_000;
const OFFER_RECEIVER_NS: u64 = 3_000_000;
/// Interval of offers on another path, in ns.
const OFFER_NS: u64 = 1_000_000_000;
/// Time without an offer after which the peer's last one is void, in ns: three offers.
const VOID_NS: u64 = 3 * OFFER_NS;

/// Offers of both sides on one path.
#[derive(Debug, Default)]
pub struct Direct {
    /// Addresses in the peer's last offer, with the time of its arrival.
    theirs: Option<(Addresses, u64)>,
    /// Counts of the peer's last offer.
    their_counts: Counts,
    /// The caller has not taken `their_counts` yet.
    has_counts: bool,
    /// Alias of the peer whose frames this side's kernel takes; 0 for none.
    accepted: Mac,
    /// Bytes that this side's kernel had sent before the last offer, and received at the peer's.
    counts: Counts,
    /// Bytes received before the last offer.
    received_before: u64,
    /// Time at which the last offer was sent, and time until the next one while the path is in use.
    offered_at_ns: u64,
    interval_ns: u64,
    /// The peer must be told something new.
    has_news: bool,
    /// The peer waits for an answer to its last offer.
    owes_answer: bool,
    /// Time until which the path counts as in use by the kernel.
    used_until_ns: u64,
}

impl Direct {
    /// Records an offer of the peer. Returns whether its addresses differ from those of the last
    /// one.
    pub fn note(&mut self, offer: Offer, now_ns: u64) -> bool {
        let addresses = offer.addresses;
        let is_new = self.theirs.is_none_or(|(known, _)| known != addresses);
        // The peer may have lost what this side accepted, or not have heard it yet.
        self.has_news |= is_new;
        self.theirs = Some((addresses, now_ns));
        self.owes_answer = !offer.is_answer && self.is_used(now_ns);
        self.their_counts = offer.counts;
        self.has_counts = true;
        is_new
    }

    /// Returns the addresses of the peer's offer, if it is valid.
    pub fn theirs(&self, now_ns: u64) -> Option<Addresses> {
        let (addresses, at_ns) = self.theirs?;
        (now_ns < at_ns + VOID_NS).then_some(addresses)
    }

    /// Returns the counts of the peer's last offer, if they are new since the last call.
    pub fn take_counts(&mut self) -> Option<Counts> {
        std::mem::take(&mut self.has_counts).then_some(self.their_counts)
    }

    /// Records that this side's kernel takes frames from an alias of the peer.
    pub fn accept(&mut self, alias: Mac) {
        self.has_news |= self.accepted != alias;
        self.accepted = alias;
    }

    /// Records what this side's kernel has received, as read when the peer's last offer arrived.
    pub fn note_received(&mut self, received: u64, now_ns: u64) {
        self.counts.received = received;
        self.counts.marker = self.their_counts.sent;
        self.counts.at_ns = now_ns;
    }

    /// Records that the kernel has carried frames lately.
    pub fn note_used(&mut self, now_ns: u64) {
        self.used_until_ns = now_ns + USED_NS;
    }

    /// Returns whether the kernel carried frames a moment before `at_ns`.
    pub fn is_used(&self, at_ns: u64) -> bool {
        at_ns < self.used_until_ns
    }

    /// Returns the time at which the next offer is due.
    pub fn due_ns(&self) -> u64 {
        match self.has_news || self.owes_answer {
            true => 0,
            false => {
                let soon_ns = self.offered_at_ns + self.interval_ns;
                let is_used = self.is_used(soon_ns);
                if is_used {
                    soon_ns
                } else {
                    self.offered_at_ns + OFFER_NS
                }
            }
        }
    }

    /// Returns the next offer, which is sent at once: with this side's `address` and `alias`, and
    /// the bytes that its kernel has `sent`.
    pub fn offer(&mut self, address: Mac, alias: Mac, sent: u64, now_ns: u64) -> Offer {
        let (new_sent, new_received) = (
            sent.wrapping_sub(self.counts.sent),
            self.counts.received.wrapping_sub(self.received_before),
        );
        self.interval_ns = match new_sent >= new_received {
            true => OFFER_SENDER_NS,
            false => OFFER_RECEIVER_NS,
        };
        self.counts.sent = sent;
        self.received_before = self.counts.received;
        self.offered_at_ns = now_ns;
        self.has_news = false;
        Offer {
            is_answer: std::mem::take(&mut self.owes_answer),
            addresses: Addresses {
                address,
                alias,
                accepted: self.accepted,
            },
            counts: self.counts,
        }
    }
}
