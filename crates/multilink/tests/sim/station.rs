//! A host: an endpoint, driven as the daemon's loop drives it, the kernel queues of its NICs, and
//! the programs that send over the device.

use crate::account::Account;
use crate::frames::{self, device_mac};
use kumi_lab::sim::Node;
use kumi_multilink::endpoint::{Config, Endpoint, Event, LinkConfig, OVERHEAD_BYTES};
use kumi_multilink::liveness::State;
use kumi_multilink::secure::{ClusterKey, Seal};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::rc::Rc;

const UDP_PORT: u16 = 7_000;
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6b75, 0x6d69);
const GROUP_MAC: [u8; 6] = [0x33, 0x33, 0x6b, 0x75, 0x6d, 0x69];
const ETHERNET_BYTES: usize = 14;
/// Length of the Ethernet, IPv6 and UDP headers, in bytes. The fields of the last two stay zero.
const UNDERLAY_BYTES: usize = ETHERNET_BYTES + 48;
/// Bytes that a socket's send buffer accepts before it returns `EAGAIN`.
const SOCKET_BYTES_MAX: u64 = 1_000_000;
/// Bytes of a frame's preamble, check sequence and gap, which the sender does not count.
const FRAMING_BYTES: u64 = 24;
/// Longest time without progress of a held frame, in nanoseconds. The hold is at most 20 ms and is
/// checked every 0.5 ms. A check may find a frame too late by up to two intervals.
const HELD_MAX_NS: u64 = 21_000_000;
/// Bytes that an endpoint may keep for one peer: 24 MB retained, 25 MB held, ledgers and tables.
const PEER_BYTES_MAX: usize = 80_000_000;

/// Rate at which a flow sends.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// A frame whenever the device takes one.
    Backlogged,
    /// A frame at this interval, in nanoseconds, if the device takes it.
    Every(u64),
}

/// A program that sends frames of one flow.
#[derive(Debug)]
pub struct Source {
    pub flow: u16,
    pub pace: Pace,
    /// Range from which the payload sizes are drawn, in bytes.
    pub bytes: std::ops::RangeInclusive<usize>,
    /// Frames still to send; `None` for no end.
    pub remaining: Option<u32>,
    pub next_ns: u64,
}

/// A NIC and the frames that the kernel has queued for it.
#[derive(Debug)]
struct Nic {
    mtu: usize,
    rate_bps: u64,
    claimed_bps: u64,
    has_carrier: bool,
    /// For each queued frame, the time at which it leaves and its bytes as the core counts them.
    departures: VecDeque<(u64, u64)>,
    unsent_bytes: u64,
    is_blocked: bool,
}

impl Nic {
    fn drain(&mut self, now_ns: u64) {
        while let Some(&(at_ns, bytes)) = self.departures.front() {
            if at_ns > now_ns {
                break;
            }
            self.departures.pop_front();
            self.unsent_bytes -= bytes;
        }
        self.is_blocked &= self.unsent_bytes > SOCKET_BYTES_MAX / 2;
    }

    fn push(&mut self, now_ns: u64, frame_bytes: usize) {
        let start_ns = self.departures.back().map_or(now_ns, |(at_ns, _)| *at_ns);
        let wire_bytes = frame_bytes as u64 + FRAMING_BYTES;
        let duration_ns = wire_bytes * 8_000_000_000 / self.rate_bps;
        self.departures
            .push_back((start_ns + duration_ns, frame_bytes as u64));
        self.unsent_bytes += frame_bytes as u64;
        self.is_blocked |= self.unsent_bytes > SOCKET_BYTES_MAX;
    }
}

/// Parameters of a station.
#[derive(Debug, Clone)]
pub struct Setup {
    pub host: usize,
    pub key: [u8; 32],
    pub seal: Seal,
    /// For each NIC its MTU, its rate and the rate that it claims.
    pub nics: Vec<(usize, u64, u64)>,
    /// Reading of the host's clock at the start of the simulation, in nanoseconds.
    pub clock_ns: u64,
}

