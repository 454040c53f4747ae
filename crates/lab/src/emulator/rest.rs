//! Rests of the emulator's thread between two rounds.
//!
//! A wake-up by a timer takes 27 to 41 µs in the virtual machine of the log (2026-12-01), about as
//! long as a frame of 1 KB on a wire of 200 Mb/s. So a thread with a processor of its own stays
//! awake while frames are few. At high rates a wake-up for each frame costs more processor time
//! than the frame, and the thread pauses (ADR 016 and 050).

/// Frames received and sent within [`PERIOD_NS`] from which there are too many for a wake-up each.
const MANY_FRAMES: usize = 20;

/// The same for a thread with a processor of its own: a stream over two links of 200 Mb/s is just
/// below. Chosen by judgement.
const MANY_FRAMES_OWN: usize = 100;

/// Period over which frames are counted, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000;

/// Time after the last frame, and before the next event, for which the thread stays awake, in
/// nanoseconds: longer than a wake-up.
const AWAKE_NS: u64 = 60_000;

/// Longest time without a pause, in nanoseconds. The kernel suspends a real-time thread that uses
/// 0.95 of its processor, for 50 ms (`sched_rt_runtime_us`). With a pause of 30 µs, it uses 0.91.
const AWAKE_NS_MAX: u64 = 300_000;

/// Rest before the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// No rest.
    None,
    /// Short pause, which frames do not end.
    Pause,
    /// Sleep until a frame arrives, or the next event is near.
    Sleep,
}

/// Traffic of the last rounds.
#[derive(Debug, Default)]
pub struct Traffic {
    /// The thread has a processor of its own.
    has_processor: bool,
    period_start_ns: u64,
    /// Frames moved in the present period and in the last one.
    frames: usize,
    last_frames: usize,
    /// Time of the last round that moved a frame, and of the end of the last rest.
    moved_at_ns: u64,
    awake_since_ns: u64,
}

impl Traffic {
    /// Creates the state of a thread that has moved no frame.
    pub fn new(has_processor: bool) -> Self {
        Self {
            has_processor,
            ..Self::default()
        }
    }

    /// Returns the rest after a round that ended at `now_ns` and moved `frames`. The next event is
    /// due at `due_ns`.
    pub fn rest(&mut self, now_ns: u64, frames: usize, due_ns: Option<u64>) -> Rest {
        self.frames += frames;
        if now_ns - self.period_start_ns >= PERIOD_NS {
            self.last_frames = self.frames;
            (self.period_start_ns, self.frames) = (now_ns, 0);
        }
        if frames > 0 {
            self.moved_at_ns = now_ns;
        }
        let (many, awake_ns) = if self.has_processor {
            (MANY_FRAMES_OWN, AWAKE_NS)
        } else {
            (MANY_FRAMES, 0)
        };
        if self.last_frames >= many {
            return Rest::Pause;
        }
        let is_near = now_ns <= self.moved_at_ns + awake_ns
            || due_ns.is_some_and(|due_ns| due_ns < now_ns + awake_ns);
        if !is_near {
            Rest::Sleep
        } else if self.has_processor && now_ns > self.awake_since_ns + AWAKE_NS_MAX {
            Rest::Pause
        } else {
            Rest::None
        }
    }

    /// Returns the longest sleep at `now_ns`, in nanoseconds. The next event is due at `due_ns`.
    /// With a processor of its own, the thread wakes early enough to be punctual.
    pub fn sleep_ns(&self, now_ns: u64, due_ns: u64) -> u64 {
        let early_ns = if self.has_processor { AWAKE_NS } else { 0 };
        due_ns.saturating_sub(early_ns).saturating_sub(now_ns)
    }

    /// Notes the end of a rest.
    pub fn wake(&mut self, now_ns: u64) {
        self.awake_since_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Runs rounds of 2 µs for 10 ms, each of which moves a frame with the period `every_us`.
    /// Returns the numbers of pauses and sleeps.
    fn rests(has_processor: bool, every_us: u64) -> (usize, usize) {
        let mut traffic = Traffic::new(has_processor);
        let mut rests = Vec::new();
        let mut now_ns = 1_000_000_000;
        traffic.wake(now_ns);
        let end_ns = now_ns + 10_000 * US;
        let mut frame_at_ns = now_ns;
        while now_ns < end_ns {
            now_ns += 2 * US;
            let mut frames = 0;
            while frame_at_ns <= now_ns {
                (frames, frame_at_ns) = (frames + 1, frame_at_ns + every_us * US);
            }
            let rest = traffic.rest(now_ns, frames, None);
            match rest {
                Rest::None => continue,
                Rest::Pause => now_ns += 50 * US,
                Rest::Sleep => now_ns = now_ns.max(frame_at_ns) + 30 * US,
            }
            traffic.wake(now_ns);
            rests.push(rest);
        }
        let count = |kind| rests.iter().filter(|rest| **rest == kind).count();
        (count(Rest::Pause), count(Rest::Sleep))
    }

    #[test]
    fn rest__few_frames_and_own_processor__pauses_against_the_kernels_limit_only() {
        let (pauses, sleeps) = rests(true, 50);
        assert_eq!(sleeps, 0);
        assert!((20..=40).contains(&pauses), "{pauses}");
    }

    #[test]
    fn rest__no_frames_for_long__sleeps() {
        let (pauses, sleeps) = rests(true, 1000);
        assert_eq!((pauses, sleeps), (0, 10));
    }

    #[test]
    fn rest__many_frames__pauses_after_each_round() {
        let (pauses, sleeps) = rests(true, 5);
        assert!(pauses > 150, "{pauses}");
        assert_eq!(sleeps, 0);
    }

    #[test]
    fn rest__no_processor_of_its_own__sleeps_until_the_next_frame() {
        let (pauses, sleeps) = rests(false, 100);
        assert_eq!(pauses, 0);
        assert!(sleeps > 70, "{sleeps}");
    }

    #[test]
    fn rest__event_due_soon__stays_awake() {
        let mut traffic = Traffic::new(true);
        let now_ns = 1_000_000_000;
        traffic.wake(now_ns);
        assert_eq!(traffic.rest(now_ns, 0, Some(now_ns + 50 * US)), Rest::None);
        assert_eq!(traffic.rest(now_ns, 0, Some(now_ns + 70 * US)), Rest::Sleep);
    }

    #[test]
    fn sleep__event_far_ahead__ends_before_it() {
        let sleep_us = |has_processor| {
            let traffic = Traffic::new(has_processor);
            traffic.sleep_ns(1_000_000 * US, 1_000_200 * US) / US
        };
        assert_eq!((sleep_us(true), sleep_us(false)), (140, 200));
    }
}
