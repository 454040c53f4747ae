//! The receiver's credit: the bytes that all peers together may send without a further grant.
//!
//! ```text
//!   A peer may have sent  g = F + s     F  first grant, which needs no request
//!                                       s  scheduled credit
//!   Σ s ≤ B                             B  budget: the receiver's buffer, or its port's
//!
//!   s of one peer ≤ max(B / n, U)       n  peers that want more, U  one datagram
//!   s of one peer ≤ what it wants       announced by the peer
//!   s of one peer ≤ max(F / 8, 2 U, 32 a)  a  bytes that arrived from it in a round trip
//! ```
//!
//! Memory that messages occupy until the program takes them counts as credit in use, so a program
//! that does not read stops its senders.

use crate::protocol::pressure::SENDERS_MIN;

/// The credit of all peers.
#[derive(Debug)]
pub struct Budget {
    /// First grant of each peer, in bytes.
    pub first_bytes: u64,
    budget_bytes: u64,
    least_bytes: u64,
    scheduled_bytes: u64,
    /// Share of both that the senders may have (`pressure.rs`).
    pub factor: f64,
    /// Peers that have sent in the last two intervals of the losses.
    pub senders: usize,
}

/// The state of one peer, in bytes since the session began.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Granted in all.
    pub granted: u64,
    /// Used in all.
    pub used: u64,
    /// Used, and not yet taken by the program.
    pub held: u64,
    /// Wanted in all, as the peer announced it.
    pub wanted: u64,
    /// Most bytes that arrived in one of the last round trips.
    pub per_round: u64,
}

/// Bytes that arrive from a peer in a round trip. 32 times as many are credit for a queue and
/// for lost packets, and little enough when others begin to send: a grant is not taken back.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rounds {
    began_ns: u64,
    used_before: u64,
    last: u64,
    bytes: u64,
}

impl Rounds {
    /// Takes the credit that the peer has used in all.
    pub fn note(&mut self, used: u64, rtt_ns: u64, now_ns: u64) {
        self.bytes = used - self.used_before;
        if now_ns.saturating_sub(self.began_ns) >= rtt_ns {
            *self = Self {
                began_ns: now_ns,
                used_before: used,
                last: self.bytes,
                bytes: 0,
            };
        }
    }

    /// Returns the most bytes that arrived in one of the last round trips.
    pub fn most(&self) -> u64 {
        self.bytes.max(self.last)
    }
}

impl Demand {
    /// Returns the scheduled credit that the peer has.
    fn scheduled(&self, first_bytes: u64) -> u64 {
        (self.granted + self.held).saturating_sub(self.used + first_bytes)
    }
}

impl Budget {
    /// Creates a budget of `budget_bytes`, with datagrams of `datagram_bytes`.
    pub fn new(budget_bytes: u64, first_bytes: u64, datagram_bytes: u16) -> Self {
        Self {
            first_bytes,
            // With less than a datagram, nobody could send one.
            budget_bytes: budget_bytes.max(u64::from(datagram_bytes)),
            least_bytes: u64::from(datagram_bytes),
            scheduled_bytes: 0,
            factor: 1.0,
            senders: 0,
        }
    }

    fn reduced(&self, bytes: u64, wanting: usize) -> u64 {
        if wanting.max(self.senders) < SENDERS_MIN as usize {
            return bytes;
        }
        (bytes as f64 * self.factor) as u64
    }

    /// Returns the grant that a peer may have. `before` is its recorded demand, `wanting` the
    /// number of peers that want more than they were granted.
    pub fn offer(&self, before: Demand, now: Demand, wanting: usize) -> u64 {
        let others = self.scheduled_bytes - before.scheduled(self.first_bytes);
        let budget_bytes = self
            .reduced(self.budget_bytes, wanting)
            .max(self.least_bytes);
        let free = budget_bytes.saturating_sub(others);
        let share = (budget_bytes / wanting.max(1) as u64).max(self.least_bytes);
        let first = self
            .first_bytes
            .min(self.budget_bytes / wanting.max(self.senders).max(1) as u64);
        let base = now.used - now.held.min(now.used) + self.reduced(first, wanting);
        // Up to one first grant beyond the demand, so that the next short message needs no request.
        let wanted = now.wanted.max(now.used) + self.first_bytes;
        let useful = (self.first_bytes / 8)
            .max(2 * self.least_bytes)
            .max(32 * now.per_round);
        let scheduled = share.min(free).min(useful);
        (base + scheduled).min(wanted).max(now.granted)
    }