/// A host in the simulated network.
pub struct Station {
    setup: Setup,
    pub core: Endpoint,
    instance: u64,
    /// Simulated time minus the core's clock, in nanoseconds.
    clock_offset_ns: i64,
    nics: Vec<Nic>,
    /// For each NIC, the cable that is plugged into it.
    cables: Vec<usize>,
    /// For each cable, the MTU of the switch at its other end.
    pub switch_mtus: Vec<usize>,
    out: VecDeque<(usize, Vec<u8>)>,
    pub sources: Vec<Source>,
    turn: usize,
    account: Rc<RefCell<Account>>,
    rng: fastrand::Rng,
    needs_turn: bool,
    due: Cell<Option<u64>>,
    now_ns: u64,
    /// Events, with the simulated time of each.
    pub events: Vec<(u64, Event)>,
    /// Frames that the core refused because it had no path.
    pub refused: u64,
    pub restarts: u32,
    /// Datagrams received, for use by an attacker.
    pub captured: VecDeque<(usize, SocketAddr, Vec<u8>)>,
    pub is_capturing: bool,
    /// Datagrams sent and their bytes, without hellos.
    pub sent_datagrams: u64,
    pub sent_bytes: u64,
}

fn address(host: usize, nic: usize, scope: usize) -> SocketAddr {
    let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, host as u16 + 1, nic as u16);
    SocketAddr::V6(SocketAddrV6::new(ip, UDP_PORT, 0, scope as u32 + 1))
}

fn nic_mac(host: usize, nic: usize) -> [u8; 6] {
    [2, 0, 0, 0, host as u8 + 1, nic as u8]
}

/// Returns the MAC address to which a datagram for `to` is sent.
fn mac_of(to: SocketAddr) -> [u8; 6] {
    let SocketAddr::V6(to) = to else {
        panic!("an IPv4 destination {to}")
    };
    if *to.ip() == GROUP {
        return GROUP_MAC;
    }
    let octets = to.ip().octets();
    [2, 0, 0, 0, octets[13], octets[15]]
}

impl Station {
    pub fn new(setup: Setup, account: Rc<RefCell<Account>>, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nics = setup.nics.iter().map(|(mtu, rate_bps, claimed_bps)| Nic {
            mtu: *mtu,
            rate_bps: *rate_bps,
            claimed_bps: *claimed_bps,
            has_carrier: true,
            departures: VecDeque::new(),
            unsent_bytes: 0,
            is_blocked: false,
        });
        let nics: Vec<Nic> = nics.collect();
        let instance = rng.u64(..);
        let clock_offset_ns = -(setup.clock_ns as i64);
        let mut station = Self {
            core: Self::endpoint(&setup, instance, setup.clock_ns),
            setup,
            instance,
            clock_offset_ns,
            cables: (0..nics.len()).collect(),
            switch_mtus: vec![usize::MAX; nics.len()],
            nics,
            out: VecDeque::new(),
            sources: Vec::new(),
            turn: 0,
            account,
            rng,
            needs_turn: true,
            due: Cell::new(None),
            now_ns: 0,
            events: Vec::new(),
            refused: 0,
            restarts: 0,
            captured: VecDeque::new(),
            is_capturing: false,
            sent_datagrams: 0,
            sent_bytes: 0,
        };
        for nic in 0..station.nics.len() {
            station.add_link(nic, 0);
        }
        station
    }

    fn endpoint(setup: &Setup, instance: u64, clock_ns: u64) -> Endpoint {
        let config = Config {
            node: setup.host as u64 + 1,
            instance,
            name: format!("h{}", setup.host),
            mac: device_mac(setup.host),
            lane: kumi_multilink::lane::Lane::ONLY,
            coalesces_udp: false,
            seal: setup.seal,
            key: ClusterKey::from_bytes(setup.key),
            static_peers: Vec::new(),
        };
        Endpoint::new(config, clock_ns)
    }

    /// Returns the core's clock.
    pub fn clock_ns(&self, now_ns: u64) -> u64 {
        (now_ns as i64 - self.clock_offset_ns) as u64
    }

    fn simulated_ns(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_add_signed(self.clock_offset_ns)
    }

