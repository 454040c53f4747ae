//! Open-loop traffic, the same in a running lab and in the simulation.
//!
//! A flow is a number of datagrams of one size at one pace. The results are the datagrams that
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

/// Lowest port of the flows' receivers.
const PORT_BASE: u16 = 40_000;

/// Number of an opening datagram, which resolves addresses and teaches the switches.
const OPENER: u32 = u32::MAX;

/// A number of datagrams from one host to another.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
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

/// Datagrams of a flow that arrived.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Send and arrival time of each datagram, in nanoseconds.
    pub arrivals: Vec<(u64, u64)>,
}

impl Heard {
    /// Returns the number of datagrams that arrived.
    pub fn frames(&self) -> f64 {
        self.arrivals.len() as f64
    }

    /// Returns the datagrams per second between the first and the last arrival. The first `skip`
    /// arrivals are left out, so that a token bucket's savings do not count as its rate.
    pub fn frames_per_s(&self, skip: usize) -> f64 {
        let steady = self.arrivals.get(skip..).unwrap_or(&[]);
        match (steady.first(), steady.last()) {
            (Some(first), Some(last)) if last.1 > first.1 => {
                (steady.len() - 1) as f64 * 1e9 / (last.1 - first.1) as f64
            }
            _ => f64::NAN,
        }
    }

    /// Returns the `q` quantile of the one-way delays, in microseconds.
    pub fn one_way_us(&self, q: f64) -> f64 {
        let mut times: Vec<u64> = self
            .arrivals
            .iter()
            .map(|(sent, got)| got.saturating_sub(*sent))
            .collect();
        times.sort_unstable();
        let index = ((times.len() as f64 * q).ceil() as usize).clamp(1, times.len().max(1)) - 1;
        times.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
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
fn parsed(payload: &[u8]) -> Option<(u32, u64)> {
    let number = u32::from_be_bytes(payload.get(..4)?.try_into().ok()?);
    let sent_ns = u64::from_be_bytes(payload.get(8..16)?.try_into().ok()?);
    Some((number, sent_ns))
}

/// Runs `flows` at once in `cluster`. The receivers stop when everything has been sent and nothing
/// has arrived for `quiet`.
///
/// # Errors
/// A socket is refused, or no opening datagram arrives.
pub fn in_lab(cluster: &Cluster, flows: &[Flow], quiet: Duration) -> anyhow::Result<Vec<Heard>> {
    let all_sent = AtomicBool::new(false);
    let hosts = &cluster.topology().hosts;
    std::thread::scope(|scope| {
        let receivers: Vec<_> = flows
            .iter()
            .enumerate()
            .map(|(index, flow)| {
                let (all_sent, host) = (&all_sent, &hosts[flow.to].name);
                let address = address_of(cluster, flow, index);
                let (opened, is_open) = std::sync::mpsc::channel();
                let thread = scope.spawn(move || -> anyhow::Result<Heard> {
                    cluster.enter_thread(host)?;
                    // Without the privilege, the thread is only less punctual.
                    let _ = punctual::become_realtime(20);
                    let socket = UdpSocket::bind(address)?;
                    setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).ok();
                    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
                    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
                    receive(&socket, all_sent, quiet, &opened)
                });
                (thread, is_open)
            })
            .collect();
        let senders: Vec<_> = flows
            .iter()
            .enumerate()
            .zip(&receivers)
            .map(|((index, flow), (_, is_open))| {
                let host = &hosts[flow.from].name;
                let address = address_of(cluster, flow, index);
                let (start, may_start) = std::sync::mpsc::channel::<()>();
                let (ready, is_ready) = std::sync::mpsc::channel::<()>();
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
                    let _ = ready.send(());
                    may_start.recv()?;
                    send(&socket, flow)
                });
                let _ = is_open;
                (thread, start, is_ready)
            })
            .collect();
        for (_, is_open) in &receivers {
            is_open
                .recv_timeout(Duration::from_secs(5))
                .context("no datagram arrived within 5 s")?;
        }
        for (_, _, is_ready) in &senders {
            is_ready
                .recv_timeout(Duration::from_secs(5))
                .context("a sender did not start within 5 s")?;
        }
        // By now the opening datagrams have drained, even from a slow port's queue.
        std::thread::sleep(Duration::from_millis(100));
        senders.iter().for_each(|(_, start, _)| {
            // A sender that has failed returns its error when it is joined.
            let _ = start.send(());
        });
        let ended = |_| anyhow::anyhow!("a traffic thread panicked");
        for (thread, ..) in senders {
            thread.join().map_err(ended)??;
        }
        all_sent.store(true, Ordering::Release);
        receivers
            .into_iter()
            .map(|(thread, _)| thread.join().map_err(ended)?)
            .collect()
    })
}

