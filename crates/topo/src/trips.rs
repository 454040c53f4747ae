//! Round-trip times of all pairs of hosts, from repeated probes.
//!
//! Queues only lengthen a probe. The two directions of a probe meet different queues, so the
//! shortest time of each direction within a batch is taken, and the two are added. On a path of `n`
//! links, each busy for a share `b` of the time, a probe finds one direction idle with probability
//! (1 − b)ⁿ, and both with only (1 − b)²ⁿ. The offset of the hosts' clocks cancels in the sum, if
//! their drift within a batch is small. Each pair keeps the lowest sum of all batches.

/// A round-trip time, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// Shortest time of each direction, added, without the peer's response time.
    pub ns: u64,
    /// Offset of the peer's clock, if both directions take the same time.
    pub ahead_ns: i64,
}

impl Trip {
    /// Adds the times of both directions: from this host's clock to the peer's, and back. Returns
    /// `None` if the sum is negative, because a clock was set in between.
    pub fn from_ways(forward_ns: i64, backward_ns: i64) -> Option<Self> {
        let ns = u64::try_from(forward_ns.checked_add(backward_ns)?).ok()?;
        let ahead_ns = forward_ns.checked_sub(backward_ns)? / 2;
        Some(Self { ns, ahead_ns })
    }
}

/// Probes per pair in a batch. More probes find both directions idle more often. Fewer leave less
/// time for clock drift: with 64 hosts a batch lasts 2 s, in which 10 ppm make 20 µs.
pub const BATCH_ROUNDS: u32 = 4;

/// Most probes per pair. Assume links that are 20 % busy and paths of six links. A probe then finds
/// one direction idle with 26 %, and a batch finds both with 49 %. Six batches fail with 1.7 %,
/// which [`crate::infer`] tolerates.
const ROUNDS_MAX: u32 = 24;

/// A batch that shortens a round trip by more than this share shows that it was disturbed before.
const DISTURBED_SHARE: f64 = 0.02;

/// Probing ends when a batch shortens at most this share of the round trips. [`crate::infer`]
/// relies on agreement of most pairs.
const DISTURBED_PAIRS_MAX: f64 = 0.05;

/// The round trips of all pairs measured so far.
#[derive(Debug)]
pub struct Trips {
    hosts: usize,
    rounds_min: u32,
    rounds: u32,
    least: Vec<Option<Trip>>,
    shortened: usize,
}

impl Trips {
    /// Creates an empty table for `hosts`, each pair of which is probed at least `rounds_min`
    /// times.
    pub fn new(hosts: usize, rounds_min: u32) -> Self {
        Self {
            hosts,
            rounds_min,
            rounds: 0,
            least: vec![None; hosts * hosts],
            shortened: 0,
        }
    }

    /// Records the result of a batch for two hosts.
    pub fn note(&mut self, from: usize, to: usize, trip: Trip) {
        let current = &mut self.least[from * self.hosts + to];
        let before_ns = current.map_or(f64::INFINITY, |current| current.ns as f64);
        let ns = trip.ns as f64;
        if ns < before_ns {
            *current = Some(trip);
        }
        self.shortened += usize::from(ns < before_ns * (1.0 - DISTURBED_SHARE));
    }

    /// Ends a batch of [`BATCH_ROUNDS`] probes per pair. Returns whether the round trips are
    /// stable, or the limit of probes is reached.
    pub fn end_batch(&mut self) -> bool {
        self.rounds += BATCH_ROUNDS;
        let pairs = self.hosts * self.hosts.saturating_sub(1) / 2;
        let is_undisturbed = self.shortened as f64 <= DISTURBED_PAIRS_MAX * pairs as f64;
        self.shortened = 0;
        let has_enough = self.rounds >= self.rounds_min && is_undisturbed;
        has_enough || self.rounds >= ROUNDS_MAX.max(self.rounds_min)
    }

    /// Returns the number of probes per pair so far.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    fn get(&self, from: usize, to: usize) -> Option<Trip> {
        self.least[from * self.hosts + to]
    }

    /// Returns the offset of a host's clock from the first host's, in nanoseconds; 0 without a
    /// probe between them.
    pub fn ahead_ns(&self, host: usize) -> i64 {
        let forward = self.get(0, host).map(|trip| trip.ahead_ns);
        let backward = self.get(host, 0).map(|trip| -trip.ahead_ns);
        forward.or(backward).unwrap_or(0)
    }

    /// Returns the round trips of all pairs in microseconds.
    ///
    /// # Errors
    /// Names the first pair without an answered probe.
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
    fn trip__two_unsynchronized_clocks__cancels_their_offset() {
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
    fn trips__minimum_still_falling__are_probed_further_up_to_a_limit() {
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
