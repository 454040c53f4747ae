//! The emulator's thread: receives frames, executes events on time, and sends frames.

use super::Order;
use super::lateness::{Histogram, Lateness};
use super::rest::{Rest, Traffic};
use super::{Processors, Report};
use crate::model::{Delivery, Frame, HostSide, Model};
use crate::topology::Topology;
use kumi_sys::packet::{PacketSocket, Received, SEND_BATCH_MAX};
use kumi_sys::punctual;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Most frames taken from one port before the other ports are served.
const RECEIVE_BATCH: usize = 64;

/// Real-time priority: above all ordinary threads, below the kernel's own threads (50).
const PRIORITY: i32 = 40;

/// Pause of the thread between two rounds, in nanoseconds (ADR 016). It does not change the
/// kernel's time stamps or the model's due times. It only makes the delivery of a frame later.
const PAUSE_NS: u64 = 30_000;

/// Most frames that wait until a host has room again: four times the slots of the receive ring of
/// its port.
const WAITING_MAX: usize = 4096;

/// Longest wait for room at a host, in nanoseconds. A host that has no room for longer has its
/// interface down, or does not accept frames of this size. The kernel's error is the same in both
/// cases. The waiting frames then count as refused.
const WAITING_NS_MAX: u64 = 100_000_000;

/// Longest sleep, in nanoseconds. It bounds the cost of a lost wake-up.
const SLEEP_NS_MAX: u64 = 50_000_000;

/// State of the emulator's thread.
pub struct Pump {
    model: Model,
    sockets: Vec<PacketSocket>,
    /// Frames of this round, with the kernel's time stamp and the NIC.
    incoming: Vec<(u64, usize, Frame)>,
    /// Frames to send, for each NIC.
    outgoing: Vec<Vec<Delivery>>,
    traffic: Traffic,
    /// True if a host had no room for some of its frames.
    is_waiting: bool,
    lateness: Histogram,
    report: Report,
}

