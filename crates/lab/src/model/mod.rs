//! Event model of the network, without a clock, a socket, a thread or randomness of its own.
//!
//! ```text
//!            ┌────────── Line ──────────┐            ┌────────── Line ─────────┐
//!  NIC ──────► queue │ transmitter │ wire ──► Switch ─► queue │ transmitter │ wire ──► Receiver
//!  handle_frame  limit    rate     delay,     learns    drop-tail bytes      faults  coalescing
//!                                  faults                                            poll_transmit
//! ```
//!
//! [`crate::sim`] runs the model in virtual time, and [`crate::emulator`] runs it against the real
//! clock. An event carries the time at which it was due. A late event therefore does not make the
//! events that follow from it late.

mod fate;
mod frame;
mod line;
mod meter;
mod receiver;
mod switch;

pub use frame::Frame;
pub use line::{LineCounters, Place};
pub use meter::{BIN_NS, Bin};

use crate::topology::{End, LinkChange, Rate, Topology};
use fate::Fate;
use line::{Line, QueueLimit};
use meter::Meter;
use receiver::{Interrupt, Receiver};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use switch::Switch;

/// Component that models the hosts' NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSide {
    /// The model: transmit queue, rate and receive coalescing.
    Modelled,
    /// The kernel, on the host's side of a veth. A token bucket there has the queue and the rate,
    /// and may send its depth at once. The model then only gives each frame its time on the wire.
    /// Receivers are interrupted at once.
    Kernel,
}

/// Delivery of a frame to a host.
#[derive(Debug)]
pub struct Delivery {
    /// Time of arrival at the host, in nanoseconds.
    pub at_ns: u64,
    /// Receiving NIC, by its index in [`Topology::nics`].
    pub nic: usize,
    /// Frame that is delivered.
    pub frame: Frame,
}

/// Event that a host may notice besides frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The carrier of a NIC went down or came up.
    Carrier {
        /// NIC, by its index in [`Topology::nics`].
        nic: usize,
        /// True if the carrier is up now.
        up: bool,
    },
}

/// Action that is due at a time.
#[derive(Debug)]
enum Due {
    /// The transmitter of a line has finished a frame.
    Sent { line: usize, epoch: u32 },
    /// A frame reaches the end of a line.
    Arrival {
        line: usize,
        epoch: u32,
        frame: Frame,
    },
    /// The delayed interrupt of a NIC is due.
    Interrupt { nic: usize, generation: u64 },
}