/// Returns the address of the receiver of flow `index`.
fn address_of(cluster: &Cluster, flow: &Flow, index: usize) -> SocketAddr {
    let nic = cluster.nics().iter().find(|nic| nic.host == flow.to);
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
    opened: &std::sync::mpsc::Sender<()>,
) -> anyhow::Result<Heard> {
    let mut heard = Heard::default();
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
                return Ok(heard);
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
        match parsed(&buffer[..bytes]) {
            Some((OPENER, _)) => {
                // Only the first opening datagram has a waiter.
                let _ = opened.send(());
            }
            Some((_, sent_ns)) => {
                heard
                    .arrivals
                    .push((sent_ns, stamp_ns.unwrap_or_else(realtime_ns)));
            }
            None => {}
        }
    }
}

fn send(socket: &UdpSocket, flow: &Flow) -> anyhow::Result<()> {
    let start = Instant::now();
    for number in 0..flow.frames {
        let due = Duration::from_nanos(flow.gap_ns * u64::from(number));
        if let Some(wait) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(wait);
        }
        let sent_ns = realtime_ns();
        socket.send(&payload(number, sent_ns, flow.payload_bytes))?;
    }
    Ok(())
}

/// A simulated host. It sends its flows and records arrivals.
#[derive(Debug, Default)]
struct Endpoint {
    host: usize,
    flows: Vec<(usize, Flow)>,
    sent: Vec<u32>,
    due: bool,
    heard: Vec<(usize, u64, u64)>,
}

/// Start of the simulated flows, in nanoseconds. Before it, each host sends an opening datagram,
/// from which the switches learn its port.
const SIM_START_NS: u64 = 1_000_000_000;

impl Endpoint {
    fn next_ns(&self, slot: usize) -> Option<u64> {
        let (flow, sent) = (self.flows[slot].1, self.sent[slot]);
        match sent {
            0 => Some(0),
            n if n <= flow.frames => Some(SIM_START_NS + flow.gap_ns * u64::from(n - 1)),
            _ => None,
        }
    }
}

impl Node for Endpoint {
    fn handle_frame(&mut self, now_ns: u64, _nic: usize, frame: &[u8]) {
        let is_mine = frame.get(5) == Some(&(self.host as u8));
        if let (true, Some((number, sent_ns))) = (is_mine, parsed(&frame[HEADER_BYTES..])) {
            if number != OPENER {
                self.heard.push((usize::from(frame[13]), sent_ns, now_ns));
            }
        }
    }
    fn handle_timeout(&mut self, _now_ns: u64) {
        self.due = true;
    }
    fn poll_timeout(&self) -> Option<u64> {
        (0..self.flows.len())
            .filter_map(|slot| self.next_ns(slot))
            .min()
    }
    fn poll_transmit(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        let slot = (0..self.flows.len())
            .find(|slot| self.next_ns(*slot).is_some_and(|at_ns| at_ns <= now_ns))?;
        let (index, flow) = self.flows[slot];
        let number = self.sent[slot].checked_sub(1).unwrap_or(OPENER);
        self.sent[slot] += 1;
        let mut frame = vec![0; HEADER_BYTES];
        frame[0] = 2;
        frame[5] = flow.to as u8;
        frame[6] = 2;
        frame[11] = self.host as u8;
        frame[13] = index as u8;
        frame.extend(payload(number, now_ns, flow.payload_bytes));
        Some((0, frame))
    }
}

/// Runs `flows` at once in the simulation of `topology`.
pub fn in_sim(topology: &Topology, flows: &[Flow], seed: u64) -> Vec<Heard> {
    let nodes = (0..topology.hosts.len())
        .map(|host| {
            let mut mine: Vec<(usize, Flow)> = flows
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, flow)| flow.from == host)
                .collect();
            if mine.is_empty() {
                // The switches must learn this host's port too, so it gets a flow of only the
                // opening datagram.
                let to = (host + 1) % topology.hosts.len();
                let silent = Flow {
                    from: host,
                    to,
                    frames: 0,
                    payload_bytes: 18,
                    gap_ns: 0,
                };
                mine.push((usize::from(u8::MAX), silent));
            }
            Endpoint {
                host,
                sent: vec![0; mine.len()],
                flows: mine,
                ..Endpoint::default()
            }
        })
        .collect();
    let mut sim = Sim::new(topology, nodes, seed);
    let longest_ns = flows
        .iter()
        .map(|flow| flow.gap_ns * u64::from(flow.frames))
        .max();
    sim.run_until(SIM_START_NS + longest_ns.unwrap_or(0) + 10_000_000_000);
    flows
        .iter()
        .enumerate()
        .map(|(index, flow)| Heard {
            arrivals: sim
                .node(flow.to)
                .heard
                .iter()
                .filter(|(of, ..)| *of == index)
                .map(|(_, sent_ns, got_ns)| (*sent_ns, *got_ns))
                .collect(),
        })
        .collect()
}
