//! Endpoints on a simulated network with delay, loss, duplication and reordering.

use crate::protocol::endpoint::{Config, Endpoint, Event};
use crate::protocol::testing::Memory;
use fastrand::Rng;
use kumi_multilink::secure::Seal;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Faults of the network.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Share of datagrams that are lost.
    pub loss: f64,
    /// Share of datagrams that arrive twice.
    pub duplication: f64,
    /// Share of datagrams that are delayed by up to `late_ns`.
    pub reordering: f64,
    pub late_ns: u64,
}

impl Faults {
    pub const NONE: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        late_ns: 0,
    };
}

/// One-way time of the network, in ns, unless a test sets another.
pub const DELAY_NS: u64 = 20_000;

type Flight = Reverse<(u64, u64, usize, usize, Vec<u8>)>;

/// Endpoints, their memory, and datagrams in flight. Addresses are indices.
pub struct World {
    pub endpoints: Vec<Endpoint<usize>>,
    pub memories: Vec<Memory>,
    pub now_ns: u64,
    pub faults: Faults,
    pub rng: Rng,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Time at which each receiver's link is free, in ns, and its rate in bytes per ns.
    link_free_ns: Vec<u64>,
    pub rate: f64,
    /// One-way time, in ns.
    pub delay_ns: u64,
    /// Longest datagram that the network carries, in bytes.
    pub mtu_bytes: usize,
    /// Bytes that fit the port in front of a receiver.
    pub port_bytes: u64,
    /// Datagrams that the port dropped.
    pub dropped: u64,
    flights: BinaryHeap<Flight>,
    order: u64,
}

impl World {
    pub fn new(count: usize, seed: u64, faults: Faults, set: impl Fn(&mut Config)) -> Self {
        let endpoint = |index: usize| {
            let mut config = Config::new([3; 32], (index as u64 + 1) << 32 | seed);
            config.seal = Seal::Plain;
            set(&mut config);
            Endpoint::new(config)
        };
        Self {
            endpoints: (0..count).map(endpoint).collect(),
            memories: vec![Memory::new(1 << 16); count],
            now_ns: 0,
            faults,
            rng: Rng::with_seed(seed),
            sent: 0,
            link_free_ns: vec![0; count],
            rate: 1.25,
            delay_ns: DELAY_NS,
            mtu_bytes: 1452,
            port_bytes: 1 << 20,
            dropped: 0,
            flights: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Replaces an endpoint, as a restart of its process does.
    pub fn restart(&mut self, index: usize, config: Config) {
        self.endpoints[index] = Endpoint::new(config);
    }

    fn launch(&mut self, from: usize, to: usize, datagram: &[u8]) {
        self.sent += 1;
        // An address that nobody has, as a forged one.
        if to >= self.endpoints.len() || datagram.len() > self.mtu_bytes {
            return;
        }
        let copies = 1 + usize::from(self.rng.f64() < self.faults.duplication);
        for _ in 0..copies {
            if self.rng.f64() < self.faults.loss {
                continue;
            }
            let bytes = datagram.len() as u64 + 66;
            let arrives_ns = self.now_ns + self.delay_ns;
            let free_ns = self.link_free_ns[to].max(arrives_ns);
            let queued_bytes = (free_ns - arrives_ns) as f64 * self.rate;
            if queued_bytes as u64 + bytes > self.port_bytes {
                self.dropped += 1;
                continue;
            }
            let through_ns = free_ns + (bytes as f64 / self.rate) as u64;
            self.link_free_ns[to] = through_ns;
            let late = self.rng.f64() < self.faults.reordering;
            let late_ns = if late {
                self.rng.u64(..=self.faults.late_ns)
            } else {
                0
            };
            self.order += 1;
            let flight = (
                through_ns + late_ns,
                self.order,
                from,
                to,
                datagram.to_vec(),
            );
            self.flights.push(Reverse(flight));
        }
    }

    /// Sends everything that the endpoints have to send now.
    pub fn transmit(&mut self) {
        let mut out = Vec::new();
        for from in 0..self.endpoints.len() {
            loop {
                out.clear();
                let now_ns = self.now_ns;
                let Some(to) = self.endpoints[from].poll_transmit(now_ns, &mut out) else {
                    break;
                };
                self.launch(from, to, &out);
            }
        }
    }

    /// Advances to the next arrival or timeout up to `end_ns`. Returns false if nothing happens
    /// until then.
    pub fn step(&mut self, end_ns: u64) -> bool {
        self.transmit();
        let arrival = self.flights.peek().map(|Reverse(flight)| flight.0);
        let timeout = self.endpoints.iter().filter_map(Endpoint::timeout_ns).min();
        let next = [arrival, timeout].into_iter().flatten().min();
        let Some(next_ns) = next.filter(|next_ns| *next_ns <= end_ns) else {
            return false;
        };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(Reverse(flight)) = self.flights.peek() {
            if flight.0 > self.now_ns {
                break;
            }
            let Some(Reverse((_, _, from, to, mut datagram))) = self.flights.pop() else {
                break;
            };
            let memory = &mut self.memories[to];
            self.endpoints[to].handle_datagram(from, &mut datagram, memory, self.now_ns);
        }
        for (endpoint, memory) in self.endpoints.iter_mut().zip(&mut self.memories) {
            endpoint.handle_timeout(memory, self.now_ns);
        }
        true
    }

    /// Steps until `is_done`, and takes all events.
    pub fn run_until(
        &mut self,
        end_ns: u64,
        mut note: impl FnMut(&World, usize, Event) -> bool,
    ) -> bool {
        loop {
            for index in 0..self.endpoints.len() {
                while let Some(event) = self.endpoints[index].poll_event() {
                    if note(self, index, event) {
                        return true;
                    }
                }
            }
            if !self.step(end_ns) {
                return false;
            }
        }
    }
}
