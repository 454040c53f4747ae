//! An agent: the process `kumi topo probe` on each host while a network is discovered. It answers
//! probes and sends probes on request.
//!
//! It receives requests on its standard input and answers on its standard output, one JSON object
//! per line. So any program that starts programs on hosts will do, and only the port for probes
//! must be open. The process ends with its input.

use super::lldp;
use super::packet::{HEADER_BYTES, Kind, LARGE_BYTES, Packet, SMALL_BYTES};
use anyhow::Context;
use kumi_command::output::Output;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, IoSliceMut, Write};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest numbers of trains kept, the latest ones, and of arrivals kept for each.
const TRAINS_MAX: usize = 64;
const ARRIVALS_MAX: usize = 4096;

/// Time after which a probe without an answer counts as lost. The first value applies until an
/// answer has arrived. After that, the limit is a multiple of the longest round trip, between the
/// least and the first value.
const PONG_LIMIT: Duration = Duration::from_millis(500);
const PONG_LIMIT_FACTOR: u32 = 2;
const PONG_LIMIT_MIN: Duration = Duration::from_millis(20);

/// Send buffer, in bytes. It is small, so that the link holds up the sender of a train.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Arguments of `kumi topo probe`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key that distinguishes this run's probes from others.
    #[arg(long)]
    key: u64,
}

/// A request to an agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Addresses of all agents, and the index of this one.
    Peers {
        own: u32,
        addresses: Vec<SocketAddrV4>,
    },
    /// Pings the peers: number of rounds, payload in bytes and mean pause between two pings.
    Ping {
        peers: Vec<u32>,
        rounds: u32,
        bytes: usize,
        pause_us: u64,
    },
    /// Sends a number of packets to a peer, as fast as the link takes them.
    Train {
        peer: u32,
        number: u32,
        packets: u32,
    },
    /// Returns the arrivals of a train, once no packet of any train has arrived for this time.
    Arrivals { number: u32, quiet_us: u64 },
}

/// An answer of an agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Port and addresses of the agent.
    #[serde(rename = "here")]
    Addresses {
        port: u16,
        addresses: Vec<HostAddress>,
    },
    /// Shortest time of each direction for each peer; `None` if all probes were lost.
    Pinged {
        peers: Vec<(u32, Option<OneWayTimes>)>,
    },
    /// A train has been sent.
    Sent { number: u32 },
    /// Arrivals of a train's packets, in nanoseconds since 1970 by this host's clock.
    #[serde(rename = "came")]
    Arrivals {
        number: u32,
        #[serde(rename = "at_ns")]
        times_ns: Vec<u64>,
    },
}

impl Answer {
    /// Returns the kind of the answer, as it is sent, and the number of its train.
    pub fn label(&self) -> String {
        match self {
            Self::Addresses { .. } => "here".to_owned(),
            Self::Pinged { .. } => "pinged".to_owned(),
            Self::Sent { number } => format!("sent {number}"),
            Self::Arrivals { number, .. } => format!("came {number}"),
        }
    }
}

/// An address of this host.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct HostAddress {
    /// IPv4 address.
    pub address: std::net::Ipv4Addr,
    /// Prefix length of its network.
    pub bits: u8,
    /// Name of the switch behind the interface, where LLDP announces it.
    #[serde(default)]
    pub switch: Option<String>,
}

/// Times of a probe in each direction, in nanoseconds. They contain the offset of the two hosts'
/// clocks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct OneWayTimes {
    /// Time from this host to the peer.
    pub there_ns: i64,
    /// Time from the peer to this host.
    pub back_ns: i64,
}

impl OneWayTimes {
    /// Returns the shorter time of each direction. The two directions meet different queues.
    fn least(self, other: Self) -> Self {
        Self {
            there_ns: self.there_ns.min(other.there_ns),
            back_ns: self.back_ns.min(other.back_ns),
        }
    }
}

/// Received trains.
#[derive(Debug, Default)]
struct Arrivals {
    /// Arrivals of packets, in nanoseconds since 1970, by train number.
    times_ns: BTreeMap<u32, Vec<u64>>,
    /// Arrival of the last packet of any train.
    last: Option<Instant>,
}

type Trains = Arc<Mutex<Arrivals>>;

fn lock(trains: &Trains) -> MutexGuard<'_, Arrivals> {
    trains.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longest wait for a train's queued packets: 1 MB of queues at 8 Mb/s.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

/// Waits until no packet of a train has arrived for `quiet`, but at most for [`QUIET_LIMIT`].
fn await_quiet(trains: &Trains, quiet: Duration) {
    let start = Instant::now();
    while start.elapsed() < QUIET_LIMIT {
        let quiet_start = lock(trains).last.map_or(start, |last| last.max(start));
        let remaining = quiet.saturating_sub(quiet_start.elapsed());
        if remaining.is_zero() {
            return;
        }
        std::thread::sleep(remaining);
    }
}

