//! A TCP sender: selective acknowledgements, loss by time (RFC 8985), timeouts, samples of the
//! delivery rate, and pacing in clumps, as the Linux kernel has them.

use std::collections::VecDeque;

use crate::control::{Acknowledgement, Control, RateSample};

/// The kernel's tick.
pub const TICK_NS: u64 = 4_000_000;
/// Floor of the retransmission timeout: two ticks.
const RTO_MIN_NS: u64 = 2 * TICK_NS;
/// The kernel sends a 1024th of a second of the pacing rate at once.
const CLUMPS_PS: u64 = 1024;
const CLUMP_MIN: u32 = 2;
/// Packets of 64 KiB.
const CLUMP_MAX: u32 = 44;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Flying,
    Delivered,
    Lost,
}

/// One departure of a packet.
#[derive(Debug, Clone, Copy)]
struct Departure {
    packet: u64,
    sent_ns: u64,
    state: State,
    is_again: bool,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    is_app_limited: bool,
}

/// Request of a sender to its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send the departure of this number.
    Send(u64),
    /// Call `tick` at this time.
    Wake(u64),
}

/// A sender of one connection.
pub struct Sender {
    /// Its congestion control.
    pub control: Box<dyn Control>,
    departures: VecDeque<Departure>,
    first: u64,
    /// All departures before this one have been delivered or lost.
    oldest: u64,
    /// Packets of the stream that have been delivered, by number from `done`.
    arrived: VecDeque<bool>,
    /// Packets delivered without a gap.
    pub done: u64,
    /// Packets that the program has written.
    pub written: u64,
    next: u64,
    lost: VecDeque<u64>,
    /// Packets in flight.
    pub in_flight: u32,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    app_limited_until: u64,
    newest: Option<(u64, u64)>,
    is_reordered: bool,
    srtt_ns: u64,
    var_ns: u64,
    rtt_min_ns: u64,
    repair_until: Option<u64>,
    sent_in_repair: u64,
    next_send_ns: u64,
    rto_at_ns: u64,
    probe_at_ns: u64,
    backoff: u32,
    /// Packets sent again.
    pub retransmits: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
}

impl Sender {
    /// Returns a sender that has sent nothing.
    pub fn new(control: Box<dyn Control>) -> Self {
        Self {
            control,
            departures: VecDeque::new(),
            first: 0,
            oldest: 0,
            arrived: VecDeque::new(),
            done: 0,
            written: 0,
            next: 0,
            lost: VecDeque::new(),
            in_flight: 0,
            delivered: 0,
            delivered_ns: 0,
            first_sent_ns: 0,
            app_limited_until: 0,
            newest: None,
            is_reordered: false,
            srtt_ns: 0,
            var_ns: 0,
            rtt_min_ns: u64::MAX,
            repair_until: None,
            sent_in_repair: 0,
            next_send_ns: 0,
            rto_at_ns: u64::MAX,
            probe_at_ns: u64::MAX,
            backoff: 0,
            retransmits: 0,
            timeouts: 0,
        }
    }

    /// Writes packets to the connection.
    pub fn write(&mut self, packets: u64) {
        self.written += packets;
    }

    fn rto_ns(&self) -> u64 {
        if self.srtt_ns == 0 {
            return 1_000_000_000;
        }
        (self.srtt_ns + (4 * self.var_ns).max(RTO_MIN_NS)).next_multiple_of(TICK_NS)
    }

    fn arm(&mut self, now_ns: u64) {
        if self.in_flight == 0 && self.lost.is_empty() {
            (self.rto_at_ns, self.probe_at_ns) = (u64::MAX, u64::MAX);
            return;
        }
        self.rto_at_ns = now_ns + (self.rto_ns() << self.backoff.min(8));
        self.probe_at_ns = if self.repair_until.is_none() && self.srtt_ns != 0 {
            (now_ns + 2 * self.srtt_ns + 2 * TICK_NS).min(self.rto_at_ns - 1)
        } else {
            u64::MAX
        };
    }

    /// Returns when `tick` has something to do.
    pub fn wake_at_ns(&self) -> u64 {
        self.rto_at_ns.min(self.probe_at_ns)
    }

