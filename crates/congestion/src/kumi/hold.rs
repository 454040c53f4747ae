//! A known rate that is held: its window, its probes, and what each round shows of it.

use super::{
    HELD_ROUNDS, Kumi, Mode, SKIPPED_MAX, STEADY_ROUNDS, STEP, STEP_LAST, TOLERATED, WINDOW_MIN,
};
use crate::known::{SECOND_US, packets_of};
use crate::round::{CLUMPS_PS, TRAIN};

/// A known rate that is held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) rounds: u32,
    pub(super) queue_rounds: u32,
    /// Queue that the pace of this round takes away.
    drain_us: u64,
    /// Pace at which the lost packets of this round had left; 0: no packet was lost.
    pub(super) lost_pps: u64,
    /// The rate was lowered at the end of the round before.
    is_lowered: bool,
    /// Shortest round trip of its first round.
    pub(super) base_us: u64,
    /// True if this connection has had the rate; otherwise it only saw it.
    pub(super) is_own: bool,
    pub(super) is_probing: bool,
    /// Pace of the round before, if it was a probe.
    pub(super) probed_pps: u64,
}

impl Kumi {
    /// Returns the window for a rate, of the path or of a probe.
    pub(super) fn held_window(&self, pps: u64) -> u64 {
        let rate = self.path.rate().max(pps);
        let full = packets_of(rate, self.rtt_min_us);
        let most = if self.held.is_own {
            2 * full
        } else {
            full + full / 4
        };
        most + rate / CLUMPS_PS + WINDOW_MIN
    }

    pub(super) fn hold(&mut self, is_own: bool) {
        self.mode = Mode::Hold;
        let is_probing = is_own && self.skipped >= self.skip;
        if is_own && !self.path.is_limited() {
            self.step = STEP_LAST;
        }
        let rate = self.path.rate();
        let pps = rate + if is_probing { rate / self.step } else { 0 };
        self.pace_pps = self.least_pace(pps);
        // The packets of a restart arrive in its first round.
        self.held = Held {
            is_own,
            is_probing,
            probed_pps: if is_probing { pps } else { 0 },
            ..Held::default()
        };
        self.window = self.held_window(pps);
    }

    /// Returns the pace while the rate is held.
    pub(super) fn held_pace(&self) -> u64 {
        let rate = match self.round.train_pps {
            train_pps @ 1.. if self.held.lost_pps > 0 => self.path.rate().min(train_pps),
            _ => self.path.rate(),
        };
        let is_short = packets_of(rate, self.rtt_min_us) < TRAIN;
        if self.held.queue_rounds > 0 || self.held.lost_pps > 0 {
            rate - (rate * self.held.drain_us / self.rtt_min_us).max(rate / STEP)
        } else if self.held.probed_pps > 0 && is_short
            || self.held.probed_pps == 0 && self.held.is_probing
        {
            rate + rate / self.step // also in a longer round that judges the probe
        } else {
            rate
        }
    }

