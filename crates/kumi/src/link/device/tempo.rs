//! When the loop sleeps, when it spins a little, and when it asks for priority.
//!
//! The loop stands where a NIC's interrupt would, and a frame that waits for the scheduler's next turn
//! waits milliseconds: the loop asks for short turns, and under load for more of them. With little to do,
//! what costs is falling asleep and being woken, twice an end for each message: as long as
//! datagrams follow each other quickly, the loop looks again instead of sleeping, as an ordinary
//! process, so that it never stands in the way of the program it works for. Nothing is spun for
//! when nothing is expected soon.

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
/// The loop spins for what is expected within this time: a message's turn over gigabit NICs that
/// hold interrupts back for 50 µs.
const EXPECTED_NS: u64 = 200_000;
/// It spins for this many times the usual pause.
const PATIENCE: u64 = 2;
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
    is_flooded: bool,
    turn_began_ns: u64,
    /// Usual pause between things to do, smoothed: the longest of the latest would count this loop's
    /// own sleep.
    pause_ns: u64,
    active_at_ns: u64,
    window_began_ns: u64,
    cpu_began_ns: u64,
    spun_ns: u64,
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
            is_flooded: false,
            turn_began_ns: 0,
            pause_ns: u64::MAX / 4,
            active_at_ns: 0,
            window_began_ns: 0,
            cpu_began_ns: thread_cpu_ns(),
            spun_ns: 0,
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
        if self.has_priority || self.pause_ns > EXPECTED_NS {
            return 0;
        }
        let until_ns = self.active_at_ns + self.pause_ns * PATIENCE;
        until_ns.saturating_sub(now_ns)
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
            .saturating_sub(self.spun_ns);
        let share = worked_ns as f64 / window_ns as f64;
        (self.window_began_ns, self.cpu_began_ns, self.spun_ns) = (now_ns, cpu_ns, 0);
        let is_bulk = self.received_bytes > BULK_BYTES * self.received;
        let per_window = self.received * WINDOW_NS / window_ns;
        self.is_flooded = per_window > if self.is_flooded { FLOOD / 4 } else { FLOOD };
        (self.received, self.received_bytes) = (0, 0);
        let loaded = if is_bulk { BULK_SHARE } else { MESSAGES_SHARE };
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
        assert!((40_000..200_000).contains(&tempo.spin_ns(99 * 40_000)));
        assert_eq!(tempo.spin_ns(200 * 40_000), 0, "the messages have ended");
        for message in 0..100 {
            tempo.note_activity(10_000_000 + message * 1_000_000);
        }
        assert_eq!(tempo.spin_ns(109_000_000), 0);
    }
}