    /// Replaces the recorded demand `before` of a peer by `now`.
    pub fn record(&mut self, before: Demand, now: Demand) {
        self.scheduled_bytes -= before.scheduled(self.first_bytes);
        self.scheduled_bytes += now.scheduled(self.first_bytes);
    }

    /// Returns whether credit is free.
    pub fn has_free(&self) -> bool {
        self.scheduled_bytes < self.budget_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST: u64 = 1_000;
    const BUDGET: u64 = 10_000;
    const DATAGRAM: u16 = 100;

    fn idle() -> Demand {
        Demand {
            granted: FIRST,
            used: 0,
            held: 0,
            wanted: 0,
            per_round: BUDGET,
        }
    }

    /// Offers and records.
    fn grant(budget: &mut Budget, before: Demand, now: Demand, wanting: usize) -> u64 {
        let granted = budget.offer(before, now, wanting);
        budget.record(before, Demand { granted, ..now });
        granted
    }

    #[test]
    fn grant__one_peer_wants_much__gets_the_whole_budget_and_no_more() {
        let mut budget = Budget::new(BUDGET, FIRST, DATAGRAM);
        let demand = Demand {
            wanted: 1 << 40,
            ..idle()
        };
        assert_eq!(grant(&mut budget, idle(), demand, 1), FIRST + BUDGET);
        assert_eq!(budget.scheduled_bytes, BUDGET);
        let other = Demand {
            wanted: 1 << 40,
            ..idle()
        };
        assert_eq!(
            grant(&mut budget, idle(), other, 2),
            FIRST,
            "nothing is left"
        );
    }

    #[test]
    fn grant__program_does_not_read__stops_the_sender() {
        let mut budget = Budget::new(BUDGET, FIRST, DATAGRAM);
        let wanted = 1 << 40;
        let granted = grant(&mut budget, idle(), Demand { wanted, ..idle() }, 1);
        let before = Demand {
            granted,
            wanted,
            ..idle()
        };
        let full = Demand {
            used: granted,
            held: granted,
            ..before
        };
        assert_eq!(grant(&mut budget, before, full, 1), granted);
        let read = Demand { held: 0, ..full };
        assert_eq!(grant(&mut budget, full, read, 1), 2 * granted);
    }

    proptest! {
        #[test]
        fn grants__any_demands__stay_within_the_budget_and_never_shrink(
            steps in proptest::collection::vec((0_usize..5, 0_u64..4_000, 0_u64..3_000, 0_u64..3_000), 1..200)
        ) {
            let mut budget = Budget::new(BUDGET, FIRST, DATAGRAM);
            let mut peers = vec![idle(); 5];
            for (peer, wants, sends, reads) in steps {
                let before = peers[peer];
                let sends = sends.min(before.granted - before.used);
                let mut now = before;
                now.wanted += wants;
                now.used += sends;
                now.held = (now.held + sends).saturating_sub(reads);
                let wanting = peers.iter().filter(|peer| peer.wanted > peer.granted).count();
                let granted = grant(&mut budget, before, now, wanting.max(1));
                prop_assert!(granted >= before.granted);
                peers[peer] = Demand { granted, ..now };
                // Bytes that may still come, and those that wait for the program.
                let exposed: u64 = peers
                    .iter()
                    .map(|peer| (peer.granted - peer.used + peer.held).saturating_sub(FIRST))
                    .sum();
                prop_assert!(exposed <= BUDGET, "{} {:?}", exposed, peers);
                prop_assert_eq!(exposed, budget.scheduled_bytes);
            }
        }
    }
}
