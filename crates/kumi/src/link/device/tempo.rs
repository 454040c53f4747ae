//! When the loop sleeps, when it spins a little, and when it asks for priority.
//!
//! The loop stands where a NIC's interrupt would, and a frame that waits for the scheduler's next turn
//! waits milliseconds: the loop asks for short turns, and under load for more of them. With little to do,
//! what costs is falling asleep and being woken, twice an end for each message: as long as
//! datagrams follow each other quickly, the loop looks again instead of sleeping, as an ordinary
//! process. Between two looks it yields the processor, because the scheduler lets a process that has
//! just begun its turn finish it: a program woken on the same processor waited up to 200 us for the
//! loop that had woken it. Where something else keeps the processor after a yield, the loop sleeps
//! instead: a process that is woken comes before one that has yielded. Nothing is spun for when
//! nothing is expected soon.

use super::interface;
use nix::time::{ClockId, clock_gettime};

/// Share of a core spent on bulk above which the loop takes priority: what waits for the scheduler's
/// next turn then is megabytes.
const BULK_SHARE: f64 = 0.25;
/// The same for messages, which are better waited for awake as long as they leave time for it.
const MESSAGES_SHARE: f64 = 0.5;
/// The part of either at which the loop gives its priority back.
const HYSTERESIS: f64 = 0.6;
/// Bytes received at once, on average, that make bulk.
const BULK_BYTES: u64 = 8_000;
/// How often the share is taken.
const WINDOW_NS: u64 = 10_000_000;
/// The loop spins for what is expected within this time, and for as long where messages come: a
/// message's turn over gigabit NICs that hold interrupts back for 50 µs.
const EXPECTED_NS: u64 = 200_000;
/// In bulk it spins for this many times the usual pause.
const BULK_PATIENCE: u64 = 2;
/// A yield that takes longer went to another process.
const AWAY_NS: u64 = 5_000;
/// A yield that takes longer went to a process that computes, not to one that answers a message.
const CROWDED_NS: u64 = 200_000;
/// After such a yield the loop neither spins nor yields for this many times as long: for a second where the
/// other process kept the processor until the next tick (4 ms).
const CROWDED_FACTOR: u64 = 250;
/// Receives in a [`WINDOW_NS`] that make a flood of small things: then turns are spaced, as a NIC
/// spaces its interrupts, so that system calls take several at once.
const FLOOD: u64 = 600;
/// The space between the beginnings of two turns.
const SPACE_NS: u64 = 80_000;
/// The loop's turns: the shortest the scheduler has, so that it is woken at once. It works through what
/// has come in less.
const SLICE_NS: u64 = 100_000;
/// The loop's weight under load: 86 times an ordinary program's. Not a real-time priority: that
/// starves the kernel's own packet threads, and what they hold back for milliseconds arrives too late.
const LOADED_NICE: i32 = -20;

/// The loop's rhythm.
#[derive(Debug)]
pub struct Tempo {
    may_take_priority: bool,
    has_priority: bool,
    is_bulk: bool,
    is_flooded: bool,
    turn_began_ns: u64,
    /// Usual pause between things to do, smoothed: the longest of the latest would count this loop's
    /// own sleep.
    pause_ns: u64,
    active_at_ns: u64,
    window_began_ns: u64,
    cpu_began_ns: u64,
    spun_ns: u64,
    /// Time of the spinning in which other processes had the processor.
    away_ns: u64,
    crowded_until_ns: u64,
    received: u64,
    received_bytes: u64,
}

fn thread_cpu_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

impl Tempo {
    /// A loop without priority. `may_take_priority`: whether it may ever have it.
    pub fn new(may_take_priority: bool) -> Self {
        kumi_sys::punctual::forgo_timer_slack();
        // Short turns need no privilege; a kernel that refuses the call has long ones.
        let _ = kumi_sys::punctual::become_brisk(0, SLICE_NS);
        Self {
            may_take_priority,
            has_priority: false,
            is_bulk: false,
            is_flooded: false,
            turn_began_ns: 0,
            pause_ns: u64::MAX / 4,
            active_at_ns: 0,
            window_began_ns: 0,
            cpu_began_ns: thread_cpu_ns(),
            spun_ns: 0,
            away_ns: 0,
            crowded_until_ns: 0,
            received: 0,
            received_bytes: 0,
        }
    }

    /// A turn begins: how long to let things gather first.
    pub fn space_ns(&mut self, now_ns: u64) -> u64 {
        let next_ns = self.turn_began_ns + SPACE_NS;
        let space_ns = if self.is_flooded {
            next_ns.saturating_sub(now_ns)
        } else {
            0
        };
        self.turn_began_ns = now_ns + space_ns;
        space_ns
    }

    /// How long to look for more before sleeping, from `now_ns`.
    pub fn spin_ns(&self, now_ns: u64) -> u64 {
        let is_crowded = !self.is_bulk && now_ns < self.crowded_until_ns;
        if self.has_priority || self.pause_ns > EXPECTED_NS || is_crowded {
            return 0;
        }
        let patience_ns = if self.is_bulk {
            self.pause_ns * BULK_PATIENCE
        } else {
            EXPECTED_NS
        };
        (self.active_at_ns + patience_ns).saturating_sub(now_ns)
    }

