//! Runs the model against the real clock, in one thread between the fabric's ends of the hosts'
//! veths.
//!
//! ```text
//!  veth ──► receive ring ──► Model ──► sendmmsg ──► veth
//!               (kernel's time stamp)   (at its due time)
//! ```
//!
//! Frames enter the model with the kernel's time stamp, and events carry the time at which they
//! were due. Lateness therefore delays a frame once and never adds up.
//!
//! The thread runs under SCHED_FIFO if it has the privilege. If there are two processors or more,
//! it has one of its own (ADR 016), and polls while frames are few (`rest.rs`, ADR 050). It
//! always pauses now and then, because the kernel suspends a real-time thread that uses 0.95 of a
//! processor.

mod lateness;
mod processors;
mod pump;
mod rest;

pub use lateness::Lateness;
pub use processors::Processors;

use crate::model::Bin;
use crate::topology::{LinkChange, Topology};
use kumi_sys::netns::Namespaces;
use nix::sys::eventfd::{EfdFlags, EventFd};
use pump::Pump;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Order to the emulator's thread.
#[derive(Debug)]
enum Order {
    Change {
        link: usize,
        side: usize,
        change: LinkChange,
    },
    SetMetering(bool),
    TakeBins(Sender<Vec<Bin>>),
    Report(Sender<Report>),
    PortDrops(Sender<u64>),
    Stop,
}

/// State and counters of the emulator.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Lateness of the frames delivered to hosts, since the last report.
    pub lateness: Lateness,
    /// Frames received from hosts, since the start.
    pub frames_in: u64,
    /// Frames that the model delivered to hosts, since the start. Refused and lost frames are
    /// included.
    pub frames_out: u64,
    /// Frames that the kernel refused, since the start, for example because an interface was down.
    pub refused: u64,
    /// Frames lost for lack of room between hosts and emulator, in either direction, since the last
    /// report.
    pub overruns: u64,
    /// Processor time of the thread since the start, in nanoseconds.
    pub cpu_ns: u64,
    /// True if the thread runs under SCHED_FIFO.
    pub is_realtime: bool,
}

/// A running emulator. Dropping it stops the thread.
#[derive(Debug)]
pub struct Emulator {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Starts the emulator of `topology` inside the fabric's namespace. `ports` names the fabric's
    /// device for each NIC, in the order of [`Topology::nics`].
    ///
    /// # Errors
    /// If a device is missing or cannot be opened.
    pub fn start(
        topology: &Topology,
        fabric: &Namespaces,
        ports: &[String],
        seed: u64,
        processors: Option<Processors>,
    ) -> io::Result<Self> {
        let bell = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let (orders, inbox): (_, Receiver<Order>) = channel();
        let (ready, ready_receiver) = channel();
        let (topology, fabric, ports) = (topology.clone(), fabric.clone(), ports.to_vec());
        let thread_bell = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("kumi-emulator".into())
            .spawn(move || {
                let pump = fabric
                    .enter_net_on_thread()
                    .and_then(|()| Pump::new(&topology, &ports, seed, processors.as_ref()));
                match pump {
                    Ok(pump) => {
                        // `start` waits for this message, so the receiver still exists.
                        let _ = ready.send(Ok(()));
                        pump.run(&inbox, &thread_bell);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })?;
        ready_receiver
            .recv()
            .map_err(|_| io::Error::other("the emulator's thread ended"))??;
        Ok(Self {
            orders,
            bell,
            thread: Some(thread),
        })
    }

    /// Sends an order to the thread. Returns false if the thread has ended.
    fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok() && self.bell.write(1).is_ok()
    }

    /// Changes link `link`, as seen from its end `side`.
    pub fn change(&self, link: usize, side: usize, change: LinkChange) {
        self.order(Order::Change { link, side, change });
    }

    /// Switches the traffic meter on or off.
    pub fn set_metering(&self, on: bool) {
        self.order(Order::SetMetering(on));
    }

    /// Returns the meter's finished bins that were not returned before. Their times are those of
    /// the monotonic clock.
    pub fn take_bins(&self) -> Vec<Bin> {
        let (reply, answer) = channel();
        if self.order(Order::TakeBins(reply)) {
            answer.recv().unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// Returns the emulator's state, and starts a new period of lateness and overruns.
    pub fn report(&self) -> Report {
        let (reply, answer) = channel();
        if self.order(Order::Report(reply)) {
            answer.recv().unwrap_or_default()
        } else {
            Report::default()
        }
    }

    /// Returns the number of frames dropped by full switch ports, since the start.
    pub fn port_drops(&self) -> u64 {
        let (reply, answer) = channel();
        match self.order(Order::PortDrops(reply)) {
            true => answer.recv().unwrap_or_default(),
            false => 0,
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
