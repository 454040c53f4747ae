//! Rhythm of the loop: when it sleeps, when it spins, and when it asks for priority (ADR 009).
//!
//! The loop takes the place of a NIC's interrupt. A frame that waits for the scheduler's next turn
//! waits milliseconds. So the loop asks for short time slices, and under load also for more weight.
//!
//! At low load the cost is falling asleep and being woken, twice at each end for each message.
//! While datagrams follow each other quickly, the loop therefore polls again instead of sleeping.
//! It does so as an ordinary process.
//!
//! Between two polls it yields the processor, because the scheduler lets a process finish the slice
//! that it has just begun. A program that was woken on the same processor waited up to 200 µs for
//! the loop that had woken it (`docs/perf-log.md`, 2026-11-24).
//!
//! If another process keeps the processor after a yield, the loop sleeps instead of spinning: the
//! scheduler prefers a process that is woken to one that has yielded. The loop does not spin if
//! nothing is expected soon.

use crate::interface;
use nix::time::{ClockId, clock_gettime};

/// Share of a core spent on bulk traffic above which the loop takes priority. From there on,
/// megabytes wait for the scheduler's next turn (`docs/perf-log.md`, 2026-11-22).
const BULK_SHARE: f64 = 0.25;
/// Share of a core spent on messages above which the loop takes priority. Below it there is time to
/// spin, which serves messages better. An end of a ping-pong takes
/// 0.52 (`docs/perf-log.md`, 2026-11-28).
const MESSAGES_SHARE: f64 = 0.8;
/// Factor of either share below which the loop gives its priority back.
const HYSTERESIS: f64 = 0.6;
/// Mean number of bytes of a receive above which the traffic is bulk.
const BULK_BYTES: u64 = 8_000;
/// Length of a window in which the share is measured, in ns.
const WINDOW_NS: u64 = 10_000_000;
/// Longest usual pause for which the loop spins, and its spinning time between messages, in ns.
///
/// It is the turnaround of a message over gigabit NICs that hold interrupts back for 50 µs.
/// Spinning for 400 µs gained nothing (`docs/perf-log.md`, 2026-11-22).
const EXPECTED_NS: u64 = 200_000;
/// Spinning time in bulk traffic, as a multiple of the usual pause.
const BULK_PATIENCE: u64 = 2;
/// Duration of a yield above which another process had the processor, in ns.
const AWAY_NS: u64 = 5_000;
/// Duration of a yield above which the other process computes, rather than answers a message, in
/// ns.
const CROWDED_NS: u64 = 200_000;
/// Time for which the loop neither spins nor yields after such a yield, as a multiple of the
/// yield's duration.
///
/// A single long yield may have any cause, such as a program that ends. If another one follows
/// within twice that time, the multiple grows by `CROWDED_GROWTH`. The time reaches one second if
/// the other process keeps the processor until the next tick each time (4 ms). The first multiple
/// and the growth are chosen by judgement.
const CROWDED_FACTOR_FIRST: u64 = 10;
const CROWDED_FACTOR_MAX: u64 = 250;
const CROWDED_GROWTH: u64 = 5;
/// Turns per [`WINDOW_NS`] above which there is a flood of small datagrams, if most follow one with
/// the same source. Turns are then spaced, as a NIC spaces its interrupts, so that a system call
/// takes several datagrams. Messages back and forth come from the links and from the host in turn,
/// however many there are.
const FLOOD_TURNS: u64 = 600;
/// Receives per [`WINDOW_NS`] below which a flood has ended: 0.8 of [`FLOOD_TURNS`], by judgement.
const FLOOD_RECEIVES: u64 = 480;
/// Time between the starts of two turns in a flood, in ns.
const SPACE_NS: u64 = 80_000;
/// Time slice of the loop, in ns: the shortest that the scheduler has (Linux 6.12), so that a woken
/// loop runs at once. The loop handles the received datagrams in less.
const SLICE_NS: u64 = 100_000;
/// Nice value of the loop under load: 86 times the weight of an ordinary program.
///
/// A real-time priority would starve the kernel's packet threads. Packets that these delay by
/// milliseconds arrive too late (`docs/perf-log.md`, 2026-11-22: SCHED_FIFO against short turns).
const LOADED_NICE: i32 = -20;

/// Origin of the events of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Source {
    /// Frames of the host.
    pub host: bool,
    /// Datagrams of the links.
    pub links: bool,
}

/// State of the loop's rhythm.
#[derive(Debug)]
pub struct Tempo {
    may_take_priority: bool,
    has_priority: bool,
    is_bulk: bool,
    is_flooded: bool,
    turn_start_ns: u64,
    /// Usual pause between events, in ns, smoothed. The longest of the latest pauses would include
    /// this loop's own sleep.
    pause_ns: u64,
    active_at_ns: u64,
    window_start_ns: u64,
    cpu_start_ns: u64,
    spun_ns: u64,
    /// Part of `spun_ns` in which other processes had the processor.
    away_ns: u64,
    /// End and length of the time without spinning after a long yield, and the length as a
    /// multiple of the yield's.
    crowded_until_ns: u64,
    crowded_ns: u64,
    crowded_factor: u64,
    receives: u64,
    received_bytes: u64,
    turns: u64,
    /// Turns with the same source as the one before.
    repeated_turns: u64,
    source: Source,
}

