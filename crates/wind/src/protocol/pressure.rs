//! Losses before the receiver's port, which all its senders cause together.
//!
//! ```text
//!   in each interval of two round trips, with 4 senders or more:
//!     missing > packets / 256:  c ← 0.9 f,  f ← max(min(0.7, arrived share) f, 1/256)
//!     otherwise:                c ← min((1 + 10⁻⁷ k) c, 1)
//!                               f ← min(1.02 f, c) after the first reduction; before it,
//!                               f ← min(2 f, c) if n > f N / 2 and n / t > 1.6 m
//!
//!   k  intervals since the last reduction; f begins where the budget is 32 KiB, its ceiling c at 1
//!   n  packets of the interval, t its duration, m the largest n / t before; N  budget in packets
//!
//!   first grant and budget of `credit.rs` are multiplied by f while 4 peers or more send, or want
//!   credit
//! ```
//!
//! The windows of many senders cannot avoid an overflow: each has a datagram at least. Their
//! credit can, and only the receiver sees all of them. With fewer senders the windows suffice, and
//! random losses must not stop them.

/// Senders from which on losses count.
pub const SENDERS_MIN: u32 = 4;

/// Packets for each missing one, above which the credit is reduced.
const PACKETS_PER_LOSS: u64 = 256;

const REDUCTION: f64 = 0.7;
const GROWTH: f64 = 1.02;
/// Growth of the arrivals after which more credit is worth a try. Without it, the link is full. An
/// interval of 16 packets varies by less (`docs/perf-log.md`, 2026-11-26).
const RATE_GROWTH: f64 = 1.6;
const CEILING_REDUCTION: f64 = 0.9;
/// Growth of the ceiling, for each interval since the overflow: a tenth within some seconds, and
/// the whole range within half a minute.
const CEILING_GROWTH: f64 = 1e-7;
const FACTOR_MIN: f64 = 1.0 / 256.0;
/// Credit of all senders together at first, in bytes: most ports have room for it.
const CREDIT_FIRST_BYTES: f64 = 32.0 * 1024.0;

/// Least interval, in ns: on a local network a busy host is late by this much.
const INTERVAL_MIN_NS: u64 = 1_000_000;

/// Observes the packets of all peers.
#[derive(Debug)]
pub struct Pressure {
    factor: f64,
    budget_packets: f64,
    /// The factor was too large above this value.
    ceiling: f64,
    /// Intervals since the last overflow.
    calm: u32,
    has_reduced: bool,
    /// Number of the running interval, from 1.
    interval: u64,
    began_ns: u64,
    packets: u64,
    /// Packets that are missing, without those that arrived late.
    missing: i64,
    senders: u32,
    last_senders: u32,
    /// Most packets per ns of an interval.
    rate: f64,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            factor: 1.0,
            budget_packets: 0.0,
            ceiling: 1.0,
            calm: 0,
            has_reduced: false,
            interval: 1,
            began_ns: 0,
            packets: 0,
            missing: 0,
            senders: 0,
            last_senders: 0,
            rate: 0.0,
        }
    }
}

impl Pressure {
    /// Begins for a budget of `budget_bytes`, in datagrams of `datagram_bytes`.
    pub fn new(budget_bytes: u64, datagram_bytes: u16) -> Self {
        Self {
            factor: (CREDIT_FIRST_BYTES / budget_bytes as f64).min(1.0),
            budget_packets: (budget_bytes / u64::from(datagram_bytes)) as f64,
            ..Self::default()
        }
    }

    /// Returns the share of the credit that the senders may have.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Returns the number of peers that have sent in the running interval, or in the last one.
    pub fn senders(&self) -> usize {
        self.senders.max(self.last_senders) as usize
    }