    /// Whether to yield between two looks. In bulk, what waits meanwhile would be too much.
    pub fn yields(&self) -> bool {
        !self.is_bulk
    }

    /// A yield between two looks ended at `now_ns` and took `away_ns`. Returns whether to go on
    /// spinning.
    pub fn note_yielded(&mut self, now_ns: u64, away_ns: u64) -> bool {
        if away_ns > AWAY_NS {
            self.away_ns += away_ns;
        }
        let is_crowded = away_ns > CROWDED_NS;
        if is_crowded {
            self.crowded_until_ns = now_ns + away_ns * CROWDED_FACTOR;
        }
        !is_crowded
    }

    /// The loop looked in vain for so long.
    pub fn note_spun(&mut self, spun_ns: u64) {
        self.spun_ns += spun_ns;
    }

    /// So much came at once, from the host or from a link.
    pub fn note_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    /// There was something to do.
    pub fn note_activity(&mut self, now_ns: u64) {
        let pause_ns = now_ns
            .saturating_sub(self.active_at_ns)
            .min(10 * EXPECTED_NS);
        self.active_at_ns = now_ns;
        self.pause_ns = self.pause_ns.min(10 * EXPECTED_NS);
        self.pause_ns = self.pause_ns - self.pause_ns / 8 + pause_ns / 8;
    }

    /// Takes or gives back priority, as the work of the last window suggests.
    pub fn adapt(&mut self, now_ns: u64, device: &str) {
        let window_ns = now_ns.saturating_sub(self.window_began_ns);
        if window_ns < WINDOW_NS {
            return;
        }
        let cpu_ns = thread_cpu_ns();
        let worked_ns = cpu_ns
            .saturating_sub(self.cpu_began_ns)
            .saturating_sub(self.spun_ns.saturating_sub(self.away_ns));
        let share = worked_ns as f64 / window_ns as f64;
        (self.window_began_ns, self.cpu_began_ns) = (now_ns, cpu_ns);
        (self.spun_ns, self.away_ns) = (0, 0);
        self.is_bulk = self.received_bytes > BULK_BYTES * self.received;
        let per_window = self.received * WINDOW_NS / window_ns;
        self.is_flooded = per_window > if self.is_flooded { FLOOD / 4 } else { FLOOD };
        (self.received, self.received_bytes) = (0, 0);
        let loaded = if self.is_bulk {
            BULK_SHARE
        } else {
            MESSAGES_SHARE
        };
        let wants = share > loaded * if self.has_priority { HYSTERESIS } else { 1.0 };
        if !self.may_take_priority || wants == self.has_priority {
            return;
        }
        let outcome = if wants {
            kumi_sys::punctual::become_brisk(LOADED_NICE, SLICE_NS)
        } else {
            kumi_sys::punctual::become_brisk(0, SLICE_NS)
        };
        match outcome {
            Ok(()) => self.has_priority = wants,
            Err(error) => {
                self.may_take_priority = false;
                let what = "expect longer round trips under load; give CAP_SYS_NICE";
                interface::log(device, &format!("no priority ({error}): {what}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tempo__quick_messages__are_waited_for_awake_and_slow_ones_asleep() {
        let mut tempo = Tempo::new(false);
        for message in 0..100 {
            tempo.note_activity(message * 40_000);
        }
        assert_eq!(tempo.spin_ns(99 * 40_000 + 50_000), EXPECTED_NS - 50_000);
        assert_eq!(tempo.spin_ns(200 * 40_000), 0, "the messages have ended");
        for message in 0..100 {
            tempo.note_activity(10_000_000 + message * 1_000_000);
        }
        assert_eq!(tempo.spin_ns(109_000_000), 0);
    }
    #[test]
    fn tempo__processor_that_others_keep__is_waited_for_asleep_for_a_while() {
        let mut tempo = Tempo::new(false);
        for message in 0..100 {
            tempo.note_activity(message * 40_000);
        }
        let now_ns = 99 * 40_000;
        assert!(tempo.note_yielded(now_ns, 300) && tempo.note_yielded(now_ns, 30_000));
        assert!(tempo.spin_ns(now_ns) > 0, "a program that answers has run");
        assert!(!tempo.note_yielded(now_ns, 4_000_000));
        for (after_ns, spins) in [(0, false), (999_000_000, false), (1_001_000_000, true)] {
            tempo.active_at_ns = now_ns + after_ns;
            assert_eq!(
                tempo.spin_ns(now_ns + after_ns) > 0,
                spins,
                "after {after_ns} ns"
            );
        }
    }

    #[test]
    fn tempo__bulk__is_waited_for_without_yielding_and_not_for_long() {
        let mut tempo = Tempo::new(false);
        for burst in 1..=1000 {
            tempo.note_activity(burst * 20_000);
            tempo.note_received(60_000);
        }
        let now_ns = 1000 * 20_000;
        assert!(tempo.yields(), "nothing is known yet");
        tempo.adapt(now_ns, "test");
        assert!(!tempo.yields());
        assert!(tempo.spin_ns(now_ns) < 50_000, "{}", tempo.spin_ns(now_ns));
    }
}
