//! CUBIC (RFC 9438) with HyStart, proportional rate reduction (RFC 6937) and the window's restart
//! after idle time, as in Linux.

use crate::control::{Acknowledgement, Control};

const INITIAL: f64 = 10.0;
const BETA: f64 = 0.7;
const C: f64 = 0.4;
const HYSTART_LOW: f64 = 16.0;

/// CUBIC's state.
#[derive(Debug, Clone)]
pub struct Cubic {
    cwnd: f64,
    ssthresh: f64,
    most: f64,
    epoch_us: Option<u64>,
    origin: f64,
    k_s: f64,
    reno: f64,
    round_until: u64,
    round_min_us: u64,
    train_began_us: u64,
    train_last_us: u64,
    repair: Option<Repair>,
    before: (f64, f64),
    rto_us: u64,
    last_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Repair {
    prior: f64,
    delivered: f64,
    out: f64,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            cwnd: INITIAL,
            ssthresh: f64::INFINITY,
            most: 0.0,
            epoch_us: None,
            origin: 0.0,
            k_s: 0.0,
            reno: 0.0,
            round_until: 0,
            round_min_us: u64::MAX,
            train_began_us: 0,
            train_last_us: 0,
            repair: None,
            before: (0.0, 0.0),
            rto_us: 200_000,
            last_us: 0,
        }
    }
}

impl Cubic {
    /// Continues from a window, in congestion avoidance.
    pub fn resume(&mut self, window: f64) {
        (self.cwnd, self.ssthresh, self.repair, self.epoch_us) = (window, window, None, None);
        self.most = 0.0;
    }

    /// Goes on with a window after a cut, in congestion avoidance.
    pub fn set_window(&mut self, window: f64) {
        (self.cwnd, self.ssthresh, self.repair) = (window, window, None);
    }

    /// Returns the window after a loss.
    pub fn cut(&mut self) -> f64 {
        self.before = (self.cwnd, self.ssthresh);
        self.epoch_us = None;
        self.most = if self.cwnd < self.most {
            self.cwnd * (1.0 + BETA) / 2.0
        } else {
            self.cwnd
        };
        (self.cwnd * BETA).max(2.0)
    }

    fn grow(&mut self, a: &Acknowledgement) {
        let rtt_s = a.rtt_min_us as f64 / 1e6;
        let began_us = *self.epoch_us.get_or_insert_with(|| {
            self.reno = self.cwnd;
            self.k_s = if self.cwnd < self.most {
                ((self.most - self.cwnd) / C).cbrt()
            } else {
                0.0
            };
            self.origin = self.most.max(self.cwnd);
            a.now_us
        });
        let t = (a.now_us - began_us) as f64 / 1e6 + rtt_s - self.k_s;
        let target = self.origin + C * t * t * t;
        let per_ack = if target > self.cwnd {
            (target - self.cwnd) / self.cwnd
        } else {
            0.01 / self.cwnd
        };
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * f64::from(a.acked) / self.cwnd;
        let friendly = if self.reno > self.cwnd {
            (self.reno - self.cwnd) / self.cwnd
        } else {
            0.0
        };
        self.cwnd += f64::from(a.acked) * per_ack.max(friendly).min(0.5);
    }

    fn leave_slow_start(&mut self, a: &Acknowledgement) {
        if a.delivered >= self.round_until {
            self.round_until = a.delivered + u64::from(a.in_flight);
            self.round_min_us = u64::MAX;
            (self.train_began_us, self.train_last_us) = (a.now_us, a.now_us);
        }
        if self.cwnd < HYSTART_LOW {
            return;
        }
        if a.now_us - self.train_last_us < 2_000 {
            self.train_last_us = a.now_us;
            if a.now_us - self.train_began_us > a.rtt_min_us / 2 {
                self.ssthresh = self.cwnd;
            }
        }
        self.round_min_us = self.round_min_us.min(a.rtt_us.unwrap_or(u64::MAX));
        let more_us = (a.rtt_min_us / 8).clamp(4_000, 16_000);
        if self.round_min_us != u64::MAX && self.round_min_us > a.rtt_min_us + more_us {
            self.ssthresh = self.cwnd;
        }
    }
}

impl Control for Cubic {
    fn start(&mut self, now_us: u64) {
        let mut idle_us = now_us.saturating_sub(self.last_us);
        if self.last_us == 0 || idle_us < self.rto_us {
            return;
        }
        self.ssthresh = self.ssthresh.max(self.cwnd * 0.75);
        while idle_us > self.rto_us && self.cwnd > INITIAL {
            self.cwnd /= 2.0;
            idle_us -= self.rto_us;
        }
        self.cwnd = self.cwnd.max(INITIAL);
        self.epoch_us = None;
    }

    fn acknowledge(&mut self, a: &Acknowledgement) {
        self.rto_us = (a.srtt_us + 8_000).max(self.rto_us.min(200_000));
        self.last_us = a.now_us;
        if !a.is_repairing && self.repair.take().is_some() {
            self.cwnd = self.ssthresh;
        }
        if let Some(repair) = &mut self.repair {
            repair.delivered += f64::from(a.acked);
            let pipe = f64::from(a.in_flight);
            let mut more = if pipe > self.ssthresh {
                repair.delivered * self.ssthresh / repair.prior - repair.out
            } else {
                (self.ssthresh - pipe).min(f64::from(a.acked) + f64::from(a.lost).min(1.0))
            };
            more = more.max(0.0);
            repair.out += more;
            self.cwnd = pipe + more.max(if pipe == 0.0 { 1.0 } else { 0.0 });
            return;
        }
        let is_full = f64::from(a.in_flight_before) + 1.0 >= self.cwnd.floor();
        if self.cwnd < self.ssthresh {
            if is_full || f64::from(a.in_flight_before) * 2.0 > self.cwnd {
                self.cwnd = (self.cwnd + f64::from(a.acked)).min(self.ssthresh);
            }
            self.leave_slow_start(a);
        } else if is_full {
            self.grow(a);
        }
    }

    fn lose(&mut self, _in_flight: u32, _now_us: u64) {
        self.ssthresh = self.cut();
        self.repair = Some(Repair {
            prior: self.cwnd,
            delivered: 0.0,
            out: 0.0,
        });
    }

    fn time_out(&mut self, _now_us: u64) {
        self.ssthresh = self.cut();
        self.cwnd = 1.0;
        self.repair = None;
    }

    fn undo(&mut self) {
        (self.cwnd, self.ssthresh) = (self.cwnd.max(self.before.0), self.before.1);
        self.repair = None;
    }

    fn window(&self) -> u32 {
        self.cwnd as u32
    }

    fn pace_pps(&self) -> Option<u64> {
        None
    }
}
