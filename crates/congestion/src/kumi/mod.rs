//! The control `kumi`: a rate that is known is held, one that is not is searched, and where others
//! share the path it is CUBIC. The model of `bpf/tcp/control.h`, for one phase of a program.
//!
//! ```text
//!   R   bottleneck rate: highest rate of the last two spans of 10 s, for each phase
//!   T   shortest round trip           q   queue: shortest round trip of a round, less T
//!   W   window, in packets            P   pace            s   step of a probe
//!
//!   search    W + 1 for each packet acknowledged   P = 2 W / RTT, at most R; none if R is unknown
//!   hold      W = 2 P T + P / 1024 + 2             P = R; R (1 + s) in a probe; R (1 - q / T) at a
//!                                                  queue, between R 3/4 and R 31/32
//!   compete   W of CUBIC      P = 5/4 W / RTT; if W is not full, at least R, or 5/4 R until R is
//!                             the path's limit; none if W was full for 32 rounds, or R is unknown
//!
//! In an all-to-all, W paces what does not fill it even if R is unknown. A fair share S that is
//! less than the smallest window in T has P = S and W = S RTT + 2.
//!
//!                        ┌─────── idle for an RTO, R known ───────┐
//!                        ▼                                        │
//!   search ──W ≥ R T──► hold ──32 rounds, or q in 4 rounds──► compete
//!      │                 └── less than R arrives, twice ──────────▲
//!      └── queue or loss ─────────────────────────────────────────┘
//! ```

mod hold;

use crate::control::{Acknowledgement, Control};
use crate::known::{Path, SECOND_US, packets_of};
use crate::rivals::cubic::Cubic;
use crate::round::{Anchor, CLUMPS_PS, Round, TRAIN, train_least_us};
use hold::Held;

/// Reciprocal of a probe's first step: what the shallowest buffers of switches hold, 0.05 of the
/// path, is more than one step.
const STEP: u64 = 32;
/// The same of its last step, BBR's.
const STEP_LAST: u64 = 4;
/// Rounds with a queue after which others cause it.
const STEADY_ROUNDS: u32 = 4;
/// Rounds for which a known rate is held.
const HELD_ROUNDS: u32 = 32;
/// Reciprocal of the part of a window whose loss is no congestion. BBRv3 tolerates 2 %.
const TOLERATED: u64 = 64;
/// Fewest packets of a window, as in the kernel, and of a clump.
const WINDOW_MIN: u64 = 2;
/// The kernel's first window (RFC 6928).
const WINDOW_INITIAL: u64 = 10;
/// Most probes that are left out in a row.
const SKIPPED_MAX: u32 = 64;
/// Highest rate: 64-byte packets at 137 Gb/s.
const PPS_MAX: u64 = 1 << 28;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Search,
    Hold,
    Compete,
}

/// A repair in CUBIC's mode (RFC 6937).
#[derive(Debug, Clone, Copy)]
struct Repair {
    flying: u64,
    delivered: u64,
}

/// The control's state.
#[derive(Debug, Clone)]
pub struct Kumi {
    mode: Mode,
    path: Path,
    anchor: Option<Anchor>,
    round: Round,
    before_rtt_us: Option<u64>,
    before_flying: u64,
    deepest_us: u64,
    held: Held,
    /// Reciprocal of a probe's step.
    step: u64,
    skip: u32,
    skipped: u32,
    window: u64,
    pace_pps: u64,
    rtt_min_us: u64,
    rto_us: u64,
    delivered: u64,
    acked_at_us: Option<u64>,
    /// The window after the repair.
    target: u64,
    repair: Option<Repair>,
    route_pps: Option<u64>,
    /// The phase is an all-to-all.
    is_crowded: bool,
    /// The connection's fair share in it.
    share_pps: Option<u64>,
    cubic: Cubic,
}