fn thread_cpu_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

impl Tempo {
    /// Returns a loop without priority, and gives the calling thread short time slices.
    /// `may_take_priority` permits priority later.
    pub fn new(may_take_priority: bool) -> Self {
        kumi_sys::punctual::forgo_timer_slack();
        // Short slices need no privilege. On a kernel that refuses the call, slices are long.
        let _ = kumi_sys::punctual::become_brisk(0, SLICE_NS);
        Self {
            may_take_priority,
            has_priority: false,
            is_bulk: false,
            is_flooded: false,
            turn_start_ns: 0,
            pause_ns: u64::MAX / 4,
            active_at_ns: 0,
            window_start_ns: 0,
            cpu_start_ns: thread_cpu_ns(),
            spun_ns: 0,
            away_ns: 0,
            crowded_until_ns: 0,
            crowded_ns: 0,
            crowded_factor: 0,
            receives: 0,
            received_bytes: 0,
            turns: 0,
            repeated_turns: 0,
            source: Source::default(),
        }
    }

    /// Starts a turn. Returns the time to wait first, in ns, so that datagrams collect.
    pub fn space_ns(&mut self, now_ns: u64) -> u64 {
        let next_ns = self.turn_start_ns + SPACE_NS;
        let space_ns = if self.is_flooded {
            next_ns.saturating_sub(now_ns)
        } else {
            0
        };
        self.turn_start_ns = now_ns + space_ns;
        space_ns
    }

    /// Returns the time to spin before sleeping, from `now_ns`, in ns.
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

    /// Returns whether more than a lone frame is expected: bulk traffic, or a flood.
    pub fn expects_many(&self) -> bool {
        self.is_bulk || self.is_flooded
    }

    /// Returns whether to yield between two polls. In bulk traffic, too much would wait in that
    /// time.
    pub fn yields(&self) -> bool {
        !self.is_bulk
    }

    /// Records that a yield ended at `now_ns` and took `away_ns`. Returns whether to go on
    /// spinning.
    pub fn note_yielded(&mut self, now_ns: u64, away_ns: u64) -> bool {
        if away_ns > AWAY_NS {
            self.away_ns += away_ns;
        }
        let is_crowded = away_ns > CROWDED_NS;
        if is_crowded {
            self.crowded_factor = if now_ns < self.crowded_until_ns + 2 * self.crowded_ns {
                (self.crowded_factor * CROWDED_GROWTH).min(CROWDED_FACTOR_MAX)
            } else {
                CROWDED_FACTOR_FIRST
            };
            self.crowded_ns = away_ns * self.crowded_factor;
            self.crowded_until_ns = now_ns + self.crowded_ns;
        }
        !is_crowded
    }

    /// Records the time that the loop polled without success, in ns.
    pub fn note_spun(&mut self, spun_ns: u64) {
        self.spun_ns += spun_ns;
    }

    /// Records bytes that were received at once, from the host or from a link.
    pub fn note_received(&mut self, bytes: usize) {
        self.receives += 1;
        self.received_bytes += bytes as u64;
    }

    /// Records a turn with frames or datagrams.
    pub fn note_activity(&mut self, now_ns: u64, source: Source) {
        self.turns += 1;
        self.repeated_turns += u64::from(source == self.source);
        self.source = source;
        let pause_ns = now_ns
            .saturating_sub(self.active_at_ns)
            .min(10 * EXPECTED_NS);
        self.active_at_ns = now_ns;
        self.pause_ns = self.pause_ns.min(10 * EXPECTED_NS);
        self.pause_ns = self.pause_ns - self.pause_ns / 8 + pause_ns / 8;
    }

