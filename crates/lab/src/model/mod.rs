//! The network as pure events: no clock, no socket, no thread, no randomness of its own.
//!
//! ```text
//!            ┌────────── Line ──────────┐            ┌────────── Line ─────────┐
//!  NIC ──────► queue │ transmitter │ wire ──► Switch ─► queue │ transmitter │ wire ──► Receiver
//!  handle_frame  limit    rate     delay,     learns    drop-tail bytes      faults    coalescing
//!                                  faults                                              poll_transmit
//! ```
//!
//! [`crate::sim`] runs it in virtual time; [`crate::emulator`] runs it against the real clock.
//! Events carry the time they were due, so what follows from a late one is not late as well.

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

/// Who models the hosts' NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSide {
    /// The model: transmit queue, rate, receive coalescing.
    Modelled,
    /// The kernel, on the host's side of a veth: frames come paced, and go out at once.
    Kernel,
}

/// A frame for a host.
#[derive(Debug)]
pub struct Delivery {
    /// When it arrives there, in nanoseconds.
    pub at_ns: u64,
    /// The NIC at which it does.
    pub nic: usize,
    /// The frame.
    pub frame: Frame,
}

/// What a host may notice besides frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The carrier of a NIC went down or came up.
    Carrier {
        /// NIC, by its index in [`Topology::nics`].
        nic: usize,
        /// Whether there is one now.
        up: bool,
    },
}

/// What is due at a time.
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
    /// A NIC's delayed interrupt.
    Interrupt { nic: usize, generation: u64 },
}

/// An entry of the event queue; of two at the same time, the one that was entered first is first.
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
    /// Reversed: the heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

/// A network of NICs, switches and links.
#[derive(Debug)]
pub struct Model {
    /// Two a link: `2 × link + side` carries what the end at `side` sends.
    lines: Vec<Line>,
    switches: Vec<Switch>,
    receivers: Vec<Receiver>,
    /// For each NIC, the line it sends into.
    nic_lines: Vec<usize>,
    entries: BinaryHeap<Entry>,
    order: u64,
    delivered: VecDeque<Delivery>,
    events: VecDeque<Event>,
    meter: Option<Meter>,
}

impl Model {
    /// The network that `topology` describes, at rest. Everything random follows from `seed`.
    pub fn new(topology: &Topology, host_side: HostSide, seed: u64) -> Self {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let nic_index = |link: usize, side: usize| {
            topology
                .nics()
                .position(|at| (at.link, at.side) == (link, side))
        };
        let place = |link: usize, side: usize| match &topology.links[link].ends[side] {
            End::Port(switch) => Place::Switch(*switch),
            // Every NIC end is found by construction of `nics`.
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
                    End::Nic(_) => QueueLimit::Elsewhere,
                };
                let mut line = Line::new(place(index, 1 - side), limit, seeds.u64(..));
                line.rate = if limit == QueueLimit::Elsewhere {
                    None
                } else {
                    link.rate
                };
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
            .map(|at| match host_side {
                HostSide::Modelled => {
                    Receiver::new(at.nic.rx_coalesce.ns(), at.nic.rx_coalesce_frames)
                }
                HostSide::Kernel => Receiver::new(0, 1),
            })
            .collect();
        Self {
            meter: None,
            lines,
            switches,
            receivers,
            nic_lines: topology.nics().map(|at| 2 * at.link + at.side).collect(),
            entries: BinaryHeap::new(),
            order: 0,
            delivered: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The host sends `frame` through NIC `nic` (an index into [`Topology::nics`]).
    pub fn handle_frame(&mut self, now_ns: u64, nic: usize, frame: Frame) {
        self.handle_timeout(now_ns);
        self.offer(now_ns, self.nic_lines[nic], frame);
        self.handle_timeout(now_ns);
    }

    /// Lets everything happen that is due by `now_ns`.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while self
            .entries
            .peek()
            .is_some_and(|entry| entry.at_ns <= now_ns)
        {
            let Some(entry) = self.entries.pop() else {
                return;
            };
            self.happen(entry.at_ns, entry.due);
        }
    }

    /// When something is due next, in nanoseconds.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.entries.peek().map(|entry| entry.at_ns)
    }

    /// A frame for a host.
    pub fn poll_transmit(&mut self) -> Option<Delivery> {
        self.delivered.pop_front()
    }

    /// Something a host may notice.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Changes link `link`, seen from its end `side`.
    pub fn change(&mut self, now_ns: u64, link: usize, side: usize, change: &LinkChange) {
        self.handle_timeout(now_ns);
        let (tx, rx) = (2 * link + side, 2 * link + 1 - side);
        for (line, applies) in [
            (tx, change.direction.has_tx()),
            (rx, change.direction.has_rx()),
        ] {
            let is_paced_elsewhere = self.lines[line].is_paced_elsewhere();
            let state = &mut self.lines[line];
            if let (Some(rate), false) = (change.rate, is_paced_elsewhere) {
                state.rate = Some(rate);
            }
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

    /// Changes what the end at `side` of link `link` sends at.
    pub fn set_rate(&mut self, now_ns: u64, link: usize, side: usize, rate: Rate) {
        self.handle_timeout(now_ns);
        self.lines[2 * link + side].rate = Some(rate);
    }

    /// What happened to what the end at `side` of link `link` sent.
    pub fn counters(&self, link: usize, side: usize) -> LineCounters {
        self.lines[2 * link + side].counters
    }

    /// Frames that any queue had no room for.
    pub fn queue_drops(&self) -> u64 {
        self.lines
            .iter()
            .map(|line| line.counters.queue_drops)
            .sum()
    }

    /// Bytes that wait at the end at `side` of link `link`.
    pub fn queue_bytes(&self, link: usize, side: usize) -> u64 {
        self.lines[2 * link + side].queue_bytes()
    }

    /// Frames in queues, on wires and in receive rings: offered, and with no fate yet.
    pub fn frames_inside(&self) -> usize {
        let in_lines: usize = self
            .lines
            .iter()
            .map(|line| line.queue_frames() + usize::from(line.sending.is_some()))
            .sum();
        let on_wires = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.due, Due::Arrival { .. }));
        in_lines + on_wires.count()
    }

