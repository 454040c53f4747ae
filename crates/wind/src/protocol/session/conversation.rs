//! Messages that the peer's program answers: their acknowledgement may wait for the answer, and
//! shares its packet.
//!
//! ```text
//!   alone ──► message leaves ──► data arrives within HOLD ──► answered + 1
//!                            └─► another message leaves, or data arrives later ──► answered = 0
//! ```

/// Longest time for which a receiver holds the acknowledgement of a message that may be answered,
/// in ns. A barrier of 16 processes on two processors takes 1 ms.
pub const ANSWER_HOLD_NS: u64 = 2_000_000;

/// Answers in a row after which the next one is expected.
const ANSWERS_MIN: u32 = 2;

/// One message in this number asks for an acknowledgement at once, which measures the round trip.
const MEASURED_EVERY: u32 = 16;

/// Messages of this side that the peer has answered in a row.
#[derive(Debug, Default)]
pub struct Conversation {
    answered: u32,
    /// Time of the last lone message, if nothing has arrived since.
    sent_at_ns: Option<u64>,
}

impl Conversation {
    /// Records that a lone message leaves. Returns whether its acknowledgement may wait for the
    /// peer's answer.
    pub fn on_sent(&mut self, now_ns: u64) -> bool {
        if self.sent_at_ns.replace(now_ns).is_some() {
            self.answered = 0;
        }
        self.answered >= ANSWERS_MIN && self.answered % MEASURED_EVERY != 0
    }

    /// Records that data of the peer has arrived.
    pub fn on_data(&mut self, now_ns: u64) {
        if let Some(sent_at_ns) = self.sent_at_ns.take() {
            let is_soon = now_ns <= sent_at_ns + ANSWER_HOLD_NS;
            self.answered = if is_soon { self.answered + 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Returns how many of `count` messages may wait, each answered after `answer_ns`.
    fn held(count: u64, answer_ns: Option<u64>) -> usize {
        let mut conversation = Conversation::default();
        let may_wait = |number: &u64| {
            let now_ns = number * 10 * ANSWER_HOLD_NS;
            let is_held = conversation.on_sent(now_ns);
            if let Some(answer_ns) = answer_ns {
                conversation.on_data(now_ns + answer_ns);
            }
            is_held
        };
        (0..count).filter(may_wait).count()
    }

    #[test]
    fn conversation__with_answers__lets_acknowledgements_wait_but_those_that_measure() {
        assert_eq!(held(ANSWERS_MIN.into(), Some(300 * US)), 0);
        assert_eq!(held(160, Some(300 * US)), 160 - 2 - 9);
    }

    #[test]
    fn conversation__without_answers_or_with_late_ones__lets_none_wait() {
        assert_eq!(held(100, None), 0);
        assert_eq!(held(100, Some(ANSWER_HOLD_NS + 1)), 0);
    }

    #[test]
    fn conversation__that_ends__stops_at_the_second_message_without_an_answer() {
        let mut conversation = Conversation::default();
        for number in 0..ANSWERS_MIN.into() {
            conversation.on_sent(number * US);
            conversation.on_data(number * US);
        }
        assert!(conversation.on_sent(0));
        assert!(!conversation.on_sent(1));
    }
}
