//! A round trip of a connection, and the arrivals from which its rate is taken.

use crate::control::{Acknowledgement, RateSample};
use crate::known::{SECOND_US, packets_of};

/// Fewest packets that show a rate, and the most that leave at once on an unknown path.
pub const TRAIN: u64 = 16;

/// The kernel sends this part of a second of the pacing rate at once (`sk_pacing_shift`).
pub const CLUMPS_PS: u64 = 1024;

/// Returns the least time of a train where the highest of many rates counts: half of a round trip
/// or 4/1024 s, and at least an eighth of a round trip.
pub fn train_least_us(rtt_min_us: u64) -> u64 {
    (rtt_min_us / 8).max((rtt_min_us / 2).min(4_000_000 / 1024))
}

/// The first acknowledgement of a round, from which arrivals are timed.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    pub at_us: u64,
    pub sent_us: u64,
    pub delivered: u64,
    /// The acknowledgement before the current one, and the longest time between two.
    pub last_us: u64,
    pub gap_us: u64,
}

/// A round trip.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// It ends when a packet is acknowledged that left after this many had been delivered.
    pub until: u64,
    pub lost: u64,
    pub best_pps: u64,
    pub train_pps: u64,
    /// Time in which its packets arrived.
    pub train_us: u64,
    /// The longest time between two acknowledgements of the train.
    pub gap_us: u64,
    pub is_stretched: bool,
    pub rtt_us: Option<u64>,
    /// Most packets in flight.
    pub flying: u64,
}

impl Round {
    /// Returns whether an acknowledgement ends the round. A rate that is held can only change if a
    /// train shows one, so the round waits for a train, and at most for the packets of two: the
    /// first acknowledgement may cover many, and only those after it count.
    pub fn is_over(&self, a: &Acknowledgement, is_held: bool) -> bool {
        let is_after = |rate: &RateSample| rate.delivered_before >= self.until;
        let is_long = self.train_us > 0 || a.delivered >= self.until + 2 * TRAIN;
        a.rate.as_ref().is_some_and(is_after) && (!is_held || is_long)
    }

    /// Returns whether less than 15/16 of `pps` arrived, not counting the longest time between two
    /// acknowledgements, which shows the host and not the path.
    pub fn has_less(&self, pps: u64) -> bool {
        let steady_us = self.train_us.saturating_sub(self.gap_us);
        self.train_pps * self.train_us < steady_us * (pps - pps / 16)
    }

    /// Returns whether the host stood still: for longer than two clumps, and than a train at `pps`.
    /// With losses, a longer time than a quarter of a round trip may be that of a repair.
    pub fn has_paused(&self, pps: u64, rtt_min_us: u64) -> bool {
        (self.lost == 0 || self.gap_us < rtt_min_us / 4)
            && self.gap_us > 2 * SECOND_US / CLUMPS_PS
            && packets_of(pps, self.gap_us) > TRAIN
    }
}