/// Entry of the event queue. Entries with the same time are executed in the order of their
/// insertion.
#[derive(Debug)]
struct Entry {
    at_ns: u64,
    order: u64,
    due: Due,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// Reverses the order, so that the earliest entry is the greatest of the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

/// A network of NICs, switches and links.
#[derive(Debug)]
pub struct Model {
    /// Two lines per link. Line `2 × link + side` carries the frames that the end at `side` sends.
    lines: Vec<Line>,
    switches: Vec<Switch>,
    receivers: Vec<Receiver>,
    /// Line that each NIC sends into.
    nic_lines: Vec<usize>,
    entries: BinaryHeap<Entry>,
    order: u64,
    delivered: VecDeque<Delivery>,
    events: VecDeque<Event>,
    meter: Option<Meter>,
}

impl Model {
    /// Creates the network that `topology` describes, at rest. All randomness derives from `seed`.
    pub fn new(topology: &Topology, host_side: HostSide, seed: u64) -> Self {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let nic_index = |link: usize, side: usize| {
            topology
                .nics()
                .position(|position| (position.link, position.side) == (link, side))
        };
        let place = |link: usize, side: usize| match &topology.links[link].ends[side] {
            End::Port(switch) => Place::Switch(*switch),
            // `nics` contains every NIC end, so the index is always found.
            End::Nic(_) => Place::Nic(nic_index(link, side).unwrap_or_default()),
        };
        let mut switches: Vec<Switch> = topology
            .switches
            .iter()
            .map(|switch| Switch::new(switch.shared_buffer.map(|bytes| bytes.get())))
            .collect();
        let mut lines = Vec::with_capacity(topology.links.len() * 2);
        for (index, link) in topology.links.iter().enumerate() {
            for side in 0..2 {
                let limit = match &link.ends[side] {
                    End::Port(switch) => QueueLimit::Port {
                        bytes: link.port_queue_bytes(&topology.switches[*switch]),
                        switch: *switch,
                    },
                    End::Nic(nic) if host_side == HostSide::Modelled => QueueLimit::Nic(nic.queue),
                    End::Nic(_) => QueueLimit::Elsewhere {
                        burst_ns: link.burst.ns(),
                        mtu: link.mtu,
                    },
                };
                let mut line = Line::new(place(index, 1 - side), limit, seeds.u64(..));
                line.rate = link.rate;
                line.delay_ns = link.delay.ns();
                line.faults = link.faults;
                if let End::Port(switch) = link.ends[side] {
                    switches[switch].ports.push(lines.len());
                }
                lines.push(line);
            }
        }
        let receivers = topology
            .nics()
            .map(|position| match host_side {
                HostSide::Modelled => Receiver::new(
                    position.nic.rx_coalesce.ns(),
                    position.nic.rx_coalesce_frames,
                ),
                HostSide::Kernel => Receiver::new(0, 1),
            })
            .collect();
        Self {
            meter: None,
            lines,
            switches,
            receivers,
            nic_lines: topology
                .nics()
                .map(|position| 2 * position.link + position.side)
                .collect(),
            entries: BinaryHeap::new(),
            order: 0,
            delivered: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Accepts `frame`, which the host sends through NIC `nic` (an index into [`Topology::nics`]).
    pub fn handle_frame(&mut self, now_ns: u64, nic: usize, frame: Frame) {
        self.handle_timeout(now_ns);
        self.offer(now_ns, self.nic_lines[nic], frame);
        self.handle_timeout(now_ns);
    }

    /// Executes every event that is due by `now_ns`.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while self
            .entries
            .peek()
            .is_some_and(|entry| entry.at_ns <= now_ns)
        {
            let Some(entry) = self.entries.pop() else {
                return;
            };
            self.execute(entry.at_ns, entry.due);
        }
    }

    /// Returns the time of the next event, in nanoseconds.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.entries.peek().map(|entry| entry.at_ns)
    }

    /// Returns the next frame for a host.
    pub fn poll_transmit(&mut self) -> Option<Delivery> {
        self.delivered.pop_front()
    }

    /// Returns the next event that a host may notice.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Changes link `link`, as seen from its end `side`.
    pub fn change(&mut self, now_ns: u64, link: usize, side: usize, change: &LinkChange) {
        self.handle_timeout(now_ns);
        let (tx, rx) = (2 * link + side, 2 * link + 1 - side);
        for (line, applies) in [
            (tx, change.direction.has_tx()),
            (rx, change.direction.has_rx()),
        ] {
            let state = &mut self.lines[line];
            state.rate = change.rate.or(state.rate);
            if applies {
                state.delay_ns = change.delay.map_or(state.delay_ns, |delay| delay.ns());
                state.faults = change.faults.unwrap_or(state.faults);
                state.is_blackhole = change.blackhole.unwrap_or(state.is_blackhole);
            }
        }
        if let Some(up) = change.carrier {
            self.set_carrier(link, up);
        }
    }

    /// Sets the rate at which the end at `side` of link `link` sends.
    pub fn set_rate(&mut self, now_ns: u64, link: usize, side: usize, rate: Rate) {
        self.handle_timeout(now_ns);
        self.lines[2 * link + side].rate = Some(rate);
    }

    /// Returns the counters of the frames that the end at `side` of link `link` sent.
    pub fn counters(&self, link: usize, side: usize) -> LineCounters {
        self.lines[2 * link + side].counters
    }

    /// Returns the number of frames dropped by full queues, over all lines.
    pub fn queue_drops(&self) -> u64 {
        self.lines
            .iter()
            .map(|line| line.counters.queue_drops)
            .sum()
    }

    /// Returns the number of bytes that wait in the queue at the end `side` of link `link`.
    pub fn queue_bytes(&self, link: usize, side: usize) -> u64 {
        self.lines[2 * link + side].queue_bytes()
    }