    fn depart(&mut self, packet: u64, is_again: bool, now_ns: u64) -> u64 {
        if self.in_flight == 0 {
            (self.delivered_ns, self.first_sent_ns) = (now_ns, now_ns);
        }
        self.departures.push_back(Departure {
            packet,
            sent_ns: now_ns,
            state: State::Flying,
            is_again,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            is_app_limited: self.app_limited_until > self.delivered,
        });
        self.in_flight += 1;
        self.sent_in_repair += 1;
        self.retransmits += u64::from(is_again);
        self.first + self.departures.len() as u64 - 1
    }

    fn next_packet(&mut self) -> Option<(u64, bool)> {
        while let Some(packet) = self.lost.pop_front() {
            let is_gone = packet < self.done || self.arrived[(packet - self.done) as usize];
            if !is_gone {
                return Some((packet, true));
            }
        }
        if self.next < self.written {
            self.next += 1;
            self.arrived.push_back(false);
            return Some((self.next - 1, false));
        }
        None
    }

    /// Sends what window and pace allow.
    pub fn send(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        loop {
            if self.lost.is_empty() && self.next == self.written {
                self.app_limited_until = (self.delivered + u64::from(self.in_flight)).max(1);
                return;
            }
            let room = self.control.window().saturating_sub(self.in_flight);
            if room == 0 {
                return;
            }
            if now_ns < self.next_send_ns && self.control.pace_pps().is_some() {
                actions.push(Action::Wake(self.next_send_ns));
                return;
            }
            let is_start = self.in_flight == 0 && self.lost.is_empty();
            let pace = self.control.pace_pps();
            let clump = pace.map_or(CLUMP_MAX, |pps| {
                u32::try_from(pps / CLUMPS_PS)
                    .unwrap_or(CLUMP_MAX)
                    .clamp(CLUMP_MIN, CLUMP_MAX)
            });
            let mut sent = 0;
            while sent < clump.min(room) {
                let Some((packet, is_again)) = self.next_packet() else {
                    break;
                };
                let departure = self.depart(packet, is_again, now_ns);
                if sent == 0 && is_start {
                    self.control.start(now_ns / 1000);
                }
                actions.push(Action::Send(departure));
                sent += 1;
            }
            if let Some(pps) = self.control.pace_pps() {
                // A clump that is late, or the first one after a pause, lets the next one leave
                // earlier, by up to half of its time (`tcp_update_skb_after_send`).
                let clump_ns = u64::from(sent) * 1_000_000_000 / pps.max(1);
                let late_ns = now_ns.saturating_sub(self.next_send_ns);
                self.next_send_ns =
                    self.next_send_ns.max(now_ns) + clump_ns - late_ns.min(clump_ns / 2);
            }
            if self.rto_at_ns == u64::MAX && sent > 0 {
                self.arm(now_ns);
            }
        }
    }