impl Default for Kumi {
    fn default() -> Self {
        Self {
            mode: Mode::Search,
            path: Path::default(),
            anchor: None,
            round: Round::default(),
            before_rtt_us: None,
            before_flying: 0,
            deepest_us: 0,
            held: Held::default(),
            step: STEP,
            skip: 0,
            skipped: 0,
            window: WINDOW_INITIAL,
            pace_pps: PPS_MAX,
            rtt_min_us: 1,
            rto_us: 0,
            delivered: 0,
            acked_at_us: None,
            target: WINDOW_INITIAL,
            repair: None,
            route_pps: None,
            is_crowded: false,
            share_pps: None,
            cubic: Cubic::default(),
        }
    }
}

impl Kumi {
    /// Returns the control of a connection whose route has had a rate, in packets per second.
    pub fn with_route(pps: u64) -> Self {
        Self {
            route_pps: Some(pps),
            ..Self::default()
        }
    }

    /// Returns the control in an all-to-all.
    pub fn in_all_to_all(mut self) -> Self {
        self.is_crowded = true;
        self
    }

    /// Returns the control with a fair share of the links, in packets per second. The BPF program
    /// has it in bytes per second.
    pub fn with_fair_share(mut self, pps: u64) -> Self {
        self.share_pps = Some(pps);
        self
    }

    /// Sends at the fair share, where no window can express it.
    fn take_share(&mut self, srtt_us: u64) {
        let Some(pps) = self.share_pps.filter(|_| self.is_crowded) else {
            return;
        };
        if packets_of(pps, self.rtt_min_us) < WINDOW_MIN {
            self.window = packets_of(pps, srtt_us) + WINDOW_MIN;
            self.pace_pps = pps;
        }
    }

    /// A longer round trip than this beyond the shortest is a queue, not a clump.
    fn noise_us(&self) -> u64 {
        self.rtt_min_us / TOLERATED + SECOND_US / CLUMPS_PS
    }

    /// Returns whether a window lasts longer than a clump; otherwise a pace has no effect.
    fn is_spaced(&self) -> bool {
        2 * self.rtt_min_us * CLUMPS_PS > SECOND_US
    }

    /// Returns the pace for a rate. In an all-to-all, a rate is that of the connection beside the
    /// others: if a host is late, fewer are active, and it is too low. There the pace is at least
    /// the first window of a new connection (RFC 6928) per shortest round trip.
    fn least_pace(&self, pps: u64) -> u64 {
        match self.is_crowded {
            true => pps.max(WINDOW_INITIAL * SECOND_US / self.rtt_min_us),
            false => pps,
        }
    }

    /// Returns whether a window of `flying` packets overflowed because of the path's rate.
    fn explains(&self, flying: u64) -> bool {
        packets_of(self.path.rate(), self.rtt_min_us) >= (2 * WINDOW_MIN).max(flying / 4)
    }