    pub(super) fn end_held_round(&mut self, now_us: u64) {
        let noise_us = self.rtt_min_us / TOLERATED + SECOND_US / CLUMPS_PS / 8;
        let (rate, train_pps, train_us) =
            (self.path.rate(), self.round.train_pps, self.round.train_us);
        let (flying, full) = (self.round.flying, packets_of(rate, self.rtt_min_us));
        let held = &mut self.held;
        let has_lost = held.lost_pps > 0;
        // A round that the program hardly uses shows nothing.
        if !has_lost && flying < TRAIN && flying < full / 2 {
            return;
        }
        if held.base_us == 0 {
            held.base_us = self.round.rtt_us.unwrap_or(0);
        }
        held.rounds += 1;
        let rtt_us = self.round.rtt_us.unwrap_or(0);
        let has_queue = flying >= TRAIN && rtt_us > held.base_us + noise_us;
        // What the pace has taken away shows in the next round.
        let queue_us = if has_queue {
            rtt_us - held.base_us - noise_us
        } else {
            0
        };
        held.drain_us = queue_us
            .saturating_sub(held.drain_us)
            .min(self.rtt_min_us / STEP_LAST);
        held.queue_rounds = if has_queue { held.queue_rounds + 1 } else { 0 };
        // A longer step needs less precision.
        let part = if self.step <= STEP_LAST { 8 } else { 2 };
        if held.probed_pps > 0 && train_us >= self.rtt_min_us / part {
            // Packets of the round before have arrived in this one.
            self.judge_probe(now_us);
        } else if has_queue && train_us >= self.rtt_min_us / 2
            || has_lost && train_us >= self.rtt_min_us / 8
        {
            self.take_arrival_rate();
        }
        let held = &mut self.held;
        held.lost_pps = 0;
        // A restart's probe that showed nothing is over, too.
        held.probed_pps = match held.probed_pps {
            0 if held.is_probing => self.pace_pps,
            _ => 0,
        };
        held.is_probing = !held.is_probing && !has_queue && !has_lost && self.skipped >= self.skip;
        let flying = flying.max(self.before_flying);
        if has_lost && train_pps == 0 {
            self.compete(flying);
            self.cut();
        } else if held.is_lowered {
            held.is_lowered = false;
        } else if has_lost && (!held.is_own || self.round.has_less(rate)) {
            self.lower(flying);
        } else if held.rounds > HELD_ROUNDS || held.queue_rounds >= STEADY_ROUNDS {
            let share = packets_of(self.round.best_pps, self.rtt_min_us);
            self.compete(flying.min(share + share / 8));
        }
    }

    /// Judges the probe whose packets have arrived in this round.
    fn judge_probe(&mut self, now_us: u64) {
        let (rate, train_pps) = (self.path.rate(), self.round.train_pps);
        let probed_pps = self.held.probed_pps;
        // If the host stood still, the probe shows no limit.
        let is_clear = !self.round.has_paused(rate, self.rtt_min_us);
        self.held.is_probing = false;
        if train_pps < rate + rate / TOLERATED {
            if is_clear {
                self.fail_probe();
            }
            return;
        }
        self.path.note(train_pps.min(probed_pps), now_us);
        if train_pps >= probed_pps - probed_pps / TOLERATED {
            self.step = (self.step / 2).max(STEP_LAST);
            self.skip = 0;
        } else if is_clear {
            self.show_limit();
        }
    }

    /// Takes the arrival rate for the path's rate, because a full path delivers its rate.
    fn take_arrival_rate(&mut self) {
        let (rate, lost_pps) = (self.path.rate(), self.held.lost_pps);
        let least = match self.round.has_paused(rate, self.rtt_min_us) {
            true => rate,
            false => rate - rate / 16,
        };
        // A longer step needs less precision.
        let part = if lost_pps > rate + rate / 8 { 8 } else { 2 };
        let most = match self.round.train_us >= self.rtt_min_us / part {
            true => rate.max(lost_pps),
            false => rate,
        };
        let arrived_pps = self.round.train_pps.clamp(least, most);
        (self.path.best_pps, self.path.last_pps) = (arrived_pps, 0);
        self.show_limit();
    }

    /// Lowers the rate after a round in which fewer packets arrived: other flows share the path,
    /// the rate was a guess, or the host stood still.
    fn lower(&mut self, flying: u64) {
        let (rate, train_pps) = (self.path.rate(), self.round.train_pps);
        (self.path.best_pps, self.path.last_pps) = (train_pps.clamp(rate / 2, rate), 0);
        if !self.held.is_own {
            self.compete(packets_of(train_pps, self.rtt_min_us).clamp(flying / 2, flying));
            self.cut();
            return;
        }
        // Losses of the next round do not count, because these packets had left before.
        (self.held.is_own, self.held.is_lowered) = (false, true);
        self.skip = 0;
        self.show_limit();
    }

    /// Takes the rate that is held for the path's limit: the next probe is a small one.
    pub(super) fn show_limit(&mut self) {
        self.step = STEP;
        self.path.limit_pps = self.path.rate();
    }

    /// Leaves out the next probes, twice as many as the last time.
    pub(super) fn fail_probe(&mut self) {
        self.show_limit();
        self.skip = (2 * self.skip).clamp(1, SKIPPED_MAX);
        self.skipped = 0;
    }
}
