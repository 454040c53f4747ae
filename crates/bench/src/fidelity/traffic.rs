//! Open-loop traffic, the same in a running lab and in the simulation.
//!
//! A stream is a number of datagrams of one size at one pace. The results are the datagrams that
//! arrived and their times. Nothing reacts to the traffic, so real time and virtual time must give
//! the same results.

use anyhow::Context;
use kumi_lab::{Cluster, Node, Sim, Topology};
use kumi_sys::punctual;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of headers around a datagram's payload: Ethernet 14, IPv4 20, UDP 8.
pub const HEADER_BYTES: usize = 42;

/// Bytes of payload that fill a frame of MTU 1500.
pub const FULL_PAYLOAD_BYTES: usize = 1472;

/// Lowest port of the streams' receivers.
const PORT_BASE: u16 = 40_000;

/// Number of an opening datagram, which resolves addresses and teaches the switches.
const OPENER: u32 = u32::MAX;

/// A number of datagrams from one host to another.
#[derive(Debug, Clone, Copy)]
pub struct DatagramStream {
    /// Index of the sending host.
    pub from: usize,
    /// Index of the receiving host.
    pub to: usize,
    /// Number of datagrams.
    pub frames: u32,
    /// Payload of each datagram, in bytes, at least 16.
    pub payload_bytes: usize,
    /// Time between two datagrams, in nanoseconds. With 0 they are sent as fast as the NIC takes
    /// them.
    pub gap_ns: u64,
}

/// Datagrams of a stream that arrived.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    /// Send and arrival time of each datagram, in nanoseconds.
    pub times_ns: Vec<(u64, u64)>,
}

impl Arrivals {
    /// Returns the number of datagrams that arrived.
    pub fn frames(&self) -> f64 {
        self.times_ns.len() as f64
    }

    /// Returns the datagrams per second between the first and the last arrival. The first `skip`
    /// arrivals are left out, so that a token bucket's savings do not count as its rate.
    pub fn frames_per_s(&self, skip: usize) -> f64 {
        let steady = self.times_ns.get(skip..).unwrap_or(&[]);
        match (steady.first(), steady.last()) {
            (Some(first), Some(last)) if last.1 > first.1 => {
                (steady.len() - 1) as f64 * 1e9 / (last.1 - first.1) as f64
            }
            _ => f64::NAN,
        }
    }