    /// Times the arrivals of this round.
    fn measure(&mut self, a: &Acknowledgement) {
        if let Some(sample) = a.rate {
            let packets = u64::from(sample.packets);
            let pps = packets * SECOND_US / sample.interval_us;
            self.round.best_pps = self.round.best_pps.max(pps);
            if packets >= TRAIN && sample.interval_us * 7 > sample.sent_us * 8 {
                self.path.note_limit(pps);
            }
            // A program that sends less than the path carries shows what it sends. A rate that is
            // held shows itself, and the highest of many samples a little more.
            let is_higher = self.path.is_bounded && pps > self.path.rate();
            if self.mode != Mode::Hold && (!sample.is_app_limited || is_higher) {
                self.path.note(pps, a.now_us);
            }
        }
        let Some(anchor) = self.anchor else {
            self.round.gap_us = 0;
            let (at_us, last_us, gap_us) = (a.now_us, a.now_us, 0);
            self.anchor = Some(Anchor {
                at_us,
                sent_us: a.sent_us,
                delivered: a.delivered,
                last_us,
                gap_us,
            });
            return;
        };
        let gap_us = anchor.gap_us.max(a.now_us - anchor.last_us);
        self.round.gap_us = gap_us;
        self.anchor = Some(Anchor {
            last_us: a.now_us,
            gap_us,
            ..anchor
        });
        let packets = a.delivered - anchor.delivered;
        let arrived = a.now_us - anchor.at_us;
        let sent = a.sent_us.saturating_sub(anchor.sent_us);
        // A pause of the program ends the train.
        if sent > 2 * SECOND_US * packets / self.pace_pps.max(1) + SECOND_US / CLUMPS_PS {
            self.anchor = None;
            return;
        }
        // Hosts hold acknowledgements back for parts of a millisecond, so a shorter time shows
        // none. A single packet may have waited for a second one before its acknowledgement, unless
        // one before it is missing.
        let has_waited = a.acked < 2 && !a.is_repairing;
        if packets < TRAIN || has_waited || arrived * CLUMPS_PS < SECOND_US {
            return;
        }
        // The longest time between two acknowledgements is how far a rate may be too high. Before a
        // rate is known, it counts.
        let is_first = self.mode == Mode::Search;
        let least_us = match self.mode {
            Mode::Search => 0,
            Mode::Hold => self.rtt_min_us / 8,
            Mode::Compete => train_least_us(self.rtt_min_us),
        };
        if arrived >= least_us {
            let more_us = if is_first { gap_us } else { 0 };
            self.round.train_pps = packets * SECOND_US / (arrived.max(sent) + more_us);
            self.round.train_us = arrived;
            // A long pause between acknowledgements shows a busy host.
            self.round.is_stretched = arrived * 7 > sent * 8 && gap_us * 4 <= arrived;
        }
    }

    fn end_round(&mut self, now_us: u64) {
        // Few packets show no queue: each may wait for a second one before its acknowledgement.
        let has_train = self.round.flying >= TRAIN;
        let rtt_us = self.round.rtt_us.filter(|_| has_train);
        let queue_us = rtt_us.map_or(0, |rtt| rtt - self.rtt_min_us);
        // An eighth of the round trip is a queue on any path (HyStart).
        let eighth_us = if self.path.is_bounded {
            0
        } else {
            self.rtt_min_us / 8
        };
        let has_queue = queue_us > self.noise_us() + eighth_us;
        self.deepest_us = self.deepest_us.max(queue_us);
        if self.round.train_pps > 0 && self.path.is_bounded && self.mode != Mode::Hold {
            self.path.note(self.round.train_pps, now_us);
        } else if self.round.is_stretched && !self.path.is_bounded {
            self.path.agree(self.round.train_pps, now_us);
        }
        if self.round.is_stretched {
            self.path.note_limit(self.round.train_pps);
        }
        match self.mode {
            // The window that caused it.
            Mode::Search if has_queue => self.compete(self.window / 2),
            Mode::Hold => self.end_held_round(now_us),
            Mode::Compete if self.round.flying > self.window / 2 => self.held.rounds += 1,
            _ => self.held.rounds = 0,
        }
        self.before_rtt_us = self.round.rtt_us;
        self.before_flying = self.round.flying;
        self.round = Round {
            until: self.delivered,
            ..Round::default()
        };
        self.anchor = None;
    }

    /// Continues as CUBIC from a window.
    fn compete(&mut self, window: u64) {
        self.mode = Mode::Compete;
        self.held.rounds = 0;
        // The path has shown its limit.
        self.step = STEP;
        self.window = window.max(WINDOW_MIN);
        self.target = self.window;
        self.cubic.resume(self.window as f64);
    }

    /// Cuts the window as CUBIC does.
    fn cut(&mut self) {
        self.window = (self.cubic.cut() as u64).max(WINDOW_MIN);
        self.target = self.window;
        self.cubic.set_window(self.window as f64);
    }