    /// Handles timers that have expired.
    pub fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if now_ns >= self.rto_at_ns {
            self.timeouts += 1;
            self.backoff += 1;
            for at in 0..self.departures.len() {
                if self.departures[at].state == State::Flying {
                    self.lose(at);
                }
            }
            self.repair_until = Some(self.next);
            self.control.time_out(now_ns / 1000);
            self.arm(now_ns);
        } else if now_ns >= self.probe_at_ns {
            self.probe_at_ns = u64::MAX;
            let last = self
                .departures
                .iter()
                .rev()
                .find(|d| d.state == State::Flying);
            if let Some(packet) = last.map(|d| d.packet) {
                let departure = self.depart(packet, true, now_ns);
                actions.push(Action::Send(departure));
            }
        }
        self.send(now_ns, actions);
    }

    fn lose(&mut self, at: usize) {
        let departure = &mut self.departures[at];
        departure.state = State::Lost;
        let packet = departure.packet;
        self.in_flight -= 1;
        if packet >= self.done && !self.arrived[(packet - self.done) as usize] {
            self.lost.push_back(packet);
        }
    }

    fn find_lost(&mut self, now_ns: u64) -> u32 {
        let Some((newest, rtt_ns)) = self.newest else {
            return 0;
        };
        let late_ns = if self.is_reordered {
            self.rtt_min_ns / 4
        } else {
            0
        };
        let mut lost = 0;
        for number in self.oldest.max(self.first)..newest {
            let at = (number - self.first) as usize;
            let departure = self.departures[at];
            if departure.state == State::Flying {
                let is_behind = newest - number >= 3 || self.repair_until.is_some();
                if !is_behind || departure.sent_ns + rtt_ns + late_ns > now_ns {
                    break;
                }
                self.lose(at);
                lost += 1;
            }
            self.oldest = number + 1;
        }
        lost
    }

    fn note_rtt(&mut self, rtt_ns: u64) {
        self.rtt_min_ns = self.rtt_min_ns.min(rtt_ns);
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.var_ns) = (rtt_ns, rtt_ns / 2);
            return;
        }
        self.var_ns = (3 * self.var_ns + self.srtt_ns.abs_diff(rtt_ns)) / 4;
        self.srtt_ns = (7 * self.srtt_ns + rtt_ns) / 8;
    }

    /// Takes an acknowledgement of departures.
    pub fn acknowledge(&mut self, numbers: &[u64], now_ns: u64, actions: &mut Vec<Action>) {
        let in_flight_before = self.in_flight;
        let mut acked = 0;
        let mut newest: Option<Departure> = None;
        let mut is_undone = false;
        for &number in numbers {
            let Some(at) = number.checked_sub(self.first).map(|at| at as usize) else {
                continue;
            };
            let departure = self.departures[at];
            match departure.state {
                State::Delivered => continue,
                State::Lost => (self.is_reordered, is_undone) = (true, true),
                State::Flying => self.in_flight -= 1,
            }
            self.departures[at].state = State::Delivered;
            let packet = departure.packet;
            let is_new = packet >= self.done && !self.arrived[(packet - self.done) as usize];
            if is_new {
                self.arrived[(packet - self.done) as usize] = true;
                acked += 1;
                self.delivered += 1;
                self.delivered_ns = now_ns;
            }
            if self.newest.is_none_or(|(n, _)| number > n) {
                self.newest = Some((number, now_ns - departure.sent_ns));
            }
            if newest.is_none_or(|n| departure.sent_ns >= n.sent_ns) {
                newest = Some(departure);
            }
        }
        while self.arrived.front() == Some(&true) {
            self.arrived.pop_front();
            self.done += 1;
        }
        let Some(newest) = newest else { return };
        self.first_sent_ns = newest.sent_ns;
        let rtt_ns = (!newest.is_again).then_some(now_ns - newest.sent_ns);
        if let Some(rtt_ns) = rtt_ns {
            self.note_rtt(rtt_ns);
        }
        let us = |ns: u64| ns / 1000;
        let sent_us = us(newest.sent_ns) - us(newest.first_sent_ns);
        let interval_us = sent_us.max(us(now_ns) - us(newest.delivered_ns));
        let is_valid = acked > 0 && interval_us >= us(self.rtt_min_ns).max(1);
        let rate = is_valid.then(|| RateSample {
            packets: (self.delivered - newest.delivered) as u32,
            interval_us,
            sent_us,
            is_app_limited: newest.is_app_limited,
            delivered_before: newest.delivered,
        });
        let lost = self.find_lost(now_ns);
        while self
            .departures
            .front()
            .is_some_and(|d| d.state != State::Flying)
            && self.departures.len() > 65_536
        {
            self.departures.pop_front();
            self.first += 1;
        }
        if self.repair_until.is_some_and(|until| self.done >= until) {
            self.repair_until = None;
        }
        if is_undone && self.repair_until.is_some() && lost == 0 && self.lost.is_empty() {
            self.repair_until = None;
            self.control.undo();
        }
        if lost > 0 && self.repair_until.is_none() {
            self.repair_until = Some(self.next);
            self.sent_in_repair = 0;
            self.control.lose(self.in_flight, now_ns / 1000);
        }
        self.backoff = 0;
        self.control.acknowledge(&Acknowledgement {
            now_us: us(now_ns),
            rtt_us: rtt_ns.map(us),
            sent_us: us(newest.sent_ns),
            rtt_min_us: us(self.rtt_min_ns).max(1),
            srtt_us: us(self.srtt_ns).max(1),
            acked,
            lost,
            lost_by_timer: 0,
            delivered: self.delivered,
            in_flight: self.in_flight,
            in_flight_before,
            rate,
            is_repairing: self.repair_until.is_some(),
            sent_in_repair: self.sent_in_repair,
        });
        self.arm(now_ns);
        self.send(now_ns, actions);
    }

    /// Returns the packet of a departure.
    pub fn packet(&self, number: u64) -> u64 {
        self.departures[(number - self.first) as usize].packet
    }
}
