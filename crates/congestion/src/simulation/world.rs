//! Senders that share a bottleneck, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::path::{Bottleneck, PACKET_BYTES, Path};
use super::sender::{Action, Sender};
use super::stolen::Stolen;

/// Longest delay of an acknowledgement: a tick of the kernel.
const DELACK_NS: u64 = super::sender::TICK_NS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize, u64),
    Receive(usize, u64),
    Flush(usize, u64),
    Acknowledge(usize, usize),
    Wake(usize),
    Begin(usize),
    Change(usize),
}

/// Load of a connection: messages of `packets` each, with a pause after each one.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Time at which the first one is written.
    pub begin_ns: u64,
    /// Packets of a message.
    pub packets: u64,
    /// Number of messages.
    pub messages: usize,
    /// Time between the delivery of a message and the next one.
    pub pause_ns: u64,
}

struct Connection {
    sender: Sender,
    load: Load,
    begun: usize,
    begun_at_ns: u64,
    /// Times that messages took.
    took_ns: Vec<u64>,
    /// Time at which a packet leaves the host's interface.
    host_free_ns: u64,
    arrives_ns: u64,
    pending: Vec<u64>,
    highest: u64,
    flushes: u64,
    acks_at_ns: u64,
    woken_at_ns: u64,
    /// Packets that arrived without a gap, and those behind a gap.
    arrived: u64,
    ahead: std::collections::BTreeSet<u64>,
}

/// The connections of a bottleneck.
pub struct World {
    path: Path,
    bottleneck: Bottleneck,
    connections: Vec<Connection>,
    acknowledgements: Vec<Vec<u64>>,
    free: Vec<usize>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    random: fastrand::Rng,
    changes: Vec<(u64, f64)>,
    /// Time that others take from the processors of the sending hosts and of the receiving ones.
    stolen: [Option<Stolen>; 2],
    /// The time.
    pub now_ns: u64,
}