    /// Answers losses while a rate is searched or held.
    fn answer_losses(&mut self, a: &Acknowledgement, lost: u32) {
        let flying = self.round.flying.max(self.before_flying);
        if lost == 0 || self.round.lost <= (flying + TOLERATED / 2) / TOLERATED {
            return;
        }
        let rate = self.path.rate();
        // What arrived of it.
        let arrived_pps = self.round.best_pps.max(self.round.train_pps);
        // The first acknowledgements of a burst show less than its end.
        let share = match self.round.train_pps {
            0 => flying,
            _ => packets_of(arrived_pps, a.rtt_min_us).clamp(flying / 2, flying),
        };
        match self.mode {
            Mode::Search => {
                // A burst that overflows before it could show a rate leaves none.
                self.path.is_bounded |= self.explains(flying);
                self.compete(share);
                self.cut();
            }
            Mode::Hold if flying < packets_of(rate, a.rtt_min_us) / 4 => {
                // A short burst that meets others shows no rate.
                self.show_limit();
                self.compete(flying);
                self.cut();
                (self.path.best_pps, self.path.last_pps) = (rate - rate / 4, 0);
            }
            // The end of the round shows what arrives.
            Mode::Hold if self.held.lost_pps == 0 => {
                // A message that ends with this round has no later one that judges the probe.
                self.held.lost_pps = rate;
                if self.held.is_probing || self.held.probed_pps > 0 {
                    self.held.lost_pps += rate / self.step;
                    self.fail_probe();
                    self.held.probed_pps = 0;
                }
                self.show_limit();
                self.held.is_probing = false;
            }
            _ => {}
        }
    }

    /// Sets the window in a repair: proportional rate reduction. Where nothing is paced, the slow
    /// start bound keeps a burst away from the port.
    fn reduce(&mut self, a: &Acknowledgement, is_paced: bool) {
        let flying = u64::from(a.in_flight_before).max(1);
        let repair = self.repair.get_or_insert(Repair {
            flying,
            delivered: 0,
        });
        let (pipe, acked) = (u64::from(a.in_flight), u64::from(a.acked));
        repair.delivered += acked;
        let more = if pipe > self.target {
            let due = (self.target * repair.delivered).div_ceil(repair.flying);
            due.saturating_sub(a.sent_in_repair)
        } else {
            let due = repair.delivered.saturating_sub(a.sent_in_repair).max(acked);
            match is_paced {
                true => self.target - pipe,
                false => (due + u64::from(a.lost == 0)).min(self.target - pipe),
            }
        };
        let least = u64::from(a.sent_in_repair == 0);
        self.window = (pipe + more.max(least)).max(WINDOW_MIN);
    }

    /// Returns the rate at which acknowledgements clock the window out.
    fn clocked_pps(&self, a: &Acknowledgement) -> u64 {
        self.window * SECOND_US / a.srtt_us
    }

    fn set(&mut self, a: &Acknowledgement) {
        let rate = self.path.rate().max(self.round.train_pps);
        let is_full = u64::from(a.in_flight_before) > self.window / 2;
        match self.mode {
            Mode::Search => {
                if is_full {
                    self.window += u64::from(a.acked);
                }
                self.pace_pps = match self.path.is_bounded {
                    true => rate.min(2 * self.clocked_pps(a)),
                    false if is_full || !self.is_crowded => PPS_MAX,
                    false => 2 * self.clocked_pps(a),
                };
                if self.path.is_bounded && self.window >= packets_of(rate, a.rtt_min_us) {
                    if self.is_spaced() {
                        self.hold(false);
                    } else {
                        self.compete(self.window);
                    }
                }
            }
            Mode::Hold => {
                let pps = self.held_pace();
                self.pace_pps = self.least_pace(pps);
                self.window = self.held_window(pps);
            }
            Mode::Compete => {
                let is_bounded = self.path.is_bounded;
                // Acknowledgements space out a window that has long been full.
                let is_at_once = match is_bounded {
                    true => is_full && self.held.rounds > HELD_ROUNDS,
                    false => is_full || !self.is_crowded,
                };
                if a.is_repairing {
                    self.reduce(a, is_bounded && !is_at_once && self.is_spaced());
                } else {
                    if self.repair.take().is_some() {
                        self.cubic.set_window(self.target as f64);
                    }
                    self.cubic.acknowledge(a);
                    self.window = u64::from(self.cubic.window()).max(WINDOW_MIN);
                }
                // What fits the window leaves at the path's rate.
                let pps = match self.clocked_pps(a) * 5 / 4 {
                    _ if is_at_once => PPS_MAX,
                    clocked_pps if is_full || !is_bounded => clocked_pps,
                    clocked_pps if self.path.is_limited() => rate.max(clocked_pps),
                    clocked_pps => (rate + rate / STEP_LAST).max(clocked_pps),
                };
                self.pace_pps = self.least_pace(pps);
            }
        }
    }
}