    /// Adds the link of `nic`.
    pub fn add_link(&mut self, nic: usize, now_ns: u64) {
        let config = LinkConfig {
            name: format!("eth{nic}"),
            datagram_bytes_max: self.nics[nic].mtu - 48,
            hello_to: Some(SocketAddr::V6(SocketAddrV6::new(
                GROUP,
                UDP_PORT,
                0,
                nic as u32 + 1,
            ))),
            rate_bps: self.nics[nic].claimed_bps,
            is_rate_fixed: false,
            direct: None,
        };
        let clock_ns = self.clock_ns(now_ns);
        self.core.add_link(nic as u8, config, clock_ns);
        self.core
            .handle_carrier(nic as u8, self.nics[nic].has_carrier, clock_ns);
        self.touch();
    }

    /// Removes the link of `nic`.
    pub fn remove_link(&mut self, nic: usize, now_ns: u64) {
        let clock_ns = self.clock_ns(now_ns);
        self.core.remove_link(nic as u8, clock_ns);
        self.touch();
    }

    pub fn has_link(&self, nic: usize) -> bool {
        self.core.link(nic as u8).is_some()
    }

    /// Restarts the daemon as another instance, whose clock starts at zero.
    pub fn restart(&mut self, now_ns: u64) {
        self.instance = self.rng.u64(..);
        self.clock_offset_ns = now_ns as i64;
        self.core = Self::endpoint(&self.setup, self.instance, 0);
        self.restarts += 1;
        for nic in 0..self.nics.len() {
            self.add_link(nic, now_ns);
        }
    }

    /// Swaps the cables of two NICs. The carrier changes only if it differs between the cables.
    pub fn cross(&mut self, first: usize, second: usize, now_ns: u64) {
        self.cables.swap(first, second);
        let carriers = (self.nics[first].has_carrier, self.nics[second].has_carrier);
        self.follow_carrier(first, carriers.1, now_ns);
        self.follow_carrier(second, carriers.0, now_ns);
    }

    fn follow_carrier(&mut self, nic: usize, has_carrier: bool, now_ns: u64) {
        self.nics[nic].has_carrier = has_carrier;
        if !has_carrier {
            self.nics[nic].departures.clear();
            self.nics[nic].unsent_bytes = 0;
            self.nics[nic].is_blocked = false;
        }
        let clock_ns = self.clock_ns(now_ns);
        self.core.handle_carrier(nic as u8, has_carrier, clock_ns);
        self.touch();
    }

    fn nic_of(&self, cable: usize) -> usize {
        let plugged = self.cables.iter().position(|plugged| *plugged == cable);
        plugged.expect("every cable is plugged in somewhere")
    }

    /// Starts a program.
    pub fn start(&mut self, source: Source) {
        self.sources.push(source);
        self.touch();
    }

    /// Stops all programs.
    pub fn stop(&mut self) {
        self.sources.clear();
    }

    fn touch(&mut self) {
        self.needs_turn = true;
        self.due.set(None);
    }

    /// Returns the state of the path over `nic` to `peer`, if it exists.
    pub fn path(&self, peer: usize, nic: usize) -> Option<kumi_multilink::view::PathView> {
        let peer = self
            .core
            .peers()
            .find(|view| view.node() == peer as u64 + 1)?;
        peer.paths().find(|path| usize::from(path.link) == nic)
    }

    /// Returns whether every path over an added link to each of the other `hosts` is in use.
    pub fn is_connected(&self, hosts: usize) -> bool {
        let is_up = |peer, nic| {
            self.path(peer, nic)
                .is_some_and(|path| path.state == State::Up)
        };
        (0..hosts)
            .filter(|peer| *peer != self.setup.host)
            .all(|peer| (0..self.nics.len()).all(|nic| !self.has_link(nic) || is_up(peer, nic)))
    }

    /// Receives a datagram from the network or from an attacker.
    pub fn receive(&mut self, nic: usize, from: SocketAddr, datagram: &mut [u8], now_ns: u64) {
        let clock_ns = self.clock_ns(now_ns);
        if self.has_link(nic) {
            let _ = self
                .core
                .handle_datagram(nic as u8, from, datagram, clock_ns);
        }
        self.touch();
    }

