//! Measurement of a path that carries all frames to a peer (`trials.rs`).

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
        }
    }

    /// Evaluates an answer, which found bytes waiting or did not.
    pub fn note(&mut self, answer: Answer, is_waiting: bool) {
        if answer.asked_at_ns < self.from_ns {
            return;
        }
        self.answers += 1;
        self.waiting += u32::from(is_waiting);
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

    /// Returns the rate of the path, if bytes waited in most of the trial.
    pub fn rate_bps(&self) -> Option<f64> {
        let is_full = self.waiting * 2 > self.answers && self.highest_bps > 0.0;
        is_full.then_some(self.highest_bps)
    }
}
