//! A known rate that is held: its window, its probes, and what each round shows of it.

use super::{
    CLUMPS_PS, HELD_ROUNDS, Kumi, Mode, SKIPPED_MAX, STEADY_ROUNDS, STEP, STEP_LAST, TOLERATED,
    WINDOW_MIN,
};
use crate::known::{SECOND_US, packets_of};
use crate::round::TRAIN;

/// A known rate that is held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) rounds: u32,
    pub(super) queue_rounds: u32,
    pub(super) has_lost: bool,
    /// Shortest round trip of its first round.
    pub(super) base_us: u64,
    /// True if this connection has had the rate; otherwise it only saw it.
    pub(super) is_own: bool,
    pub(super) is_probing: bool,
    /// Pace of the round before, if it was a probe.
    pub(super) probed_pps: u64,
}

impl Kumi {
    pub(super) fn held_window(&self) -> u64 {
        let rate = self.path.rate().max(self.pace_pps);
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
        self.pace_pps = rate + if is_probing { rate / self.step } else { 0 };
        // The packets of a restart arrive in its first round.
        self.held = Held {
            is_own,
            is_probing,
            probed_pps: if is_probing { self.pace_pps } else { 0 },
            ..Held::default()
        };
        self.window = self.held_window();
    }

    pub(super) fn end_held_round(&mut self, now_us: u64) {
        let noise_us = self.rtt_min_us / TOLERATED + SECOND_US / CLUMPS_PS / 8;
        let (flying, full) = (
            self.round.flying,
            packets_of(self.path.rate(), self.rtt_min_us),
        );
        let held = &mut self.held;
        // A round that the program hardly uses shows nothing.
        if !held.has_lost && flying < TRAIN && flying < full / 2 {
            return;
        }
        if held.base_us == 0 {
            held.base_us = self.round.rtt_us.unwrap_or(0);
        }
        held.rounds += 1;
        let is_longer = |rtt| rtt > held.base_us + noise_us;
        let has_queue = flying >= TRAIN && self.round.rtt_us.is_some_and(is_longer);
        let (rate, train_pps, has_lost) = (self.path.rate(), self.round.train_pps, held.has_lost);
        // A longer step needs less precision.
        let part = if self.step <= STEP_LAST { 8 } else { 2 };
        let is_shown = self.round.train_us >= self.rtt_min_us / part;
        held.queue_rounds = if has_queue { held.queue_rounds + 1 } else { 0 };
        held.has_lost = false;
        // Packets of the round before have arrived in this one.
        if held.probed_pps > 0 && (is_shown || has_lost) {
            held.is_probing = false;
            if !has_lost && train_pps >= (rate + held.probed_pps) / 2 {
                self.path.note(train_pps.min(held.probed_pps), now_us);
                let is_all = train_pps >= held.probed_pps - held.probed_pps / TOLERATED;
                if is_all {
                    self.step = (self.step / 2).max(STEP_LAST);
                } else {
                    self.show_limit();
                }
                self.skip = 0;
            } else {
                self.fail_probe();
            }
        } else if has_queue && self.round.train_us >= self.rtt_min_us / 2
            || has_lost && self.round.train_us >= self.rtt_min_us / 8
        {
            // A full path delivers its rate.
            self.show_limit();
            (self.path.best_pps, self.path.last_pps) = (train_pps.clamp(rate - rate / 16, rate), 0);
        }
        let held = &mut self.held;
        held.probed_pps = if held.is_probing { self.pace_pps } else { 0 };
        held.is_probing = !held.is_probing && !has_queue && !has_lost && self.skipped >= self.skip;
        let flying = flying.max(self.before_flying);
        if has_lost && train_pps == 0 {
            self.compete(flying);
            self.cut();
            return;
        }
        if has_lost && (!held.is_own || self.round.has_less(rate)) {
            // Less arrives than was remembered: others are there.
            (self.path.best_pps, self.path.last_pps) = (train_pps.clamp(rate / 2, rate), 0);
            self.compete(packets_of(train_pps, self.rtt_min_us).clamp(flying / 2, flying));
            self.cut();
            return;
        }
        let held = &mut self.held;
        if held.rounds > HELD_ROUNDS || held.queue_rounds >= STEADY_ROUNDS {
            let share = packets_of(self.round.best_pps, self.rtt_min_us);
            self.compete(flying.min(share + share / 8));
        }
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