    /// Returns an address that belongs to no host.
    pub fn stranger(nic: usize) -> SocketAddr {
        address(200, 0, nic)
    }

    /// Delivers to the host the frames that are in order, and checks them.
    fn hand_over(&mut self, now_ns: u64) {
        while let Some(frame) = self.core.poll_frame() {
            self.account
                .borrow_mut()
                .deliver(self.setup.host, frame.as_slice(), now_ns);
            self.core.give_buffer(frame);
        }
        while let Some(event) = self.core.poll_event() {
            self.events.push((now_ns, event));
        }
    }

    /// Runs one turn of the daemon's loop.
    fn take_turn(&mut self, now_ns: u64) {
        let clock_ns = self.clock_ns(now_ns);
        for (number, nic) in self.nics.iter_mut().enumerate() {
            nic.drain(now_ns);
            let link = self.core.link(number as u8);
            if link.is_some_and(|link| link.is_worth_a_look()) {
                self.core
                    .observe_unsent(number as u8, nic.unsent_bytes, clock_ns);
            }
        }
        self.hand_over(now_ns);
        self.take_frames(now_ns);
        if self.core.poll_timeout(clock_ns) <= clock_ns {
            // Handling a timeout may make further work due, as after a path failure or with a new
            // round-trip time.
            let is_done = (0..3).any(|_| {
                self.core.handle_timeout(clock_ns);
                self.core.poll_timeout(clock_ns) > clock_ns
            });
            self.hand_over(now_ns);
            assert!(
                is_done,
                "h{}: the timeout just handled stays due",
                self.setup.host
            );
            self.check(clock_ns);
        }
        self.transmit(now_ns);
    }

    fn check(&self, clock_ns: u64) {
        for peer in self.core.peers() {
            let memory = peer.memory();
            assert!(
                memory.bytes() < PEER_BYTES_MAX,
                "{} keeps {memory:?}",
                self.setup.host
            );
            let held_ns = peer.held_without_progress_ns(clock_ns);
            assert!(
                held_ns <= HELD_MAX_NS,
                "h{}: held {held_ns} ns past progress",
                self.setup.host
            );
        }
    }

    fn is_blocked(&self) -> bool {
        self.nics.iter().any(|nic| nic.is_blocked)
    }

    /// Takes frames from the programs as long as the device accepts them.
    fn take_frames(&mut self, now_ns: u64) {
        let clock_ns = self.clock_ns(now_ns);
        for _ in 0..self.sources.len() * 64 {
            if self.is_blocked() || self.core.frames_wait_until(clock_ns).is_some() {
                return;
            }
            let count = self.sources.len();
            let due = (0..count)
                .map(|step| (self.turn + step) % count)
                .find(|index| {
                    self.sources[*index].next_ns <= now_ns
                        && self.sources[*index].remaining != Some(0)
                });
            let Some(index) = due else { return };
            self.turn = index + 1;
            let source = &mut self.sources[index];
            let bytes = self.rng.usize(source.bytes.clone());
            if let Pace::Every(gap_ns) = source.pace {
                source.next_ns = now_ns + gap_ns;
            }
            let frame = self.account.borrow().next(source.flow, bytes);
            let unroutable = self.core.counters().unroutable;
            let mut buffer = self.core.take_buffer(frame.len());
            buffer.buffer()[..frame.len()].copy_from_slice(&frame);
            self.core.handle_frame(buffer, clock_ns);
            if self.core.counters().unroutable > unroutable {
                self.refused += 1;
                source.next_ns = source.next_ns.max(now_ns + 1_000_000);
                continue;
            }
            source.remaining = source.remaining.map(|count| count - 1);
            self.account.borrow_mut().accept(source.flow, bytes, now_ns);
            self.transmit(now_ns);
        }
    }