    /// Returns the `q` quantile of the one-way delays, in microseconds.
    pub fn one_way_us(&self, q: f64) -> f64 {
        let mut delays: Vec<u64> = self
            .times_ns
            .iter()
            .map(|(sent_ns, received_ns)| received_ns.saturating_sub(*sent_ns))
            .collect();
        delays.sort_unstable();
        let index = ((delays.len() as f64 * q).ceil() as usize).clamp(1, delays.len().max(1)) - 1;
        delays.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

/// Returns a datagram's payload, which begins with its number and send time.
fn payload(number: u32, sent_ns: u64, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload[8..16].copy_from_slice(&sent_ns.to_be_bytes());
    payload
}

/// Returns the number and the send time in a payload.
fn parse(payload: &[u8]) -> Option<(u32, u64)> {
    let number = u32::from_be_bytes(payload.get(..4)?.try_into().ok()?);
    let sent_ns = u64::from_be_bytes(payload.get(8..16)?.try_into().ok()?);
    Some((number, sent_ns))
}

/// Runs `streams` at once in `cluster`. The receivers stop when everything has been sent and
/// nothing has arrived for `quiet`.
///
/// # Errors
/// A socket is refused, or no opening datagram arrives.
pub fn run_in_lab(
    cluster: &Cluster,
    streams: &[DatagramStream],
    quiet: Duration,
) -> anyhow::Result<Vec<Arrivals>> {
    let all_sent = AtomicBool::new(false);
    let hosts = &cluster.topology().hosts;
    std::thread::scope(|scope| {
        let receivers: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(index, stream)| {
                let (all_sent, host) = (&all_sent, &hosts[stream.to].name);
                let address = address_of(cluster, stream, index);
                let (open_sender, open_receiver) = std::sync::mpsc::channel();
                let thread = scope.spawn(move || -> anyhow::Result<Arrivals> {
                    cluster.enter_thread(host)?;
                    // Without the privilege, the thread is only less punctual.
                    let _ = punctual::become_realtime(20);
                    let socket = UdpSocket::bind(address)?;
                    setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).ok();
                    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
                    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
                    receive(&socket, all_sent, quiet, &open_sender)
                });
                (thread, open_receiver)
            })
            .collect();
        let senders: Vec<_> = streams
            .iter()
            .enumerate()
            .zip(&receivers)
            .map(|((index, stream), (_, open_receiver))| {
                let host = &hosts[stream.from].name;
                let address = address_of(cluster, stream, index);
                let (start_sender, start_receiver) = std::sync::mpsc::channel::<()>();
                let (ready_sender, ready_receiver) = std::sync::mpsc::channel::<()>();
                let thread = scope.spawn(move || -> anyhow::Result<()> {
                    cluster.enter_thread(host)?;
                    punctual::forgo_timer_slack();
                    // The priority is below those of the receivers and the emulator. Other programs
                    // on the machine must not pace the sender.
                    let _ = punctual::become_realtime(10);
                    let socket = UdpSocket::bind("0.0.0.0:0")?;
                    socket.connect(address)?;
                    for _ in 0..40 {
                        // The call fails while the receiver's port is not open yet.
                        let _ = socket.send(&payload(OPENER, 0, 16));
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let _ = ready_sender.send(());
                    start_receiver.recv()?;
                    send(&socket, stream)
                });
                let _ = open_receiver;
                (thread, start_sender, ready_receiver)
            })
            .collect();
        for (_, open_receiver) in &receivers {
            open_receiver
                .recv_timeout(Duration::from_secs(5))
                .context("no datagram arrived within 5 s")?;
        }
        for (_, _, ready_receiver) in &senders {
            ready_receiver
                .recv_timeout(Duration::from_secs(5))
                .context("a sender did not start within 5 s")?;
        }
        // By now the opening datagrams have drained, even from a slow port's queue.
        std::thread::sleep(Duration::from_millis(100));
        senders.iter().for_each(|(_, start_sender, _)| {
            // A sender that has failed returns its error when it is joined.
            let _ = start_sender.send(());
        });
        let panic_error = |_| anyhow::anyhow!("a traffic thread panicked");
        for (thread, ..) in senders {
            thread.join().map_err(panic_error)??;
        }
        all_sent.store(true, Ordering::Release);
        receivers
            .into_iter()
            .map(|(thread, _)| thread.join().map_err(panic_error)?)
            .collect()
    })
}

/// Returns the address of the receiver of stream `index`.
fn address_of(cluster: &Cluster, stream: &DatagramStream, index: usize) -> SocketAddr {
    let nic = cluster.nics().iter().find(|nic| nic.host == stream.to);
    let ip = nic.map_or(std::net::Ipv4Addr::LOCALHOST, |nic| nic.ipv4);
    SocketAddr::from((ip, PORT_BASE + index as u16))
}

/// Returns the real-time clock, in nanoseconds. The kernel stamps received datagrams with it.
fn realtime_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// Receives until everything has been sent and nothing has arrived for `quiet`. Arrival times are
/// the kernel's stamps. They show the network's delay, and not the scheduling of this thread.
fn receive(
    socket: &UdpSocket,
    all_sent: &AtomicBool,
    quiet: Duration,
    open_sender: &std::sync::mpsc::Sender<()>,
) -> anyhow::Result<Arrivals> {
    let mut arrivals = Arrivals::default();
    let mut last = Instant::now();
    let mut buffer = [0; 9216];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<()>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::empty(),
        );
        let Ok(message) = message else {
            if all_sent.load(Ordering::Acquire) && last.elapsed() > quiet {
                return Ok(arrivals);
            }
            continue;
        };
        last = Instant::now();
        let stamp_ns = message.cmsgs()?.find_map(|part| match part {
            ControlMessageOwned::ScmTimestampns(t) => {
                Some(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
            }
            _ => None,
        });
        let bytes = message.bytes;
        match parse(&buffer[..bytes]) {
            Some((OPENER, _)) => {
                // Only the first opening datagram has a waiter.
                let _ = open_sender.send(());
            }
            Some((_, sent_ns)) => {
                arrivals
                    .times_ns
                    .push((sent_ns, stamp_ns.unwrap_or_else(realtime_ns)));
            }
            None => {}
        }
    }
}