impl Control for Kumi {
    fn start(&mut self, now_us: u64) {
        self.end_round(now_us);
        self.round.until = self.delivered + 1;
        if let Some(pps) = self.route_pps.take() {
            // The first data goes at half of the rate that the route has had.
            self.path.note(pps / 2, now_us);
            (self.path.is_bounded, self.step) = (true, 1);
            self.hold(false);
        }
        let is_idle = self.acked_at_us.is_some_and(|at| now_us > at + self.rto_us);
        if is_idle && self.path.is_bounded && self.is_spaced() {
            self.skipped += 1;
            self.hold(true);
            // The second clump leaves half a clump's time early; the round trip takes it back.
            let early_pps = self.pace_pps * SECOND_US / CLUMPS_PS / 2 / self.rtt_min_us;
            self.pace_pps -= early_pps.min(self.pace_pps / STEP);
        }
        self.take_share(self.rtt_min_us);
    }

    fn acknowledge(&mut self, a: &Acknowledgement) {
        self.rto_us = a.srtt_us + 8_000;
        self.acked_at_us = Some(a.now_us);
        self.rtt_min_us = a.rtt_min_us;
        self.delivered = a.delivered;
        self.round.lost += u64::from(a.lost + a.lost_by_timer);
        self.round.flying = self.round.flying.max(u64::from(a.in_flight_before));
        if let Some(rtt_us) = a.rtt_us {
            self.round.rtt_us = Some(self.round.rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
        }
        // The round to which they belong may end now.
        self.answer_losses(a, a.lost_by_timer);
        if self.round.is_over(a, self.mode == Mode::Hold) {
            self.end_round(a.now_us);
        }
        self.measure(a);
        self.answer_losses(a, a.lost);
        self.set(a);
        self.take_share(a.srtt_us);
    }

    fn lose(&mut self, in_flight: u32, _now_us: u64) {
        if self.mode != Mode::Compete {
            return;
        }
        // A path that has shown its queue and is far from it has not lost by congestion.
        let rtt_us = self.round.rtt_us.max(self.before_rtt_us);
        let queue_us = rtt_us.map_or(u64::MAX, |rtt| rtt - self.rtt_min_us);
        let is_empty = self.deepest_us > 2 * self.noise_us() && queue_us < self.deepest_us / 2;
        if is_empty && self.round.lost * TOLERATED <= u64::from(in_flight) {
            self.target = self.window;
            return;
        }
        self.deepest_us -= self.deepest_us / 8;
        self.path.is_bounded |= self.explains(self.window);
        self.repair = None;
        self.cut();
    }

    fn time_out(&mut self, _now_us: u64) {
        if self.mode != Mode::Compete {
            self.compete(self.window);
        }
        self.cut();
        self.cubic.time_out(0);
        self.repair = None;
        self.window = 1;
    }

    fn undo(&mut self) {}

    fn window(&self) -> u32 {
        self.window as u32
    }

    fn pace_pps(&self) -> Option<u64> {
        Some(self.pace_pps.max(100))
    }
}
