//! Length of the bursts that the kernel hands to the device.
//!
//! A burst goes to one link as a whole, so its length is the grain of the striping. A short one
//! costs processor time, and re-orders more often. A long one on a slow link is overtaken by those
//! on the others for longer, and the slow link is used less. Half a millisecond of the slowest path
//! gave the most on two links of 1 Gb/s, and on 400 and 100 Mb/s (`docs/perf-log.md`, 2026-11-28).
//!
//! A message of a few bursts of that length would use one link at a time. So while there are only
//! messages, bursts are shorter, but at least half of a message of 16 KB: a message of 4 KB that
//! is cut takes longer on a fast link. Long streams would have less goodput with short bursts: over
//! eight links the processors are busy, and over unlike ones more is re-ordered (2026-12-01).

use super::error::DatapathError;
use kumi_sys::netlink::{link, route};

/// Time that a burst of a long stream takes on the slowest path, in seconds.
const LONG_S: f64 = 0.5e-3;
/// Time that a burst of a message takes on the slowest path, in seconds: half of 16 KB at 1 Gb/s.
const MESSAGE_S: f64 = 75e-6;
/// Least burst of a message, in segments, unless a long stream's burst is shorter.
const MESSAGE_SEGMENTS: u32 = 6;
/// Bytes of a full segment on the wire besides the MTU.
const SEGMENT_BYTES: u32 = 38;
/// Shortest and longest burst, in segments. The longest one has 64 KB.
const SEGMENTS: std::ops::RangeInclusive<u32> = 2..=44;
/// Least time between two changes, in ns.
const CHANGE_NS: u64 = 1_000_000_000;

/// Length of the bursts.
#[derive(Debug)]
pub struct Chunk {
    segment_bits: f64,
    /// Most segments of a burst, as set; 0 before.
    segments: u32,
    changed_at_ns: u64,
    /// Basis of the present length.
    basis: Basis,
}

/// Basis of the length of the bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The rate of at least one path is a guess.
    Guess,
    /// All rates are measured.
    Measurement,
    /// No rate: the daemon carries all long streams, and cuts bursts itself.
    Daemon,
    /// There are no long streams. The rates are measured, or guesses.
    Messages,
}

impl Chunk {
    /// Returns the chunk of a device with this MTU in bytes. No length is set yet.
    pub fn new(mtu: u32) -> Self {
        Self {
            segment_bits: f64::from(mtu + SEGMENT_BYTES) * 8.0,
            segments: 0,
            changed_at_ns: 0,
            basis: Basis::Guess,
        }
    }

    /// Sets the length of the bursts of the device at the interface `index` by the rate of the
    /// slowest path in bit/s. A new basis changes it at once.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn follow(
        &mut self,
        index: u32,
        (rate_bps, basis): (f64, Basis),
        now_ns: u64,
    ) -> Result<(), DatapathError> {
        let Some(segments) = self.next((rate_bps, basis), now_ns) else {
            return Ok(());
        };
        link::set_gso_max_segments(index, segments)
            // Connections learn it when they look up their route again. Those of IPv6 keep theirs.
            .and_then(|()| route::renew_cached())
            .map_err(DatapathError::Bursts)
    }

    /// Returns the segments of a burst if they change.
    fn next(&mut self, (rate_bps, basis): (f64, Basis), now_ns: u64) -> Option<u32> {
        let before = std::mem::replace(&mut self.basis, basis);
        if before != basis {
            self.changed_at_ns = 0;
        }
        let has_other_kind = (before == Basis::Messages) != (basis == Basis::Messages);
        let of_time = |burst_s: f64| {
            let segments = (rate_bps * burst_s / self.segment_bits) as u32;
            segments.clamp(*SEGMENTS.start(), *SEGMENTS.end())
        };
        let wanted = match basis {
            Basis::Messages => of_time(LONG_S).min(of_time(MESSAGE_S).max(MESSAGE_SEGMENTS)),
            _ => of_time(LONG_S),
        };
        let is_late = self.changed_at_ns != 0 && now_ns < self.changed_at_ns + CHANGE_NS;
        // A quarter more or less is not worth a change, unless long streams begin or end.
        let is_small = wanted.abs_diff(self.segments) * 4 <= self.segments && !has_other_kind;
        if is_late || is_small || wanted == self.segments {
            return None;
        }
        (self.segments, self.changed_at_ns) = (wanted, now_ns);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Returns the basis of a rate that was measured.
    fn measured(rate_bps: f64) -> (f64, Basis) {
        (rate_bps, Basis::Measurement)
    }

    #[test]
    fn chunk__slower_path__has_shorter_bursts() {
        let mut chunk = Chunk::new(1500);
        assert_eq!(chunk.next(measured(10e9), S), Some(44));
        assert_eq!(chunk.next(measured(0.95e9), 3 * S), None, "almost the same");
        assert_eq!(chunk.next(measured(100e6), 5 * S), Some(4));
        assert_eq!(chunk.next(measured(1e3), 7 * S), Some(2));
    }

    #[test]
    fn chunk__rates_that_vary__change_it_once_a_second() {
        let mut chunk = Chunk::new(1500);
        assert_eq!(chunk.next(measured(10e9), S), Some(44));
        assert_eq!(chunk.next(measured(1e8), S + 1), None);
        assert_eq!(chunk.next(measured(1e8), 2 * S + 1), Some(4));
    }

    #[test]
    fn chunk__daemon_that_takes_the_long_streams__changes_it_at_once() {
        let mut chunk = Chunk::new(1500);
        assert_eq!(chunk.next((10e9, Basis::Guess), S), Some(44));
        assert_eq!(chunk.next(measured(1e8), S + 1), Some(4));
        assert_eq!(chunk.next((f64::INFINITY, Basis::Daemon), S + 2), Some(44));
        assert_eq!(chunk.next((f64::INFINITY, Basis::Daemon), S + 3), None);
    }

    #[test]
    fn chunk__messages_only__has_short_bursts_at_once() {
        let mut chunk = Chunk::new(1500);
        assert_eq!(chunk.next(measured(1e9), S), Some(40));
        assert_eq!(chunk.next((1e9, Basis::Messages), S + 1), Some(6));
        assert_eq!(chunk.next((1e9, Basis::Messages), 3 * S), None);
        assert_eq!(chunk.next(measured(1e9), 3 * S + 1), Some(40));
        assert_eq!(chunk.next((10e9, Basis::Messages), 5 * S), Some(44));
        assert_eq!(chunk.next(measured(2e8), 6 * S), Some(8));
        assert_eq!(chunk.next((2e8, Basis::Messages), 7 * S), Some(6));
        assert_eq!(chunk.next((1e8, Basis::Messages), 9 * S), Some(4));
    }
}
