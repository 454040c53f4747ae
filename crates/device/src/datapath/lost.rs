//! Share of the bytes that a path loses without being full.
//!
//! ```text
//! e = bytes sent before a question - bytes received before it
//! lost between answers i - 1 and i = min(e_i, e_i+1, e_i+2) - min(e_i-1, e_i, e_i+1)
//! share of a block = bytes lost / bytes sent
//! ```
//!
//! `e` is what the path has lost so far, which never becomes less, and what the question overtook:
//! a receiver that coalesces holds a burst back while the question passes. The least of three `e`
//! in a row is nearer to what is lost.
//!
//! Only intervals count in which no bytes waited ([`super::drain`]) and the path was not busy: a
//! full path drops some by design. A queue may still fill and drain between two questions. Such
//! losses are in few blocks, and those of a bad cable in nearly all. So the share counts if at most
//! one of the last five blocks has none.

use super::intf::Answer;
use std::collections::VecDeque;

/// Answers that are compared for one interval.
const ANSWERS: usize = 4;
/// Share of a path's rate above which it may have been full between two answers: a port of 128 KB
/// at 1 Gb/s fills and drains within a millisecond. Chosen by judgement.
const SHARE_BUSY: f64 = 0.5;
/// Time between two answers above which bytes may have waited in between, in ns.
const APART_NS: u64 = 10_000_000;
/// Bytes of a block: 100 frames of 1500 bytes. Chosen by judgement.
const BLOCK_BYTES: u64 = 150_000;
/// Blocks that count.
const BLOCKS: usize = 5;

/// Losses of the kernel's frames on a path.
#[derive(Debug, Default)]
pub struct Losses {
    noted: VecDeque<Noted>,
    sent_bytes: u64,
    lost_bytes: i64,
    /// Shares of the last blocks, in turn.
    shares: [f64; BLOCKS],
    blocks: usize,
    share: f64,
}

/// An answer.
#[derive(Debug, Clone, Copy)]
struct Noted {
    answer: Answer,
    /// `e`; `None` if a frame left between the look at the count and the question.
    missing_bytes: Option<i64>,
    is_waiting: bool,
}

impl Losses {
    /// Evaluates an answer. `is_exact` tells that no frame left between the look at the count and
    /// the question. Returns the share (0–1) at the end of a block.
    pub fn note(
        &mut self,
        answer: Answer,
        is_exact: bool,
        is_waiting: bool,
        rate_bps: f64,
    ) -> Option<f64> {
        let missing_bytes = answer.sent_bytes.wrapping_sub(answer.received_bytes) as i64;
        let noted = Noted {
            answer,
            missing_bytes: Some(missing_bytes).filter(|_| is_exact),
            is_waiting,
        };
        // Either side may have restarted and count from 0.
        let continues = |before: &Noted| {
            let before = &before.answer;
            before.sent_bytes <= answer.sent_bytes
                && before.received_bytes <= answer.received_bytes
                && before.answered_at_ns <= answer.answered_at_ns
        };
        if !self.noted.back().is_none_or(continues) {
            self.noted.clear();
        }
        self.noted.push_back(noted);
        if self.noted.len() < ANSWERS {
            return None;
        }
        let (sent_bytes, lost_bytes) = self.first_interval(rate_bps).unwrap_or_default();
        self.noted.pop_front();
        self.count(sent_bytes, lost_bytes)
    }

    /// Returns the bytes sent and lost between the first two answers, if that interval counts.
    fn first_interval(&self, rate_bps: f64) -> Option<(u64, i64)> {
        let (from, to) = (self.noted[0], self.noted[1]);
        let span_ns = to.answer.answered_at_ns - from.answer.answered_at_ns;
        let received_bytes = to.answer.received_bytes - from.answer.received_bytes;
        let is_busy = received_bytes as f64 * 8e9 > rate_bps * SHARE_BUSY * span_ns as f64;
        if from.is_waiting || to.is_waiting || is_busy || span_ns > APART_NS {
            return None;
        }
        let least = |first: usize| {
            let next = self.noted.range(first..first + ANSWERS - 1);
            next.filter_map(|noted| noted.missing_bytes).min()
        };
        let lost_bytes = least(1)?.saturating_sub(least(0)?);
        Some((to.answer.sent_bytes - from.answer.sent_bytes, lost_bytes))
    }