    /// Takes a packet of a peer, which showed that `missing` earlier ones are missing; a late one
    /// is -1. `counted` is the interval in which the peer was counted last. Returns the running
    /// interval.
    pub fn note(&mut self, counted: u64, missing: i64, rtt_ns: u64, now_ns: u64) -> u64 {
        self.packets += 1;
        // A peer may use any numbers, so the sum may reach the end of the range.
        self.missing = self.missing.saturating_add(missing);
        self.senders += u32::from(counted != self.interval);
        let running = self.interval;
        if now_ns.saturating_sub(self.began_ns) >= (2 * rtt_ns).max(INTERVAL_MIN_NS) {
            self.end(now_ns);
        }
        running
    }

    fn end(&mut self, now_ns: u64) {
        let rate = self.packets as f64 / (now_ns - self.began_ns).max(1) as f64;
        let lost = u64::try_from(self.missing).unwrap_or_default();
        let has_overflow = self.senders >= SENDERS_MIN && lost > self.packets / PACKETS_PER_LOSS;
        self.has_reduced |= has_overflow;
        if has_overflow {
            self.calm = 0;
            self.ceiling = (self.factor * CEILING_REDUCTION).max(FACTOR_MIN);
            let arrived = self.packets as f64 / (self.packets as f64 + lost as f64);
            self.factor = (self.factor * arrived.min(REDUCTION)).max(FACTOR_MIN);
        } else {
            self.calm = self.calm.saturating_add(1);
            let growth = 1.0 + CEILING_GROWTH * f64::from(self.calm);
            self.ceiling = (self.ceiling * growth).min(1.0);
            // Credit that is not used, or that fills the link already, needs no growth.
            let is_used = self.packets as f64 > self.factor * self.budget_packets / 2.0;
            let growth = match self.has_reduced {
                true => GROWTH,
                false if is_used && rate > RATE_GROWTH * self.rate => 2.0,
                false => 1.0,
            };
            self.factor = (self.factor * growth).min(self.ceiling);
        }
        *self = Self {
            factor: self.factor,
            budget_packets: self.budget_packets,
            ceiling: self.ceiling,
            calm: self.calm,
            has_reduced: self.has_reduced,
            interval: self.interval + 1,
            last_senders: self.senders,
            rate: self.rate.max(rate),
            began_ns: now_ns,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One interval with packets of `senders` peers, of which `missing` are missing.
    fn interval(pressure: &mut Pressure, senders: u64, missing: i64, now_ns: &mut u64) {
        for sender in 0..senders {
            let late = if sender == 0 { missing } else { 0 };
            pressure.note(0, late, 0, *now_ns);
        }
        *now_ns += 2 * INTERVAL_MIN_NS;
        pressure.note(pressure.interval, 0, 0, *now_ns);
    }

    #[test]
    fn factor__losses_of_many_senders__falls_and_recovers() {
        let (mut pressure, mut now_ns) = (Pressure::default(), 0);
        for _ in 0..50 {
            interval(&mut pressure, 8, 2, &mut now_ns);
        }
        assert_eq!(pressure.factor(), FACTOR_MIN);
        for _ in 0..12_000 {
            interval(&mut pressure, 8, 0, &mut now_ns);
        }
        assert_eq!(pressure.factor(), 1.0);
    }

    #[test]
    fn factor__gaps_of_any_size__do_not_overflow() {
        let mut pressure = Pressure::default();
        for _ in 0..5 {
            pressure.note(0, i64::MAX / 4, 0, 0);
        }
        pressure.note(0, 0, 0, 2 * INTERVAL_MIN_NS);
        assert!(pressure.factor() > 0.0);
    }

    #[test]
    fn factor__losses_of_few_senders_or_late_packets__stays() {
        let (mut pressure, mut now_ns) = (Pressure::default(), 0);
        for _ in 0..50 {
            interval(&mut pressure, 3, 2, &mut now_ns);
        }
        for _ in 0..50 {
            // Overtaken, and then there.
            pressure.note(0, 3, 0, now_ns);
            for _ in 0..3 {
                pressure.note(0, -1, 0, now_ns);
            }
            interval(&mut pressure, 8, 0, &mut now_ns);
        }
        assert_eq!(pressure.factor(), 1.0);
    }
}
