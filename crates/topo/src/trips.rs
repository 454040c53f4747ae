//! Round trips of all pairs of hosts, put together from repeated probes.
//!
//! A queue only ever lengthens a probe. The two ways of a probe meet different queues, so the least
//! way there and the least way back of a batch of probes are added: on a path of `n` links, each of
//! which is busy for a share `b` of the time, a probe finds one way idle with `(1 − b)ⁿ` and both
//! ways with `(1 − b)²ⁿ` only. The difference between the two hosts' clocks cancels in the sum, if
//! their drift within a batch is small. Each pair keeps the least sum of any batch.

/// A round trip, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// Least way there and least way back, without the peer's time to answer.
    pub ns: u64,
    /// How far the peer's clock is ahead, if both ways take equally long.
    pub ahead_ns: i64,
}

impl Trip {
    /// Adds a way there, from this host's clock to the peer's, and a way back. Returns `None` if a
    /// clock was set between them, so that the sum is negative.
    pub fn from_ways(there_ns: i64, back_ns: i64) -> Option<Self> {
        let ns = u64::try_from(there_ns.checked_add(back_ns)?).ok()?;
        let ahead_ns = there_ns.checked_sub(back_ns)? / 2;
        Some(Self { ns, ahead_ns })
    }
}

/// Probes per pair in a batch. More of them find both ways idle more often; fewer leave less time
/// for clocks to drift: a batch lasts 2 s with 64 hosts, in which 10 ppm are 20 µs.
pub const BATCH_ROUNDS: u32 = 4;

/// Most probes per pair. Where each link is busy for 20 % of the time and a path has six, a probe
/// finds one way idle with 26 %, and a batch both ways with 49 %; six batches fail with 1.7 %, which
/// [`crate::infer`] withstands.
const ROUNDS_MAX: u32 = 24;

/// A round trip that a batch shortens by more than this share was disturbed before.
const DISTURBED_SHARE: f64 = 0.02;

/// Probing ends when a batch shortens at most this share of the round trips: [`crate::infer`] trusts
/// what most of them agree on.
const DISTURBED_PAIRS_MAX: f64 = 0.05;

/// The round trips of all pairs so far.
#[derive(Debug)]
pub struct Trips {
    hosts: usize,
    rounds_min: u32,
    rounds: u32,
    least: Vec<Option<Trip>>,
    shortened: usize,
}

impl Trips {
    /// No round trips yet; each pair of `hosts` is to be probed at least `rounds_min` times.
    pub fn new(hosts: usize, rounds_min: u32) -> Self {
        Self {
            hosts,
            rounds_min,
            rounds: 0,
            least: vec![None; hosts * hosts],
            shortened: 0,
        }
    }

    /// Notes what a batch found between two hosts.
    pub fn note(&mut self, from: usize, to: usize, trip: Trip) {
        let standing = &mut self.least[from * self.hosts + to];
        let before_ns = standing.map_or(f64::INFINITY, |standing| standing.ns as f64);
        let ns = trip.ns as f64;
        if ns < before_ns {
            *standing = Some(trip);
        }
        self.shortened += usize::from(ns < before_ns * (1.0 - DISTURBED_SHARE));
    }

    /// Ends a batch of [`BATCH_ROUNDS`] probes per pair. Returns whether the round trips stand, or
    /// were probed often enough.
    pub fn end_batch(&mut self) -> bool {
        self.rounds += BATCH_ROUNDS;
        let pairs = self.hosts * self.hosts.saturating_sub(1) / 2;
        let is_undisturbed = self.shortened as f64 <= DISTURBED_PAIRS_MAX * pairs as f64;
        self.shortened = 0;
        let has_enough = self.rounds >= self.rounds_min && is_undisturbed;
        has_enough || self.rounds >= ROUNDS_MAX.max(self.rounds_min)
    }

    /// Probes per pair so far.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    fn get(&self, from: usize, to: usize) -> Option<Trip> {
        self.least[from * self.hosts + to]
    }

    /// How far a host's clock is ahead of the first host's, in nanoseconds; 0 if they never met.
    pub fn ahead_ns(&self, host: usize) -> i64 {
        let there = self.get(0, host).map(|trip| trip.ahead_ns);
        let back = self.get(host, 0).map(|trip| -trip.ahead_ns);
        there.or(back).unwrap_or(0)
    }

    /// Round trips of all pairs in microseconds.
    ///
    /// # Errors
    /// Names the first pair of which no probe was answered.
    pub fn table_us(&self) -> Result<Vec<Vec<f64>>, (usize, usize)> {
        let us = |a, b| {
            let trip = self.get(a, b).or_else(|| self.get(b, a)).ok_or((a, b))?;
            Ok(trip.ns as f64 / 1e3)
        };
        let row = |a| {
            (0..self.hosts)
                .map(|b| if a == b { Ok(0.0) } else { us(a, b) })
                .collect()
        };
        (0..self.hosts).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trip__of_two_clocks__is_free_of_their_difference() {
        let trip = Trip::from_ways(5_000_150, -4_999_950);
        assert_eq!(
            trip,
            Some(Trip {
                ns: 200,
                ahead_ns: 5_000_050
            })
        );
        assert_eq!(Trip::from_ways(100, -101), None);
        assert_eq!(Trip::from_ways(i64::MAX, 1), None);
    }

    #[test]
    fn trips__that_a_batch_still_shortens__are_probed_on_to_a_limit() {
        let trip = |ns| Trip { ns, ahead_ns: -7 };
        let mut trips = Trips::new(2, 4);
        trips.note(1, 0, trip(1000));
        assert!(!trips.end_batch(), "the first batch shortens all");
        trips.note(1, 0, trip(900));
        assert!(!trips.end_batch());
        trips.note(1, 0, trip(899));
        assert!(trips.end_batch());
        assert_eq!(
            trips.table_us(),
            Ok(vec![vec![0.0, 0.899], vec![0.899, 0.0]])
        );
        assert_eq!((trips.ahead_ns(1), trips.rounds()), (7, 3 * BATCH_ROUNDS));
        let mut restless = Trips::new(2, 4);
        let ends = (1..).find(|batch| {
            restless.note(0, 1, trip(1_000_000 >> batch));
            restless.end_batch()
        });
        assert_eq!(ends, Some(ROUNDS_MAX / BATCH_ROUNDS));
        assert_eq!(Trips::new(3, 4).table_us(), Err((0, 1)));
    }
}
