//! A link towards one peer: its destination and state.

use core::net::SocketAddr;

use crate::bottleneck::Bottleneck;
use crate::direct::Direct;
use crate::ledger::Ledger;
use crate::liveness::{Liveness, State};
use crate::loss::LossMeter;
use crate::partner::{Partners, is_same_socket};
use crate::pmtu::PathMtu;
use crate::rtt::Rtt;

/// Time for which a partner that does not answer is tried, in ns: three pings of a path that is
/// down.
const TRY_NS: u64 = 150_000_000;

/// Counters of one path, for `kumi link show`.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathCounters {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Bytes of the datagrams sent, with IP and UDP headers.
    pub tx_bytes: u64,
    /// Datagrams accepted.
    pub rx_packets: u64,
    /// Bytes of the datagrams accepted.
    pub rx_bytes: u64,
    /// Datagrams that the peer reported as missing.
    pub lost: u64,
    /// Units sent again on this path.
    pub repaired: u64,
    /// Copies of units that had arrived before.
    pub duplicate: u64,
    /// Units that arrived after they had been given up.
    pub late: u64,
    /// Changes from up to another state.
    pub failures: u64,
}

/// A link towards one peer.
#[derive(Debug, Default)]
pub struct Path {
    /// The peer's links that were heard on this link.
    pub partners: Partners,
    /// Address that the path sends to.
    pub destination: Option<SocketAddr>,
    /// Time since which it sends there.
    destination_since_ns: u64,
    /// Time at which a report last confirmed the delivery of a datagram that asks for a report.
    pub answered_at_ns: u64,
    /// Length of its datagrams.
    pub mtu: PathMtu,
    /// Datagrams without a report.
    pub ledger: Ledger,
    /// Round-trip times of the path.
    pub rtt: Rtt,
    /// State machine of the path.
    pub liveness: Liveness,
    /// Offers of both sides for frames that the kernel carries.
    pub direct: Direct,
    /// Share of packets lost.
    pub loss: LossMeter,
    /// Limit by a bottleneck behind the local link.
    pub bottleneck: Bottleneck,
    /// True if an event has announced that the path loses packets, and no later one has withdrawn
    /// it.
    pub is_lossy: bool,
    /// Time at which the last datagram was sent that the peer reports.
    pub eliciting_at_ns: u64,
    /// Time at which the last ping was sent.
    pub pinged_at_ns: u64,
    /// Time at which the newest acknowledged datagram was sent.
    pub newest_acked_sent_ns: u64,
    /// Traffic and losses, for `kumi link show`.
    pub counters: PathCounters,
}

impl Path {
    /// Returns whether the path may carry data.
    pub fn is_usable(&self) -> bool {
        self.destination.is_some() && self.liveness.state() == State::Up
    }

    /// Returns whether the path is in use or was a moment ago. Its partner is not changed in that
    /// state.
    pub fn is_settled(&self) -> bool {
        matches!(self.liveness.state(), State::Up | State::Suspect)
    }

    /// Records that an authentic datagram from the peer's link `remote` came from `address` on this
    /// link. Returns whether that is new.
    pub fn note_heard(&mut self, remote: u8, address: SocketAddr, now_ns: u64) -> bool {
        let in_use = self
            .destination
            .filter(|_| self.liveness.state() == State::Up);
        self.partners.note_heard(remote, address, in_use, now_ns)
    }

    /// Chooses the destination unless the path works; see [`Partners::choose`].
    pub fn choose(&mut self, now_ns: u64, own: u8, rank: usize, taken: &[SocketAddr]) {
        let answered_ns = self.answered_at_ns;
        let answers = answered_ns > self.destination_since_ns && now_ns < answered_ns + TRY_NS;
        if (self.is_settled() || answers) && self.destination.is_some() {
            return;
        }
        if let Some(address) = self.partners.choose(now_ns, own, rank, taken) {
            self.move_to(address, now_ns);
        }
    }

    /// Sends to `address` from now on. The measurements of the way to another partner are
    /// discarded.
    pub fn move_to(&mut self, address: SocketAddr, now_ns: u64) {
        if self.destination == Some(address) {
            return;
        }
        self.destination = Some(address);
        self.destination_since_ns = now_ns;
        self.pinged_at_ns = 0;
        self.direct = Direct::default();
        self.mtu.doubt(true);
        self.rtt = Rtt::default();
        self.loss = LossMeter::default();
        self.bottleneck = Bottleneck::default();
    }

    /// Returns whether the partner has been tried long enough without an answer.
    pub fn is_unanswered(&self, now_ns: u64) -> bool {
        let try_ns = TRY_NS.max(3 * self.rtt.min_ns());
        let start_ns = self.destination_since_ns.max(self.answered_at_ns);
        !self.is_settled() && now_ns >= start_ns + try_ns
    }

    /// Leaves a partner that does not answer for another one, if there is another.
    pub fn retry(&mut self, now_ns: u64, own: u8, rank: usize, taken: &[SocketAddr]) {
        let Some(failed) = self.destination else {
            return;
        };
        self.partners.note_failed(failed, now_ns);
        self.destination_since_ns = now_ns;
        self.choose(now_ns, own, rank, taken);
    }

    /// Handles a sealed datagram from `address`, which is not the path's destination. A path that
    /// is down moves there unless that partner failed lately, because that link of the peer works.
    /// A path that is up moves only if it shares its partner with another path. Neither moves to
    /// the partner of another path.
    pub fn note_sealed_from(&mut self, address: SocketAddr, now_ns: u64, taken: &[SocketAddr]) {
        let is_taken = |place: SocketAddr| taken.iter().any(|t| is_same_socket(*t, place));
        let moves = match self.liveness.state() {
            State::Down => !self.partners.has_failed_lately(address, now_ns),
            State::Up => self.destination.is_some_and(is_taken),
            State::New | State::Suspect | State::Quarantined => false,
        };
        if moves && !is_taken(address) {
            self.move_to(address, now_ns);
        }
    }

    /// Forgets the destination when the local link is removed. Returns the units that were open.
    pub fn clear(&mut self) -> Vec<crate::retain::UnitRef> {
        let units = self.ledger.abandon();
        let ledger = std::mem::take(&mut self.ledger);
        *self = Self {
            ledger,
            ..Self::default()
        };
        units
    }
}
