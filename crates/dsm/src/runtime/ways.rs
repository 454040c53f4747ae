//! The sooner of two ways for updates that are neither short nor long: by messages beside those of
//! the exchange, which is a datagram or several to each node, or by one put to all before it, for
//! whose answers the writer waits. Where links are slow, multicast is sooner; on fast ones, the
//! answers take longer than the bytes. Both are timed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Barriers by which each way is tried. The first ones end what the other way has begun. The mean
/// of the others counts, not the shortest one: a shaped link has credit for some tens of KiB.
const TRIALS: u32 = 12;
const UNJUDGED: u32 = 2;

/// Judged trials of messages after which they are tried no more if they take twice as long.
const JUDGED_MIN: u32 = 3;

/// Ends of barriers that belong to the time of an update. The writer's own barrier may end while
/// its messages are on their way; then the next one waits for the nodes that wait for them.
const ENDS: u32 = 2;

/// Barriers after which both ways are timed again.
const USES_MAX: u32 = 512;

/// Updates are timed apart by the binary logarithm of their length, up to this one.
const CLASSES: usize = 17;

/// A way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Messages to each node.
    Messages,
    /// A put to all.
    Put,
}

#[derive(Debug, Default, Clone, Copy)]
struct Timed {
    trials: u32,
    judged: u32,
    sum: Duration,
}

impl Timed {
    /// Returns the mean time of the barriers that count.
    fn mean(&self) -> Duration {
        self.sum / self.judged.max(1)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Class {
    messages: Timed,
    put: Timed,
    uses: u32,
}

/// An update whose time runs.
#[derive(Debug)]
struct Running {
    class: usize,
    way: Way,
    began: Instant,
    ends: u32,
}

/// Times of both ways, by the length of the updates.
#[derive(Debug, Default)]
pub struct Ways {
    classes: [Class; CLASSES],
    running: VecDeque<Running>,
}

impl Ways {
    /// Returns the way for updates of `bytes` bytes, and begins to time it.
    pub fn choose(&mut self, bytes: usize, now: Instant) -> Way {
        let index = (bytes.max(1).ilog2() as usize).min(CLASSES - 1);
        let class = &mut self.classes[index];
        class.uses += 1;
        if class.uses > USES_MAX {
            *class = Class::default();
        }
        let (messages, put) = (&mut class.messages, &mut class.put);
        let is_hopeless = messages.judged >= JUDGED_MIN && messages.mean() > 2 * put.mean();
        let way = if put.trials < TRIALS {
            put.trials += 1;
            Way::Put
        } else if messages.trials < TRIALS && !is_hopeless {
            messages.trials += 1;
            Way::Messages
        } else if put.mean() < messages.mean() {
            Way::Put
        } else {
            Way::Messages
        };
        let timed = if way == Way::Put { put } else { messages };
        if timed.trials > UNJUDGED && class.uses <= 2 * TRIALS {
            self.running.push_back(Running {
                class: index,
                way,
                began: now,
                ends: 0,
            });
        }
        way
    }

    /// Notes that a barrier has ended.
    pub fn end(&mut self, now: Instant) {
        for running in &mut self.running {
            running.ends += 1;
        }
        while self.running.front().is_some_and(|first| first.ends == ENDS) {
            let Some(ended) = self.running.pop_front() else {
                return;
            };
            let class = &mut self.classes[ended.class];
            let timed = match ended.way {
                Way::Messages => &mut class.messages,
                Way::Put => &mut class.put,
            };
            let took = now.saturating_duration_since(ended.began);
            timed.judged += 1;
            timed.sum += took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `count` updates went by messages, when barriers take these times. That
    /// of messages is taken by the barrier behind theirs.
    fn by_messages(ways: &mut Ways, count: u32, bytes: usize, times_us: [u64; 2]) -> u32 {
        let mut now = Instant::now();
        let mut late_us = 0;
        let one = |_| {
            let way = ways.choose(bytes, now);
            let took_us = late_us + if way == Way::Put { times_us[1] } else { 0 };
            late_us = if way == Way::Put { 0 } else { times_us[0] };
            now += Duration::from_micros(took_us);
            ways.end(now);
            u32::from(way == Way::Messages)
        };
        (0..count).map(one).sum()
    }

    #[test]
    fn way__that_is_sooner__is_used_after_both_were_timed() {
        let mut ways = Ways::default();
        assert_eq!(by_messages(&mut ways, 100, 8192, [300, 900]), 100 - TRIALS);
        let tried = by_messages(&mut ways, 100, 4096, [900, 300]);
        assert!((JUDGED_MIN..TRIALS).contains(&tried), "{tried}");
    }

    #[test]
    fn way__that_became_slow__is_left_within_some_hundred_barriers() {
        let mut ways = Ways::default();
        by_messages(&mut ways, 100, 8192, [300, 900]);
        by_messages(&mut ways, USES_MAX, 8192, [9000, 900]);
        assert_eq!(by_messages(&mut ways, 100, 8192, [9000, 900]), 0);
    }

    #[test]
    fn end__without_a_choice__has_no_effect() {
        let mut ways = Ways::default();
        ways.end(Instant::now());
        assert_eq!(ways.choose(0, Instant::now()), Way::Put);
    }
}
