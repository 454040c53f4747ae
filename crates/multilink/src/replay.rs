//! Replay window: each packet of a link is accepted once.

/// Length of the window, in packets; a power of two. A link is first-in first-out, so the window
/// need only cover the reordering on one link: window ≥ rate × skew. 8192 packets are 100 ms at 1
/// Gb/s and 10 ms at 10 Gb/s, more than the skew of any switch path.
pub const REPLAY_WINDOW: u64 = 8192;

/// Set of accepted numbers among the last [`REPLAY_WINDOW`] of one link.
#[derive(Debug, Clone, Default)]
pub struct ReplayWindow {
    /// One past the highest number seen; 0 before the first.
    next: u64,
    accepted: Vec<u64>,
}

impl ReplayWindow {
    /// Returns one past the highest number accepted.
    pub fn next(&self) -> u64 {
        self.next
    }

    fn bit(number: u64) -> (usize, u64) {
        let slot = number % REPLAY_WINDOW;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Returns whether `number` could be accepted. Called before the packet's tag is verified.
    pub fn is_fresh(&self, number: u64) -> bool {
        if number >= self.next {
            return true;
        }
        let (word, bit) = Self::bit(number);
        number + REPLAY_WINDOW >= self.next && self.accepted[word] & bit == 0
    }

    /// Accepts `number`, after its packet's tag was verified.
    pub fn accept(&mut self, number: u64) {
        debug_assert!(self.is_fresh(number));
        if self.accepted.is_empty() {
            self.accepted = vec![0; (REPLAY_WINDOW / 64) as usize]; // allocated at the first packet
        }
        if number >= self.next {
            if number - self.next >= REPLAY_WINDOW {
                self.accepted.fill(0);
            } else {
                for skipped in self.next..=number {
                    let (word, bit) = Self::bit(skipped);
                    self.accepted[word] &= !bit;
                }
            }
            self.next = number + 1;
        }
        let (word, bit) = Self::bit(number);
        self.accepted[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn replay_window__any_order__accepts_each_number_at_most_once(
            steps in proptest::collection::vec((0u64..40_000, any::<bool>()), 1..400)
        ) {
            let mut window = ReplayWindow::default();
            let mut accepted = BTreeSet::new();
            for (number, is_near) in steps {
                let number = if is_near {
                    window.next().saturating_sub(number % 9000)
                } else {
                    number
                };
                if window.is_fresh(number) {
                    window.accept(number);
                    prop_assert!(accepted.insert(number), "{number} was accepted twice");
                } else {
                    let is_old = number + REPLAY_WINDOW < window.next();
                    prop_assert!(
                        is_old || accepted.contains(&number),
                        "{number} was refused unseen"
                    );
                }
            }
        }
    }
}