    fn transmit(&mut self, now_ns: u64) {
        for number in 0..self.nics.len() {
            while !self.nics[number].is_blocked {
                let Some(batch) = self.core.poll_transmit(number as u8) else {
                    break;
                };
                let to = batch.destination.expect("a batch has a destination");
                for datagram in batch.bytes.chunks(batch.segment_bytes) {
                    let nic = &mut self.nics[number];
                    assert!(
                        datagram.len() + 48 <= nic.mtu,
                        "{} B over MTU {}",
                        datagram.len(),
                        nic.mtu
                    );
                    let mut frame = Vec::with_capacity(UNDERLAY_BYTES + datagram.len());
                    frame.extend(mac_of(to));
                    frame.extend(nic_mac(self.setup.host, number));
                    frame.resize(UNDERLAY_BYTES, 0);
                    frame.extend(datagram);
                    debug_assert_eq!(UNDERLAY_BYTES, OVERHEAD_BYTES);
                    self.sent_datagrams += u64::from(datagram[0] >> 4 != 3);
                    self.sent_bytes += if datagram[0] >> 4 == 3 {
                        0
                    } else {
                        datagram.len() as u64
                    };
                    if nic.has_carrier {
                        nic.push(now_ns, frame.len());
                        let cable = self.cables[number];
                        if frame.len() - ETHERNET_BYTES <= self.switch_mtus[cable] {
                            self.out.push_back((cable, frame));
                        }
                    }
                }
                self.core.transmitted(number as u8);
            }
        }
    }
}

impl Node for Station {
    fn handle_frame(&mut self, now_ns: u64, cable: usize, frame: &[u8]) {
        let nic = self.nic_of(cable);
        let is_ours = frame[..6] == nic_mac(self.setup.host, nic) || frame[..6] == GROUP_MAC;
        let fits = frame.len() <= ETHERNET_BYTES + self.nics[nic].mtu;
        // The kernel detects damaged headers and drops the frame.
        let is_sound = frame[12..UNDERLAY_BYTES].iter().all(|byte| *byte == 0);
        if !is_ours || !fits || !is_sound {
            return;
        }
        let from = address(usize::from(frame[10]) - 1, usize::from(frame[11]), nic);
        let mut datagram = frame[UNDERLAY_BYTES..].to_vec();
        if self.is_capturing && self.captured.len() < 4000 {
            self.captured.push_back((nic, from, datagram.clone()));
        }
        self.receive(nic, from, &mut datagram, now_ns);
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.touch();
    }

    fn poll_timeout(&self) -> Option<u64> {
        if let Some(due_ns) = self.due.get() {
            return Some(due_ns);
        }
        let clock_ns = self.clock_ns(self.now_ns);
        let mut due_ns = self.simulated_ns(self.core.poll_timeout(clock_ns));
        let blocked = self.nics.iter().filter(|nic| nic.is_blocked);
        let drained = blocked
            .filter_map(|nic| nic.departures.get(nic.departures.len() / 2))
            .map(|l| l.0)
            .min();
        let room_at_ns = match (drained, self.core.frames_wait_until(clock_ns)) {
            (Some(at_ns), _) => at_ns,
            (None, Some(wait_ns)) => self.simulated_ns(wait_ns),
            (None, None) => 0,
        };
        due_ns = due_ns.min(drained.unwrap_or(u64::MAX));
        for source in self.sources.iter().filter(|s| s.remaining != Some(0)) {
            due_ns = due_ns.min(source.next_ns.max(room_at_ns));
        }
        let due_ns = due_ns.max(self.now_ns);
        self.due.set(Some(due_ns));
        Some(due_ns)
    }

    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        self.now_ns = now_ns;
        if std::mem::take(&mut self.needs_turn) {
            self.take_turn(now_ns);
            self.due.set(None);
        }
        self.out.pop_front()
    }

    fn handle_carrier(&mut self, now_ns: u64, cable: usize, has_carrier: bool) {
        let nic = self.nic_of(cable);
        self.follow_carrier(nic, has_carrier, now_ns);
    }
}

/// Returns the range of payload sizes for frames of `shape`, in bytes.
pub fn sizes(shape: frames::Shape) -> std::ops::RangeInclusive<usize> {
    match shape {
        frames::Shape::Udp => 18..=1472,
        frames::Shape::Broadcast => 46..=1000,
        frames::Shape::Tcp => 6..=60_000,
        frames::Shape::UdpBurst => 18..=30_000,
    }
}
