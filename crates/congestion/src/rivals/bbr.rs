//! BBR version 1, as in Linux, without the search for a shorter round trip.

use crate::control::{Acknowledgement, Control};

const HIGH_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    Probe,
}

/// BBR's state.
#[derive(Debug, Clone)]
pub struct Bbr {
    mode: Mode,
    /// Rates of the last ten round trips.
    rates: [f64; 10],
    round: usize,
    round_until: u64,
    full: f64,
    full_rounds: u32,
    at: usize,
    at_us: u64,
    rtt_min_us: u64,
    cwnd: f64,
    conserve_until: u64,
    before: f64,
}

impl Default for Bbr {
    fn default() -> Self {
        Self {
            mode: Mode::Startup,
            rates: [0.0; 10],
            round: 0,
            round_until: 0,
            full: 0.0,
            full_rounds: 0,
            at: 2,
            at_us: 0,
            rtt_min_us: 1_000,
            cwnd: 10.0,
            conserve_until: 0,
            before: 10.0,
        }
    }
}

impl Bbr {
    fn rate(&self) -> f64 {
        self.rates.iter().fold(0.0, |a: f64, b| a.max(*b))
    }

    fn gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::Probe => CYCLE[self.at],
        }
    }

    fn bdp(&self) -> f64 {
        self.rate() * self.rtt_min_us as f64 / 1e6
    }
}

impl Control for Bbr {
    fn start(&mut self, _now_us: u64) {}

    fn acknowledge(&mut self, a: &Acknowledgement) {
        self.rtt_min_us = a.rtt_min_us;
        let mut is_round = false;
        let mut is_app_limited = false;
        if let Some(sample) = a.rate {
            is_app_limited = sample.is_app_limited;
            if sample.delivered_before >= self.round_until {
                self.round_until = a.delivered;
                is_round = true;
            }
            let rate = f64::from(sample.packets) * 1e6 / sample.interval_us as f64;
            if is_round && !(is_app_limited && rate < self.rate()) {
                self.round = (self.round + 1) % 10;
                self.rates[self.round] = 0.0;
            }
            if !is_app_limited || rate >= self.rate() {
                self.rates[self.round] = self.rates[self.round].max(rate);
            }
        }
        match self.mode {
            Mode::Startup if is_round && !is_app_limited => {
                if self.rate() >= self.full * 1.25 {
                    (self.full, self.full_rounds) = (self.rate(), 0);
                } else {
                    self.full_rounds += 1;
                    if self.full_rounds >= 3 {
                        self.mode = Mode::Drain;
                    }
                }
            }
            Mode::Drain if f64::from(a.in_flight) <= self.bdp() => {
                (self.mode, self.at, self.at_us) = (Mode::Probe, 2, a.now_us);
            }
            Mode::Probe => {
                let is_over = a.now_us - self.at_us > self.rtt_min_us;
                let is_next = match CYCLE[self.at] {
                    gain if gain > 1.0 => {
                        is_over
                            && (a.lost > 0 || f64::from(a.in_flight_before) >= 1.25 * self.bdp())
                    }
                    gain if gain < 1.0 => is_over || f64::from(a.in_flight_before) <= self.bdp(),
                    _ => is_over,
                };
                if is_next {
                    (self.at, self.at_us) = ((self.at + 1) % 8, a.now_us);
                }
            }
            _ => {}
        }
        if a.delivered < self.conserve_until {
            self.cwnd = f64::from(a.in_flight + a.acked).max(4.0);
            return;
        }
        if self.conserve_until > 0 {
            self.conserve_until = 0;
            self.cwnd = self.cwnd.max(self.before);
        }
        let gain = if self.mode == Mode::Probe {
            2.0
        } else {
            HIGH_GAIN
        };
        let target = gain * self.bdp() + 6.0;
        if self.mode == Mode::Startup {
            if self.cwnd < target || a.delivered < 20 {
                self.cwnd += f64::from(a.acked);
            }
        } else {
            self.cwnd = (self.cwnd + f64::from(a.acked)).min(target);
        }
        self.cwnd = self.cwnd.max(4.0);
    }

    fn lose(&mut self, in_flight: u32, _now_us: u64) {
        self.before = self.cwnd;
        self.conserve_until = self.round_until + 1;
        self.cwnd = f64::from(in_flight.max(1));
    }

    fn time_out(&mut self, _now_us: u64) {
        self.before = self.cwnd;
        self.conserve_until = self.round_until + 1;
        self.cwnd = 1.0;
    }

    fn undo(&mut self) {
        self.cwnd = self.cwnd.max(self.before);
    }

    fn window(&self) -> u32 {
        self.cwnd as u32
    }

    fn pace_pps(&self) -> Option<u64> {
        let rate = self.rate();
        if rate == 0.0 {
            return Some((HIGH_GAIN * 10.0 / 1e-3) as u64);
        }
        Some((rate * self.gain() * 0.99) as u64)
    }
}