fn send(socket: &UdpSocket, stream: &DatagramStream) -> anyhow::Result<()> {
    let start = Instant::now();
    for number in 0..stream.frames {
        let due = Duration::from_nanos(stream.gap_ns * u64::from(number));
        if let Some(wait) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(wait);
        }
        let sent_ns = realtime_ns();
        socket.send(&payload(number, sent_ns, stream.payload_bytes))?;
    }
    Ok(())
}

/// A simulated host. It sends its streams and records arrivals.
#[derive(Debug, Default)]
struct Endpoint {
    host: usize,
    streams: Vec<(usize, DatagramStream)>,
    sent: Vec<u32>,
    is_due: bool,
    arrivals: Vec<(usize, u64, u64)>,
}

/// Start of the simulated streams, in nanoseconds. Before it, each host sends an opening datagram,
/// from which the switches learn its port.
const SIM_START_NS: u64 = 1_000_000_000;

impl Endpoint {
    fn next_ns(&self, slot: usize) -> Option<u64> {
        let (stream, sent) = (self.streams[slot].1, self.sent[slot]);
        match sent {
            0 => Some(0),
            n if n <= stream.frames => Some(SIM_START_NS + stream.gap_ns * u64::from(n - 1)),
            _ => None,
        }
    }
}

impl Node for Endpoint {
    fn handle_frame(&mut self, now_ns: u64, _nic: usize, frame: &[u8]) {
        let is_mine = frame.get(5) == Some(&(self.host as u8));
        if let (true, Some((number, sent_ns))) = (is_mine, parse(&frame[HEADER_BYTES..])) {
            if number != OPENER {
                self.arrivals
                    .push((usize::from(frame[13]), sent_ns, now_ns));
            }
        }
    }
    fn handle_timeout(&mut self, _now_ns: u64) {
        self.is_due = true;
    }
    fn poll_timeout(&self) -> Option<u64> {
        (0..self.streams.len())
            .filter_map(|slot| self.next_ns(slot))
            .min()
    }
    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        let slot = (0..self.streams.len())
            .find(|slot| self.next_ns(*slot).is_some_and(|due_ns| due_ns <= now_ns))?;
        let (index, stream) = self.streams[slot];
        let number = self.sent[slot].checked_sub(1).unwrap_or(OPENER);
        self.sent[slot] += 1;
        let mut frame = vec![0; HEADER_BYTES];
        frame[0] = 2;
        frame[5] = stream.to as u8;
        frame[6] = 2;
        frame[11] = self.host as u8;
        frame[13] = index as u8;
        frame.extend(payload(number, now_ns, stream.payload_bytes));
        Some((0, frame))
    }
}

/// Runs `flows` at once in the simulation of `topology`.
pub fn run_in_sim(topology: &Topology, streams: &[DatagramStream], seed: u64) -> Vec<Arrivals> {
    let nodes = (0..topology.hosts.len())
        .map(|host| {
            let mut own_streams: Vec<(usize, DatagramStream)> = streams
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, stream)| stream.from == host)
                .collect();
            if own_streams.is_empty() {
                // The switches must learn this host's port too, so it gets a stream of only the
                // opening datagram.
                let to = (host + 1) % topology.hosts.len();
                let empty_stream = DatagramStream {
                    from: host,
                    to,
                    frames: 0,
                    payload_bytes: 18,
                    gap_ns: 0,
                };
                own_streams.push((usize::from(u8::MAX), empty_stream));
            }
            Endpoint {
                host,
                sent: vec![0; own_streams.len()],
                streams: own_streams,
                ..Endpoint::default()
            }
        })
        .collect();
    let mut sim = Sim::new(topology, nodes, seed);
    let longest_ns = streams
        .iter()
        .map(|stream| stream.gap_ns * u64::from(stream.frames))
        .max();
    sim.run_until(SIM_START_NS + longest_ns.unwrap_or(0) + 10_000_000_000);
    streams
        .iter()
        .enumerate()
        .map(|(index, stream)| Arrivals {
            times_ns: sim
                .node(stream.to)
                .arrivals
                .iter()
                .filter(|(stream_index, ..)| *stream_index == index)
                .map(|(_, sent_ns, received_ns)| (*sent_ns, *received_ns))
                .collect(),
        })
        .collect()
}