    /// Returns the number of frames in queues, in transmitters and on wires. Frames in receive
    /// rings are not counted, because they have arrived.
    pub fn frames_inside(&self) -> usize {
        let line_frames: usize = self
            .lines
            .iter()
            .map(|line| line.queue_frames() + usize::from(line.sending.is_some()))
            .sum();
        let arrivals = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.due, Due::Arrival { .. }));
        line_frames + arrivals.count()
    }

    /// Switches the traffic meter on or off. While it is on, [`Model::take_bins`] must be called
    /// now and then, because the bins accumulate.
    pub fn set_metering(&mut self, on: bool) {
        self.meter = on.then(|| Meter::new(self.lines.len()));
    }

    /// Returns the meter's bins that ended by `now_ns` and were not returned before. `Bin::line` is
    /// `2 × link + side`.
    pub fn take_bins(&mut self, now_ns: u64) -> Vec<Bin> {
        self.meter
            .as_mut()
            .map_or(Vec::new(), |meter| meter.take(now_ns))
    }

    fn enter(&mut self, at_ns: u64, due: Due) {
        self.order += 1;
        self.entries.push(Entry {
            at_ns,
            order: self.order,
            due,
        });
    }

    fn execute(&mut self, now_ns: u64, due: Due) {
        match due {
            Due::Sent { line, epoch } => {
                if self.lines[line].epoch == epoch {
                    if let Some(frame) = self.lines[line].sending.take() {
                        self.handle_sent(now_ns, line, frame);
                    }
                    self.send_next(now_ns, line);
                }
            }
            Due::Arrival { line, epoch, frame } => {
                if self.lines[line].epoch == epoch {
                    self.arrive(now_ns, line, frame);
                } else {
                    self.lines[line].counters.cut += 1;
                }
            }
            Due::Interrupt { nic, generation } => {
                if self.receivers[nic].generation == generation {
                    self.interrupt(now_ns, nic);
                }
            }
        }
    }

    /// Gives `frame` to the transmitter of `line` or its queue, or drops it if the queue is full.
    fn offer(&mut self, now_ns: u64, line: usize, frame: Frame) {
        let state = &mut self.lines[line];
        state.counters.offered += 1;
        if !state.carrier {
            state.counters.cut += 1;
            return;
        }
        // A frame that finds the transmitter idle is transmitted at once.
        if state.sending.is_none() && state.queue_frames() == 0 {
            return self.send(now_ns, line, frame);
        }
        let room = state.has_room(&frame)
            && state
                .buffer_switch()
                .is_none_or(|switch| self.switches[switch].take_buffer(frame.queue_bytes()));
        if room {
            state.push(frame);
        } else {
            state.counters.queue_drops += 1;
        }
    }

    fn send_next(&mut self, now_ns: u64, line: usize) {
        if let Some(frame) = self.lines[line].pop() {
            if let Some(switch) = self.lines[line].buffer_switch() {
                self.switches[switch].give_buffer(frame.queue_bytes());
            }
            self.send(now_ns, line, frame);
        }
    }

    fn send(&mut self, now_ns: u64, line: usize, frame: Frame) {
        let state = &mut self.lines[line];
        let (time_ns, epoch) = (state.send_time_ns(&frame), state.epoch);
        if time_ns == 0 {
            return self.handle_sent(now_ns, line, frame);
        }
        if let Some(bucket_ns) = state.bucket_ns() {
            // The transmitter is never further behind than the bucket is deep. The bucket counts
            // short frames without their framing, so a flood of them would wait ever longer. The
            // frame's fate is drawn now, so a change of the link meanwhile does not affect it.
            let start_ns = state.free_at_ns.clamp(now_ns, now_ns + bucket_ns);
            state.free_at_ns = state.free_at_ns.max(start_ns + time_ns);
            let at_ns = state.free_at_ns;
            return self.handle_sent(at_ns, line, frame);
        }
        state.sending = Some(frame);
        state.free_at_ns = state.free_at_ns.max(now_ns) + time_ns;
        let at_ns = state.free_at_ns;
        self.enter(at_ns, Due::Sent { line, epoch });
    }

    /// Handles the end of the transmission of `frame`: draws its fate and schedules its arrival.
    fn handle_sent(&mut self, now_ns: u64, line: usize, frame: Frame) {
        if let Some(meter) = &mut self.meter {
            meter.count(line, now_ns, frame.queue_bytes());
        }
        let state = &mut self.lines[line];
        if state.is_blackhole {
            state.counters.silenced += 1;
            return;
        }
        let fate = state.dice.draw(&state.faults, frame);
        let Fate::Arrives {
            frame,
            corrupted,
            copies,
            extra_ns,
            overtaken_ns,
        } = fate
        else {
            state.counters.lost += 1;
            return;
        };
        state.counters.corrupted += u64::from(corrupted);
        state.counters.duplicated += u64::from(copies - 1);
        let punctual_ns = now_ns + state.delay_ns;
        let at_ns = match overtaken_ns {
            Some(late_ns) => punctual_ns + extra_ns + late_ns,
            None => {
                state.last_arrival_ns = state.last_arrival_ns.max(punctual_ns + extra_ns);
                state.last_arrival_ns
            }
        };
        let epoch = state.epoch;
        for _ in 1..copies {
            self.enter(
                at_ns,
                Due::Arrival {
                    line,
                    epoch,
                    frame: frame.clone(),
                },
            );
        }
        self.enter(at_ns, Due::Arrival { line, epoch, frame });
    }

    fn arrive(&mut self, now_ns: u64, line: usize, frame: Frame) {
        let state = &mut self.lines[line];
        state.counters.arrived += 1;
        state.counters.arrived_bytes += frame.queue_bytes();
        match state.to {
            Place::Nic(nic) => match self.receivers[nic].push(now_ns, frame) {
                Interrupt::Now => self.interrupt(now_ns, nic),
                Interrupt::Later(at_ns) => {
                    let generation = self.receivers[nic].generation;
                    self.enter(at_ns, Due::Interrupt { nic, generation });
                }
                Interrupt::Pending => {}
            },
            Place::Switch(switch) => self.forward(now_ns, switch, line ^ 1, frame),
        }
    }

    /// Forwards a frame that arrived at the port of `switch` whose outgoing line is `port`.
    fn forward(&mut self, now_ns: u64, switch: usize, port: usize, frame: Frame) {
        let next_line =
            self.switches[switch].learn_and_look_up(frame.source(), port, frame.destination());
        match next_line {
            Some(next_line) if next_line == port => {}
            Some(next_line) => self.offer(now_ns, next_line, frame),
            None => {
                for index in 0..self.switches[switch].ports.len() {
                    let next_line = self.switches[switch].ports[index];
                    if next_line != port {
                        self.offer(now_ns, next_line, frame.clone());
                    }
                }
            }
        }
    }

    fn interrupt(&mut self, now_ns: u64, nic: usize) {
        for frame in self.receivers[nic].drain(now_ns) {
            self.delivered.push_back(Delivery {
                at_ns: now_ns,
                nic,
                frame,
            });
        }
    }

    fn set_carrier(&mut self, link: usize, up: bool) {
        for side in 0..2 {
            let line = 2 * link + side;
            if self.lines[line].carrier == up {
                continue;
            }
            self.lines[line].carrier = up;
            if !up {
                self.cut(line);
            }
            // The end that receives from this line notices the change of its carrier.
            match self.lines[line].to {
                Place::Nic(nic) => self.events.push_back(Event::Carrier { nic, up }),
                Place::Switch(switch) => self.switches[switch].forget(line ^ 1),
            }
        }
    }

    /// Loses every frame that waits at `line` or is in flight on it.
    fn cut(&mut self, line: usize) {
        self.lines[line].epoch += 1;
        self.lines[line].free_at_ns = 0;
        let sending = self.lines[line].sending.take();
        self.lines[line].counters.cut += u64::from(sending.is_some());
        while let Some(frame) = self.lines[line].pop() {
            self.lines[line].counters.cut += 1;
            if let Some(switch) = self.lines[line].buffer_switch() {
                self.switches[switch].give_buffer(frame.queue_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests;