    /// Takes priority or gives it back, according to the work in the last window.
    pub fn adapt(&mut self, now_ns: u64, device: &str) {
        let window_ns = now_ns.saturating_sub(self.window_start_ns);
        if window_ns < WINDOW_NS {
            return;
        }
        let cpu_ns = thread_cpu_ns();
        let work_ns = cpu_ns
            .saturating_sub(self.cpu_start_ns)
            .saturating_sub(self.spun_ns.saturating_sub(self.away_ns));
        let share = work_ns as f64 / window_ns as f64;
        (self.window_start_ns, self.cpu_start_ns) = (now_ns, cpu_ns);
        (self.spun_ns, self.away_ns) = (0, 0);
        self.is_bulk = self.received_bytes > BULK_BYTES * self.receives;
        let in_window = |count: u64| count * WINDOW_NS / window_ns;
        self.is_flooded = if self.is_flooded {
            in_window(self.receives) > FLOOD_RECEIVES
        } else {
            in_window(self.turns) > FLOOD_TURNS && self.repeated_turns * 4 > self.turns * 3
        };
        (self.receives, self.received_bytes) = (0, 0);
        (self.turns, self.repeated_turns) = (0, 0);
        let threshold = if self.is_bulk {
            BULK_SHARE
        } else {
            MESSAGES_SHARE
        };
        let is_wanted = share > threshold * if self.has_priority { HYSTERESIS } else { 1.0 };
        if !self.may_take_priority || is_wanted == self.has_priority {
            return;
        }
        let outcome = if is_wanted {
            kumi_sys::punctual::become_brisk(LOADED_NICE, SLICE_NS)
        } else {
            kumi_sys::punctual::become_brisk(0, SLICE_NS)
        };
        match outcome {
            Ok(()) => self.has_priority = is_wanted,
            Err(error) => {
                self.may_take_priority = false;
                let advice = "expect longer round trips under load; grant CAP_SYS_NICE";
                interface::log(device, &format!("cannot set priority ({error}): {advice}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Source = Source {
        host: true,
        links: false,
    };
    const LINKS: Source = Source {
        host: false,
        links: true,
    };

    /// Returns whether the loop spaces its turns after these turns, one each `pause_ns`.
    fn is_spaced(tempo: &mut Tempo, start_ns: u64, pause_ns: u64, sources: &[Source]) -> bool {
        let turns = sources
            .iter()
            .cycle()
            .take((3 * WINDOW_NS / pause_ns) as usize);
        let mut now_ns = start_ns;
        for source in turns {
            now_ns += pause_ns;
            tempo.note_activity(now_ns, *source);
            tempo.note_received(100);
            tempo.adapt(now_ns, "test");
        }
        tempo.space_ns(now_ns);
        tempo.space_ns(now_ns) > 0
    }

    #[test]
    fn tempo__flood_of_datagrams__is_taken_in_spaced_turns_and_messages_are_not() {
        let mut tempo = Tempo::new(false);
        assert!(!is_spaced(&mut tempo, 0, 8_000, &[LINKS, HOST]));
        let several = [LINKS, LINKS, LINKS, HOST];
        assert!(!is_spaced(&mut tempo, 100_000_000, 8_000, &several));
        assert!(!is_spaced(&mut tempo, 200_000_000, 20_000, &[LINKS]));
        assert!(is_spaced(&mut tempo, 300_000_000, 8_000, &[LINKS]));
        assert!(is_spaced(&mut tempo, 330_000_000, 20_000, &[LINKS]));
        assert!(!is_spaced(&mut tempo, 360_000_000, 25_000, &[LINKS]));
    }

    #[test]
    fn tempo__frequent_messages__are_busy_polled_and_rare_ones_are_not() {
        let mut tempo = Tempo::new(false);
        for message in 0..100 {
            tempo.note_activity(message * 40_000, LINKS);
        }
        assert_eq!(tempo.spin_ns(99 * 40_000 + 50_000), EXPECTED_NS - 50_000);
        assert_eq!(tempo.spin_ns(200 * 40_000), 0, "the messages have ended");
        for message in 0..100 {
            tempo.note_activity(10_000_000 + message * 1_000_000, LINKS);
        }
        assert_eq!(tempo.spin_ns(109_000_000), 0);
    }
    #[test]
    fn tempo__yields_that_took_milliseconds__stop_busy_polling_for_ever_longer() {
        let mut tempo = Tempo::new(false);
        for message in 0..100 {
            tempo.note_activity(message * 40_000, LINKS);
        }
        let mut now_ns = 99 * 40_000;
        assert!(tempo.note_yielded(now_ns, 300) && tempo.note_yielded(now_ns, 30_000));
        assert!(tempo.spin_ns(now_ns) > 0, "a program that answers has run");
        for crowded_ms in [40, 200, 1000, 1000] {
            assert!(!tempo.note_yielded(now_ns, 4_000_000));
            for (after_ms, spins) in [(0, false), (crowded_ms - 1, false), (crowded_ms + 1, true)] {
                tempo.active_at_ns = now_ns + after_ms * 1_000_000;
                let is_spinning = tempo.spin_ns(tempo.active_at_ns) > 0;
                assert_eq!(is_spinning, spins, "{after_ms} of {crowded_ms} ms");
            }
            now_ns = tempo.active_at_ns;
        }
        now_ns += 10_000_000_000;
        assert!(!tempo.note_yielded(now_ns, 4_000_000));
        tempo.active_at_ns = now_ns + 41_000_000;
        assert!(tempo.spin_ns(tempo.active_at_ns) > 0, "it had been quiet");
    }

    #[test]
    fn tempo__bulk__is_busy_polled_briefly_and_without_yielding() {
        let mut tempo = Tempo::new(false);
        for burst in 1..=1000 {
            tempo.note_activity(burst * 20_000, LINKS);
            tempo.note_received(60_000);
        }
        let now_ns = 1000 * 20_000;
        assert!(
            tempo.yields() && !tempo.expects_many(),
            "nothing is known yet"
        );
        tempo.adapt(now_ns, "test");
        assert!(!tempo.yields() && tempo.expects_many());
        assert!(tempo.spin_ns(now_ns) < 50_000, "{}", tempo.spin_ns(now_ns));
    }
}
