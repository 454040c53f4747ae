//! The sooner of two ways for updates that are neither short nor long: by messages beside those of
//! the exchange, which is a datagram or several to each node, or by one put to all before it, for
//! whose answers the writer waits. Where links are slow, multicast is sooner; on fast ones, the
//! answers take longer than the bytes. Both are timed.

use std::time::{Duration, Instant};

/// Barriers by which each way is judged. The shortest counts: others wait for slow nodes.
const TRIALS: u32 = 4;

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
    shortest: Option<Duration>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Class {
    messages: Timed,
    put: Timed,
    uses: u32,
}

/// Times of both ways, by the length of the updates.
#[derive(Debug, Default)]
pub struct Ways {
    classes: [Class; CLASSES],
    running: Option<(usize, Way, Instant)>,
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
        let way = if class.messages.trials < TRIALS {
            Way::Messages
        } else if class.put.trials < TRIALS || class.put.shortest < class.messages.shortest {
            Way::Put
        } else {
            Way::Messages
        };
        self.running = Some((index, way, now));
        way
    }

    /// Ends the time of the last choice: the exchange has ended.
    pub fn end(&mut self, now: Instant) {
        let Some((index, way, began)) = self.running.take() else {
            return;
        };
        let timed = match way {
            Way::Messages => &mut self.classes[index].messages,
            Way::Put => &mut self.classes[index].put,
        };
        let took = now.saturating_duration_since(began);
        timed.trials += 1;
        timed.shortest = Some(timed.shortest.map_or(took, |least| least.min(took)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `count` updates went by messages, when barriers take these times.
    fn by_messages(ways: &mut Ways, count: u32, bytes: usize, times_us: [u64; 2]) -> u32 {
        let now = Instant::now();
        let one = |_| {
            let way = ways.choose(bytes, now);
            let took_us = times_us[usize::from(way == Way::Put)];
            ways.end(now + Duration::from_micros(took_us));
            u32::from(way == Way::Messages)
        };
        (0..count).map(one).sum()
    }

    #[test]
    fn way__that_is_sooner__is_used_after_both_were_timed() {
        let mut ways = Ways::default();
        assert_eq!(by_messages(&mut ways, 100, 8192, [300, 900]), 100 - TRIALS);
        assert_eq!(by_messages(&mut ways, 100, 4096, [900, 300]), TRIALS);
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
        assert_eq!(ways.choose(0, Instant::now()), Way::Messages);
    }
}
