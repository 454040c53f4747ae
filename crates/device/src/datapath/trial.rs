//! Measurement of a path that carries all frames to a peer (`trials.rs`).
//!
//! The rate is that of the path if the path was full: if bytes waited in most of the trial, or if
//! nearly every question waited for more than a packet. A stream with a window of three packets
//! fills a slow path, but its bytes are too few to be told from a message. With 50 and 200 Mb/s,
//! such a stream kept to the slow one (`docs/perf-log.md`, 2026-11-29).

use super::intf::Answer;
use std::collections::VecDeque;

/// Beginning of a trial in which the stream moves to the link, in ns: several round trips.
const SETTLE_NS: u64 = 3_000_000;
/// Answers that make a rate: over 6 ms.
const RATE_ANSWERS: usize = 4;
/// Growth of the rate after which the trial goes on, and rates without it after which it is over.
/// The rates of links that were full varied by less (`docs/perf-log.md`, 2026-11-28).
const GROWTH: f64 = 1.03;
const SETTLED_RATES: u32 = 4;
/// Time in the queue above which a question shows a full path: that of 1.5 full packets, and at
/// least `QUEUE_NS`, because a NIC may hold interrupts back for 0.1 ms. Chosen by judgement: on
/// a path that is not full, the share of such questions is below the share of time in which it is
/// busy.
const QUEUE_BYTES: f64 = 1.5 * 1538.0;
/// See [`QUEUE_BYTES`].
pub const QUEUE_NS: u64 = 200_000;
/// Share of the questions that must have waited as long.
const QUEUED_SHARE: f64 = 0.8;
/// Most questions that are remembered: more than the longest trial has.
const QUEUES: usize = 64;

/// Measurement of a path that carries all frames to a peer. Times are the programs'.
#[derive(Debug)]
pub struct Trial {
    from_ns: u64,
    last: VecDeque<Answer>,
    highest_bps: f64,
    /// Highest rate when it last grew, and rates since.
    grown_bps: f64,
    since_grown: u32,
    answers: u32,
    waiting: u32,
    /// Times that questions waited on their way, in ns.
    queues_ns: Vec<u64>,
}

impl Trial {
    /// Begins a trial.
    pub fn begin(now_ns: u64) -> Self {
        Self {
            from_ns: now_ns + SETTLE_NS,
            last: VecDeque::new(),
            highest_bps: 0.0,
            grown_bps: 0.0,
            since_grown: 0,
            answers: 0,
            waiting: 0,
            queues_ns: Vec::new(),
        }
    }

    /// Evaluates an answer, which found bytes waiting or did not. Its question waited for
    /// `queue_ns` on its way.
    pub fn note(&mut self, answer: Answer, is_waiting: bool, queue_ns: u64) {
        if answer.asked_at_ns < self.from_ns {
            return;
        }
        self.answers += 1;
        self.waiting += u32::from(is_waiting);
        if self.queues_ns.len() < QUEUES {
            self.queues_ns.push(queue_ns);
        }
        self.last.push_back(answer);
        if self.last.len() < RATE_ANSWERS {
            return;
        }
        let Some(first) = self.last.pop_front() else {
            return;
        };
        let span_ns = answer.answered_at_ns.saturating_sub(first.answered_at_ns);
        let bytes = answer.received_bytes.saturating_sub(first.received_bytes);
        let rate_bps = bytes as f64 * 8e9 / span_ns.max(1) as f64;
        self.highest_bps = self.highest_bps.max(rate_bps);
        self.since_grown += 1;
        if rate_bps > self.grown_bps * GROWTH {
            (self.grown_bps, self.since_grown) = (rate_bps, 0);
        }
    }

    /// Returns whether the rate no longer grows.
    pub fn is_settled(&self) -> bool {
        self.since_grown >= SETTLED_RATES
    }

    /// Returns the rate of the path, if it was full.
    pub fn rate_bps(&self) -> Option<f64> {
        let is_full = self.waiting * 2 > self.answers || self.is_queued();
        (is_full && self.highest_bps > 0.0).then_some(self.highest_bps)
    }

    /// Returns whether nearly every question waited for more than a packet.
    fn is_queued(&self) -> bool {
        let least_ns = (QUEUE_BYTES * 8e9 / self.highest_bps).max(QUEUE_NS as f64);
        let long = self.queues_ns.iter().filter(|ns| **ns as f64 >= least_ns);
        long.count() as f64 > self.queues_ns.len() as f64 * QUEUED_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rate after a trial in which 50 Mb/s arrive and questions wait for these times
    /// in turn, in us.
    fn rate_mbps(queues_us: &[u64]) -> Option<u64> {
        let mut trial = Trial::begin(0);
        for (number, queue_us) in (0..14).zip(queues_us.iter().cycle()) {
            let now_ns = SETTLE_NS + number * 2_000_000;
            let answer = Answer {
                asked_at_ns: now_ns,
                sent_bytes: 0,
                received_bytes: number * 12_500,
                answered_at_ns: now_ns,
                arrived_at_ns: now_ns,
                check: 0,
            };
            trial.note(answer, false, queue_us * 1000);
        }
        trial.rate_bps().map(|bps| (bps / 1e6).round() as u64)
    }

    #[test]
    fn trial__each_question_waits_for_two_packets__shows_the_rate() {
        assert_eq!(rate_mbps(&[500, 600, 450]), Some(50));
        assert_eq!(rate_mbps(&[500, 600, 450, 700, 500, 500, 0]), Some(50));
    }

    #[test]
    fn trial__questions_wait_for_a_packet_or_at_times__shows_no_rate() {
        assert_eq!(rate_mbps(&[240]), None);
        assert_eq!(rate_mbps(&[500, 600, 0]), None);
        assert_eq!(rate_mbps(&[0]), None);
    }
}