    /// Switches the traffic meter on or off. While it is on, [`Model::take_bins`] must be called
    /// now and then, or the bins pile up.
    pub fn set_metering(&mut self, on: bool) {
        self.meter = on.then(|| Meter::new(self.lines.len()));
    }

    /// The meter's bins that ended before `now_ns`; `Bin::line` is `2 × link + side`.
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

    fn happen(&mut self, now_ns: u64, due: Due) {
        match due {
            Due::Sent { line, epoch } => {
                if self.lines[line].epoch == epoch {
                    if let Some(frame) = self.lines[line].sending.take() {
                        self.sent(now_ns, line, frame);
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

    /// Puts `frame` into the queue of `line`, if there is room, and starts the transmitter.
    fn offer(&mut self, now_ns: u64, line: usize, frame: Frame) {
        let state = &mut self.lines[line];
        state.counters.offered += 1;
        if !state.carrier {
            state.counters.cut += 1;
            return;
        }
        // A frame that finds the transmitter idle goes straight into it.
        if state.sending.is_none() && state.queue_frames() == 0 {
            return self.send(now_ns, line, frame);
        }
        let room = state.has_room(&frame)
            && state
                .buffer_of()
                .is_none_or(|switch| self.switches[switch].take_buffer(frame.queue_bytes()));
        if room {
            state.push(frame);
        } else {
            state.counters.queue_drops += 1;
        }
    }

    fn send_next(&mut self, now_ns: u64, line: usize) {
        if let Some(frame) = self.lines[line].pop() {
            if let Some(switch) = self.lines[line].buffer_of() {
                self.switches[switch].give_buffer(frame.queue_bytes());
            }
            self.send(now_ns, line, frame);
        }
    }

    fn send(&mut self, now_ns: u64, line: usize, frame: Frame) {
        let state = &mut self.lines[line];
        let (time_ns, epoch) = (state.send_time_ns(&frame), state.epoch);
        if time_ns == 0 {
            return self.sent(now_ns, line, frame);
        }
        state.sending = Some(frame);
        state.free_at_ns = state.free_at_ns.max(now_ns) + time_ns;
        let at_ns = state.free_at_ns;
        self.enter(at_ns, Due::Sent { line, epoch });
    }

    /// The last bit of `frame` is on the wire.
    fn sent(&mut self, now_ns: u64, line: usize, frame: Frame) {
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
        let on_time_ns = now_ns + state.delay_ns;
        let at_ns = match overtaken_ns {
            Some(late_ns) => on_time_ns + extra_ns + late_ns,
            None => {
                state.last_arrival_ns = state.last_arrival_ns.max(on_time_ns + extra_ns);
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
                Interrupt::At(at_ns) => {
                    let generation = self.receivers[nic].generation;
                    self.enter(at_ns, Due::Interrupt { nic, generation });
                }
                Interrupt::Pending => {}
            },
            Place::Switch(switch) => self.forward(now_ns, switch, line ^ 1, frame),
        }
    }

    /// A frame has come in at the port of `switch` whose outgoing line is `port`.
    fn forward(&mut self, now_ns: u64, switch: usize, port: usize, frame: Frame) {
        let out =
            self.switches[switch].learn_and_look_up(frame.source(), port, frame.destination());
        match out {
            Some(out) if out == port => {}
            Some(out) => self.offer(now_ns, out, frame),
            None => {
                for index in 0..self.switches[switch].ports.len() {
                    let out = self.switches[switch].ports[index];
                    if out != port {
                        self.offer(now_ns, out, frame.clone());
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
            // The end that receives from this line sees its carrier go or come.
            match self.lines[line].to {
                Place::Nic(nic) => self.events.push_back(Event::Carrier { nic, up }),
                Place::Switch(switch) => self.switches[switch].forget(line ^ 1),
            }
        }
    }

    /// Loses everything that waits at or is on `line`.
    fn cut(&mut self, line: usize) {
        self.lines[line].epoch += 1;
        self.lines[line].free_at_ns = 0;
        let sending = self.lines[line].sending.take();
        self.lines[line].counters.cut += u64::from(sending.is_some());
        while let Some(frame) = self.lines[line].pop() {
            self.lines[line].counters.cut += 1;
            if let Some(switch) = self.lines[line].buffer_of() {
                self.switches[switch].give_buffer(frame.queue_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests;