/// Runs an agent until its input ends.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a UDP port")?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER_BYTES)?;
    let socket = Arc::new(socket);
    let (pong_sender, pong_receiver) = channel();
    let trains = Trains::default();
    let responder = Responder {
        socket: Arc::clone(&socket),
        key: args.key,
        pong_sender,
        trains: Arc::clone(&trains),
    };
    std::thread::spawn(move || responder.run());
    send_answer(&Answer::Addresses {
        port: socket.local_addr()?.port(),
        addresses: own_addresses()?,
    })?;
    let mut agent = Agent {
        socket,
        key: args.key,
        own_index: 0,
        peers: Vec::new(),
        pong_receiver,
        number: 0,
        round_trip_max: None,
    };
    for line in std::io::stdin().lock().lines() {
        match parse_request(&line?)? {
            Request::Peers { own, addresses } => {
                agent.own_index = own;
                agent.peers = addresses;
            }
            Request::Ping {
                peers,
                rounds,
                bytes,
                pause_us,
            } => {
                let bytes = bytes.clamp(SMALL_BYTES, LARGE_BYTES);
                let times = agent.ping(&peers, rounds, bytes, pause_us);
                send_answer(&Answer::Pinged { peers: times })?;
            }
            Request::Train {
                peer,
                number,
                packets,
            } => {
                agent.train(peer, number, packets);
                send_answer(&Answer::Sent { number })?;
            }
            Request::Arrivals { number, quiet_us } => {
                await_quiet(&trains, Duration::from_micros(quiet_us));
                let mut times_ns = lock(&trains).times_ns.remove(&number).unwrap_or_default();
                times_ns.sort_unstable();
                send_answer(&Answer::Arrivals { number, times_ns })?;
            }
        }
    }
    Ok(())
}

fn parse_request(line: &str) -> anyhow::Result<Request> {
    serde_json::from_str(line).with_context(|| {
        format!(
            "invalid request `{line}` on stdin: expected a JSON object of `kumi topo discover`, which starts this command"
        )
    })
}

fn send_answer(answer: &Answer) -> anyhow::Result<()> {
    let mut out = Output;
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

/// Returns the IPv4 addresses of interfaces that are up, without loopback addresses.
fn own_addresses() -> anyhow::Result<Vec<HostAddress>> {
    let mut addresses = Vec::new();
    let neighbours = lldp::neighbours();
    for entry in nix::ifaddrs::getifaddrs()? {
        let v4 = |storage: Option<nix::sys::socket::SockaddrStorage>| {
            storage?.as_sockaddr_in().map(SockaddrIn::ip)
        };
        if let (Some(address), Some(mask)) = (v4(entry.address), v4(entry.netmask)) {
            let is_up = entry.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP);
            if is_up && !address.is_loopback() {
                addresses.push(HostAddress {
                    address,
                    bits: mask.to_bits().leading_ones() as u8,
                    switch: neighbours.get(&entry.interface_name).cloned(),
                });
            }
        }
    }
    Ok(addresses)
}

/// Returns nanoseconds since 1970, by the clock with which the kernel stamps received packets.
fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, ns_of)
}

fn ns_of(time: TimeSpec) -> u64 {
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

struct Agent {
    socket: Arc<UdpSocket>,
    key: u64,
    own_index: u32,
    peers: Vec<SocketAddrV4>,
    pong_receiver: Receiver<(Packet, u64)>,
    number: u32,
    round_trip_max: Option<Duration>,
}

impl Agent {
    fn ping(
        &mut self,
        peers: &[u32],
        rounds: u32,
        bytes: usize,
        pause_us: u64,
    ) -> Vec<(u32, Option<OneWayTimes>)> {
        let mut best: Vec<Option<OneWayTimes>> = vec![None; peers.len()];
        let mut random = now_ns() | 1;
        // Peers take turns, so that a short disturbance affects only one probe of a peer.
        for round in 0..rounds {
            // Without any answer, each probe takes the whole limit. Further rounds would keep the
            // caller waiting longer than it waits for this list.
            if round > 0 && self.round_trip_max.is_none() {
                break;
            }
            for (index, peer) in peers.iter().enumerate() {
                if let Some(times) = self.ping_peer(*peer, bytes) {
                    best[index] = Some(best[index].map_or(times, |current| current.least(times)));
                }
                // The pause is random, from 0.5 to 1.5 times the mean, so that hosts are not in
                // step (xorshift).
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let pause_us = pause_us / 2 + random % pause_us.max(1);
                std::thread::sleep(Duration::from_micros(pause_us));
            }
        }
        peers.iter().copied().zip(best).collect()
    }

    fn ping_peer(&mut self, peer: u32, bytes: usize) -> Option<OneWayTimes> {
        let address = *self.peers.get(peer as usize)?;
        self.number = self.number.wrapping_add(1);
        let ping = Packet {
            kind: Kind::Ping,
            from: self.own_index,
            number: self.number,
            turnaround_ns: 0,
            clock_ns: 0,
        };
        let wire = ping.bytes(self.key, bytes);
        let sent_ns = now_ns();
        self.socket.send_to(&wire, SocketAddr::V4(address)).ok()?;
        let limit = match self.round_trip_max {
            Some(round_trip) => (round_trip * PONG_LIMIT_FACTOR).clamp(PONG_LIMIT_MIN, PONG_LIMIT),
            None => PONG_LIMIT,
        };
        let start = Instant::now();
        let deadline = start + limit;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let (pong, received_ns) = self.pong_receiver.recv_timeout(remaining).ok()?;
            if pong.number == self.number {
                self.round_trip_max = self.round_trip_max.max(Some(start.elapsed()));
                let difference_ns = |from_ns: u64, to_ns: u64| {
                    i64::try_from(i128::from(to_ns) - i128::from(from_ns)).ok()
                };
                return Some(OneWayTimes {
                    there_ns: difference_ns(sent_ns, pong.clock_ns)?,
                    back_ns: difference_ns(
                        pong.clock_ns.checked_add(pong.turnaround_ns)?,
                        received_ns,
                    )?,
                });
            }
        }
    }

    fn train(&self, peer: u32, number: u32, packets: u32) {
        let Some(address) = self.peers.get(peer as usize) else {
            return;
        };
        let packet = Packet {
            kind: Kind::Train,
            from: self.own_index,
            number,
            turnaround_ns: 0,
            clock_ns: 0,
        };
        let wire = packet.bytes(self.key, LARGE_BYTES);
        for _ in 0..packets.min(ARRIVALS_MAX as u32) {
            // A lost packet does not matter. The rate follows from the packets that arrive.
            let _ = self.socket.send_to(&wire, SocketAddr::V4(*address));
        }
    }
}