    fn count(&mut self, sent_bytes: u64, lost_bytes: i64) -> Option<f64> {
        self.sent_bytes = self.sent_bytes.saturating_add(sent_bytes);
        self.lost_bytes = self.lost_bytes.saturating_add(lost_bytes);
        if self.sent_bytes < BLOCK_BYTES {
            return None;
        }
        let share = (self.lost_bytes as f64 / self.sent_bytes as f64).clamp(0.0, 1.0);
        (self.sent_bytes, self.lost_bytes) = (0, 0);
        self.shares[self.blocks % BLOCKS] = share;
        self.blocks += 1;
        let clean = self.shares.iter().filter(|share| **share == 0.0).count();
        let mean = self.shares.iter().sum::<f64>() / BLOCKS as f64;
        self.share = if clean <= 1 { mean } else { 0.0 };
        Some(self.share)
    }

    /// Returns the share of the last blocks.
    pub fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE_BPS: f64 = 1e9;

    /// Sends `bytes` in each of 500 intervals of 2 ms. `fate` returns for an interval how many of
    /// them were lost, and how many the question overtook. Returns the shares.
    fn shares(bytes: u64, fate: impl Fn(u64) -> (u64, u64)) -> Vec<f64> {
        let mut losses = Losses::default();
        let mut lost_bytes = 0;
        let note = |number: u64| {
            let (lost, overtaken) = fate(number);
            lost_bytes += lost;
            let answer = Answer {
                sent_bytes: number * bytes,
                received_bytes: number * bytes - lost_bytes - overtaken,
                answered_at_ns: number * 2_000_000,
                ..Answer::default()
            };
            losses.note(answer, true, false, RATE_BPS)
        };
        (1..=500).filter_map(note).collect()
    }

    #[test]
    fn losses__path_that_loses_frames__shows_it_once_four_blocks_have_some() {
        let shares = shares(50_000, |_| (1_000, 0));
        assert_eq!(shares[..3], [0.0; 3]);
        let is_right = |share: &f64| (share - 0.02).abs() < 1e-9;
        assert!(shares[4..].iter().all(is_right), "{shares:?}");
    }

    #[test]
    fn losses__queue_that_overflows_in_each_third_block__is_no_loss() {
        // An interval in nine loses 30 frames, and a block has three intervals.
        let shares = shares(50_000, |number| (u64::from(number % 9 == 0) * 45_000, 0));
        assert!(shares.iter().all(|share| *share == 0.0), "{shares:?}");
    }

    #[test]
    fn losses__questions_that_overtake_bursts__are_no_loss() {
        // Of each three questions, two overtake a burst.
        let shares = shares(50_000, |number| (0, u64::from(number % 3 != 0) * 40_000));
        assert!(shares.len() > 100);
        assert!(shares.iter().all(|share| *share == 0.0), "{shares:?}");
    }

    #[test]
    fn losses__busy_path__says_nothing() {
        assert!(shares(130_000, |_| (1_500, 0)).is_empty());
        assert!(!shares(120_000, |_| (1_500, 0)).is_empty());
    }

    #[test]
    fn losses__counts_of_a_mad_peer__do_no_harm() {
        let mut losses = Losses::default();
        for number in 0..1000_u64 {
            let scatter = |salt: u64| (number + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let answer = Answer {
                sent_bytes: scatter(1) & scatter(2),
                received_bytes: scatter(3) & scatter(4),
                answered_at_ns: scatter(5),
                ..Answer::default()
            };
            let share = losses.note(answer, number % 3 > 0, false, RATE_BPS);
            assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