impl World {
    /// Returns an empty path.
    pub fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            bottleneck: Bottleneck::new(&path),
            connections: Vec::new(),
            acknowledgements: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            random: fastrand::Rng::with_seed(seed),
            changes: Vec::new(),
            stolen: [None; 2],
            now_ns: 0,
        }
    }

    /// Adds a connection.
    pub fn add(&mut self, control: Box<dyn crate::control::Control>, load: Load) -> usize {
        let index = self.connections.len();
        self.connections.push(Connection {
            sender: Sender::new(control),
            load,
            begun: 0,
            begun_at_ns: 0,
            took_ns: Vec::new(),
            host_free_ns: 0,
            arrives_ns: 0,
            pending: Vec::new(),
            highest: 0,
            flushes: 0,
            acks_at_ns: 0,
            woken_at_ns: u64::MAX,
            arrived: 0,
            ahead: std::collections::BTreeSet::new(),
        });
        self.at(load.begin_ns, Event::Begin(index));
        index
    }

    /// Changes the bottleneck's rate at a time.
    pub fn change(&mut self, at_ns: u64, bits_ps: f64) {
        self.changes.push((at_ns, bits_ps));
        self.at(at_ns, Event::Change(self.changes.len() - 1));
    }

    /// Takes this share of the hosts' processors, in slices of this mean length. Meanwhile, a host
    /// neither sends, nor receives, nor notices what arrives.
    pub fn steal(&mut self, share: f64, slice_ns: u64) {
        self.stolen = [Some(Stolen::new(share, slice_ns)); 2];
    }

    fn at(&mut self, time_ns: u64, event: Event) {
        self.order += 1;
        self.events
            .push(Reverse((time_ns.max(self.now_ns), self.order, event)));
    }

    /// Runs until all messages have arrived, or until a time.
    pub fn run(&mut self, until_ns: u64) {
        while let Some(Reverse((time_ns, _, event))) = self.events.peek().copied() {
            if time_ns > until_ns {
                self.now_ns = until_ns;
                return;
            }
            self.events.pop();
            self.now_ns = time_ns;
            let host = match event {
                Event::Begin(_) | Event::Acknowledge(..) | Event::Wake(_) => 0,
                Event::Receive(..) | Event::Flush(..) => 1,
                Event::Arrive(..) | Event::Change(_) => {
                    self.handle(event);
                    continue;
                }
            };
            let stolen = self.stolen[host].as_mut();
            match stolen.and_then(|stolen| stolen.until(time_ns, &mut self.random)) {
                Some(end_ns) => self.at(end_ns, event),
                None => self.handle(event),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(index) => self.begin(index),
            Event::Arrive(index, number) => self.arrive(index, number),
            Event::Receive(index, number) => self.receive(index, number),
            Event::Flush(index, flushes) => {
                if self.connections[index].flushes == flushes {
                    self.flush(index);
                }
            }
            Event::Acknowledge(index, slot) => {
                let numbers = std::mem::take(&mut self.acknowledgements[slot]);
                self.free.push(slot);
                self.act(index, |sender, now, actions| {
                    sender.acknowledge(&numbers, now, actions)
                });
            }
            Event::Wake(index) => {
                self.connections[index].woken_at_ns = u64::MAX;
                self.act(index, Sender::tick);
            }
            Event::Change(at) => self.bottleneck.set_rate(self.changes[at].1),
        }
    }

    fn begin(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let connection = &mut self.connections[index];
        connection.begun += 1;
        connection.begun_at_ns = now_ns;
        connection.sender.write(connection.load.packets);
        self.act(index, |sender, now, actions| sender.send(now, actions));
    }

    fn finish(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let connection = &mut self.connections[index];
        let is_done = connection.begun > connection.took_ns.len()
            && connection.arrived >= connection.load.packets * connection.begun as u64;
        if !is_done {
            return;
        }
        connection.took_ns.push(now_ns - connection.begun_at_ns);
        if connection.begun < connection.load.messages {
            let next_ns = now_ns + connection.load.pause_ns;
            self.at(next_ns, Event::Begin(index));
        }
    }

    fn act(&mut self, index: usize, call: impl FnOnce(&mut Sender, u64, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        let now_ns = self.now_ns;
        call(&mut self.connections[index].sender, now_ns, &mut actions);
        let host_ns = (PACKET_BYTES * 8) as f64 * 1e9 / self.path.host_bits_ps;
        let mut wake_ns = self.connections[index].sender.wake_at_ns();
        for action in actions {
            match action {
                Action::Send(number) => {
                    let connection = &mut self.connections[index];
                    connection.host_free_ns = connection.host_free_ns.max(now_ns) + host_ns as u64;
                    // Without jitter, who meets a full queue would be the same each time.
                    let jitter_ns = self.path.packet_ns() * self.random.f64();
                    let at_ns =
                        (connection.host_free_ns + jitter_ns as u64).max(connection.arrives_ns);
                    connection.arrives_ns = at_ns;
                    self.at(at_ns, Event::Arrive(index, number));
                }
                Action::Wake(at_ns) => wake_ns = wake_ns.min(at_ns),
            }
        }
        if wake_ns < self.connections[index].woken_at_ns {
            self.connections[index].woken_at_ns = wake_ns;
            self.at(wake_ns, Event::Wake(index));
        }
    }

    fn arrive(&mut self, index: usize, number: u64) {
        let Some(left_ns) = self.bottleneck.take(self.now_ns) else {
            return;
        };
        if self.random.f64() < self.path.loss {
            return;
        }
        let mut at_ns = left_ns + self.path.rtt_ns / 2;
        if self.path.late > 0.0 && self.random.f64() < self.path.late {
            at_ns += self.path.rtt_ns / 4;
        }
        self.at(at_ns, Event::Receive(index, number));
    }

    fn receive(&mut self, index: usize, number: u64) {
        let connection = &mut self.connections[index];
        let packet = connection.sender.packet(number);
        if packet == connection.arrived {
            connection.arrived += 1;
            while connection.ahead.remove(&connection.arrived) {
                connection.arrived += 1;
            }
        } else if packet > connection.arrived {
            connection.ahead.insert(packet);
        }
        connection.pending.push(number);
        let is_in_order = number == connection.highest + 1 || number == 0;
        connection.highest = connection.highest.max(number);
        if connection.pending.len() >= 2 || !is_in_order || !connection.ahead.is_empty() {
            self.flush(index);
        } else {
            let flushes = connection.flushes;
            self.at(self.now_ns + DELACK_NS, Event::Flush(index, flushes));
        }
        self.finish(index);
    }

    fn flush(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.acknowledgements.push(Vec::new());
            self.acknowledgements.len() - 1
        });
        let connection = &mut self.connections[index];
        connection.flushes += 1;
        self.acknowledgements[slot] = std::mem::take(&mut connection.pending);
        let mut left_ns = now_ns;
        if self.path.hold_acks_ns > 0 {
            left_ns = left_ns.next_multiple_of(self.path.hold_acks_ns);
        }
        let at_ns = (left_ns + self.path.rtt_ns / 2).max(connection.acks_at_ns);
        connection.acks_at_ns = at_ns;
        self.at(at_ns, Event::Acknowledge(index, slot));
    }

    /// Returns the times that the connection's messages took.
    pub fn took_ns(&self, index: usize) -> &[u64] {
        &self.connections[index].took_ns
    }

    /// Returns the packets of the connection that arrived, without those that did twice.
    pub fn delivered(&self, index: usize) -> u64 {
        self.connections[index].arrived
    }

    /// Returns the connection's window and its pace in packets per second.
    pub fn window(&self, index: usize) -> (u32, Option<u64>) {
        let control = &self.connections[index].sender.control;
        (control.window(), control.pace_pps())
    }

    /// Returns packets sent again, and timeouts.
    pub fn repairs(&self, index: usize) -> (u64, u64) {
        let sender = &self.connections[index].sender;
        (sender.retransmits, sender.timeouts)
    }
}