/// The thread that answers pings and records arrivals.
struct Responder {
    socket: Arc<UdpSocket>,
    key: u64,
    pong_sender: Sender<(Packet, u64)>,
    trains: Trains,
}

impl Responder {
    fn run(self) {
        let mut wire = [0; 2048];
        while let Some((bytes, from, received_ns)) = self.receive(&mut wire) {
            let Some(packet) = Packet::parse(&wire[..bytes], self.key) else {
                continue;
            };
            match packet.kind {
                Kind::Ping => {
                    let pong = Packet {
                        kind: Kind::Pong,
                        turnaround_ns: now_ns().saturating_sub(received_ns),
                        clock_ns: received_ns,
                        ..packet
                    };
                    let answer = pong.bytes(self.key, bytes.max(HEADER_BYTES));
                    let _ = self.socket.send_to(&answer, SocketAddr::V4(from));
                }
                Kind::Pong => {
                    if self.pong_sender.send((packet, received_ns)).is_err() {
                        return;
                    }
                }
                Kind::Train => {
                    let mut record = lock(&self.trains);
                    record.last = Some(Instant::now());
                    let trains = &mut record.times_ns;
                    if trains.len() == TRAINS_MAX && !trains.contains_key(&packet.number) {
                        trains.pop_first();
                    }
                    let arrivals = trains.entry(packet.number).or_default();
                    if arrivals.len() < ARRIVALS_MAX {
                        arrivals.push(received_ns);
                    }
                }
            }
        }
    }

    /// Returns a datagram's length, its sender and the kernel's receive time.
    fn receive(&self, wire: &mut [u8]) -> Option<(usize, SocketAddrV4, u64)> {
        loop {
            let mut parts = [IoSliceMut::new(wire)];
            let mut control = nix::cmsg_space!(TimeSpec);
            let received = recvmsg::<SockaddrIn>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::empty(),
            );
            match received {
                Ok(received) => {
                    let stamp = received.cmsgs().ok()?.find_map(|message| match message {
                        ControlMessageOwned::ScmTimestampns(time) => Some(ns_of(time)),
                        _ => None,
                    });
                    let from = received.address?;
                    let from = SocketAddrV4::new(from.ip(), from.port());
                    return Some((received.bytes, from, stamp.unwrap_or_else(now_ns)));
                }
                // An earlier probe was refused by a peer (ICMP).
                Err(nix::errno::Errno::EINTR | nix::errno::Errno::ECONNREFUSED) => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request__not_from_discover__is_named_with_what_is_accepted() {
        for (line, reason) in [
            ("hello", "expected value at line 1 column 1"),
            (
                r#"{"pong":{}}"#,
                "unknown variant `pong`, expected one of `peers`, `ping`, `train`, `arrivals`",
            ),
            (r#"{"peers":{"own":0}}"#, "missing field `addresses`"),
        ] {
            let message = format!("{:#}", parse_request(line).unwrap_err());
            let start = format!(
                "invalid request `{line}` on stdin: expected a JSON object of `kumi topo discover`, \
                 which starts this command: {reason}"
            );
            assert!(message.starts_with(&start), "{message}");
        }
    }
}