/// Returns the time of `clock`, in nanoseconds.
fn clock_ns(clock: ClockId) -> u64 {
    // The clocks used here always exist.
    clock_gettime(clock).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// Returns the frame as it was on the wire, with the VLAN tag that the kernel reports separately
/// put back.
fn frame_on_wire(received: &Received<'_>) -> Frame {
    match received.vlan {
        Some(tag) if received.bytes.len() >= 12 => {
            let mut bytes = Vec::with_capacity(received.bytes.len() + 4);
            bytes.extend_from_slice(&received.bytes[..12]);
            bytes.extend_from_slice(&tag);
            bytes.extend_from_slice(&received.bytes[12..]);
            Frame::from(bytes)
        }
        _ => Frame::from(received.bytes),
    }
}

/// Sleeps for [`PAUSE_NS`], even if frames arrive.
fn pause() -> nix::Result<()> {
    match ppoll(
        &mut [],
        Some(TimeSpec::from(Duration::from_nanos(PAUSE_NS))),
        None,
    ) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Pump {
    /// Opens the ports in the calling thread's network namespace, and makes that thread wake on
    /// time.
    ///
    /// # Errors
    /// If a port cannot be opened.
    pub fn new(
        topology: &Topology,
        ports: &[String],
        seed: u64,
        processors: Option<&Processors>,
    ) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for (port, position) in ports.iter().zip(topology.nics()) {
            sockets.push(PacketSocket::open(port, topology.links[position.link].mtu)?);
        }
        punctual::forgo_timer_slack();
        let has_processor = processors.is_some_and(Processors::pin);
        let is_realtime = punctual::become_realtime(PRIORITY).is_ok();
        Ok(Self {
            model: Model::new(topology, HostSide::Kernel, seed),
            outgoing: sockets
                .iter()
                .map(|_| Vec::with_capacity(SEND_BATCH_MAX))
                .collect(),
            sockets,
            incoming: Vec::with_capacity(RECEIVE_BATCH),
            traffic: Traffic::new(has_processor),
            is_waiting: false,
            lateness: Histogram::default(),
            report: Report {
                is_realtime,
                ..Report::default()
            },
        })
    }

    /// Runs until [`Order::Stop`] is received, the sender of orders is gone or a sleep fails.
    pub fn run(mut self, inbox: &Receiver<Order>, bell: &EventFd) {
        loop {
            loop {
                match inbox.try_recv() {
                    Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return,
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                }
            }
            let received = self.receive();
            self.catch_up();
            let sent = self.send();
            let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
            let rest = self
                .traffic
                .rest(now_ns, received + sent, self.model.poll_timeout());
            let outcome = match rest {
                Rest::Pause => pause(),
                _ if self.is_waiting => pause(),
                Rest::None => continue,
                Rest::Sleep => self.sleep(bell),
            };
            self.traffic.wake(clock_ns(ClockId::CLOCK_MONOTONIC));
            if outcome.is_err() {
                return;
            }
        }
    }

    fn obey(&mut self, order: Order) {
        let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
        match order {
            Order::Change { link, side, change } => self.model.change(now_ns, link, side, &change),
            Order::SetMetering(on) => self.model.set_metering(on),
            // The requester may have ended, in which case the answer is not needed.
            Order::TakeBins(reply) => {
                let _ = reply.send(self.model.take_bins(now_ns));
            }
            Order::Report(reply) => {
                self.report.cpu_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
                self.report.lateness = Lateness::from(&self.lateness);
                self.lateness = Histogram::default();
                self.report.overruns +=
                    self.sockets.iter().map(PacketSocket::overruns).sum::<u64>();
                let _ = reply.send(self.report);
                self.report.overruns = 0;
            }
            Order::PortDrops(reply) => {
                let _ = reply.send(self.model.queue_drops());
            }
            Order::Stop => {}
        }
    }

    /// Passes the received frames to the model, in the order of the kernel's time stamps. Returns
    /// their number.
    fn receive(&mut self) -> usize {
        let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
        let clock_offset_ns = clock_ns(ClockId::CLOCK_REALTIME) - now_ns;
        let incoming = &mut self.incoming;
        for (nic, socket) in self.sockets.iter_mut().enumerate() {
            socket.receive(RECEIVE_BATCH, |received| {
                // Time stamps are limited to the last 10 ms, because the real-time clock may have
                // been set.
                let at_ns = received.realtime_ns.saturating_sub(clock_offset_ns);
                let at_ns = at_ns.clamp(now_ns.saturating_sub(10_000_000), now_ns);
                incoming.push((at_ns, nic, frame_on_wire(&received)));
            });
        }
        incoming.sort_by_key(|(at_ns, ..)| *at_ns);
        let count = incoming.len();
        self.report.frames_in += count as u64;
        for (at_ns, nic, frame) in self.incoming.drain(..) {
            self.model.handle_frame(at_ns, nic, frame);
        }
        count
    }

    /// Executes the model's events that are due.
    fn catch_up(&mut self) {
        let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
        self.model.handle_timeout(now_ns);
    }

    /// Sends the frames that the model delivered, and records their lateness. Returns the number of
    /// frames that the model delivered in this round.
    fn send(&mut self) -> usize {
        let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
        let mut count = 0;
        while let Some(delivery) = self.model.poll_transmit() {
            self.outgoing[delivery.nic].push(delivery);
            count += 1;
        }
        while self.model.poll_event().is_some() {
            // The hosts see the carrier themselves, because the fabric's end of the veth goes down.
        }
        self.is_waiting = false;
        for (socket, frames) in self.sockets.iter().zip(&mut self.outgoing) {
            if frames.is_empty() {
                continue;
            }
            let sent = socket.send(frames.iter().map(|delivery| delivery.frame.bytes()));
            for Delivery { at_ns, .. } in frames.drain(..sent.done) {
                self.lateness.record(now_ns.saturating_sub(at_ns));
            }
            self.report.refused += sent.refused as u64;
            if sent.refused > 0 {
                socket.clear_error();
            }
            let oldest_ns = frames.first().map_or(now_ns, |delivery| delivery.at_ns);
            if now_ns.saturating_sub(oldest_ns) > WAITING_NS_MAX {
                self.report.refused += frames.len() as u64;
                frames.clear();
            } else if frames.len() > WAITING_MAX {
                self.report.overruns += frames.len() as u64;
                frames.clear();
            }
            self.is_waiting |= !frames.is_empty();
        }
        self.report.frames_out += count as u64;
        count
    }

    /// Sleeps until a frame or an order arrives, or an event is due.
    fn sleep(&self, bell: &EventFd) -> nix::Result<()> {
        let now_ns = clock_ns(ClockId::CLOCK_MONOTONIC);
        let due_ns = self.model.poll_timeout().unwrap_or(u64::MAX);
        let sleep_ns = self.traffic.sleep_ns(now_ns, due_ns).min(SLEEP_NS_MAX);
        let mut fds: Vec<PollFd<'_>> = self
            .sockets
            .iter()
            .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        fds.push(PollFd::new(bell.as_fd(), PollFlags::POLLIN));
        match ppoll(
            &mut fds,
            Some(TimeSpec::from(Duration::from_nanos(sleep_ns))),
            None,
        ) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error),
        }
        // An eventfd without a count returns an error, which needs no handling.
        let _ = bell.read();
        for (fd, socket) in fds.iter().zip(&self.sockets) {
            if fd
                .revents()
                .is_some_and(|events| events.contains(PollFlags::POLLERR))
            {
                socket.clear_error();
            }
        }
        Ok(())
    }
}
