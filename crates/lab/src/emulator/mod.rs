//! The model against the real clock: one thread between the fabric's ends of the hosts' veths.
//!
//! ```text
//!  veth ──► receive ring ──► Model ──► sendmmsg ──► veth
//!               (kernel's time stamp)   (at its due time)
//! ```
//!
//! Frames enter the model with the time the kernel had them, and events carry the time they were
//! due: being late delays a frame once and never adds up. The thread sleeps to the next deadline, or while it
//! is busy for a fixed rest, under SCHED_FIFO where it may; it never spins, for the kernel stops a spinning
//! real-time thread for 50 ms of every second. It has a processor of its own where there are two (ADR 016).

mod lateness;
mod processors;
mod pump;

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

/// What the thread is asked.
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

/// How the emulator is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// How late frames were given to hosts, since the last report.
    pub lateness: Lateness,
    /// Frames received from hosts, since the start.
    pub frames_in: u64,
    /// Frames given to hosts, since the start.
    pub frames_out: u64,
    /// Frames the kernel would not take, since the start: an interface was down.
    pub refused: u64,
    /// Frames that found no room on the way here, or to a host, since the last report.
    pub overruns: u64,
    /// Processor time of the thread, since the start, in nanoseconds.
    pub cpu_ns: u64,
    /// Whether the thread runs under SCHED_FIFO.
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
    /// Starts the emulator of `topology` inside the fabric's namespace; `ports` names its device
    /// for each NIC, in the order of [`Topology::nics`].
    ///
    /// # Errors
    /// A device is missing or may not be opened.
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
        let (ready, is_ready) = channel();
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
                        // `start` waits for this; it cannot have gone away.
                        let _ = ready.send(Ok(()));
                        pump.run(&inbox, &thread_bell);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })?;
        is_ready
            .recv()
            .map_err(|_| io::Error::other("the emulator's thread ended"))??;
        Ok(Self {
            orders,
            bell,
            thread: Some(thread),
        })
    }

    /// Gives an order; false if the thread is gone.
    fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok() && self.bell.write(1).is_ok()
    }

    /// Changes link `link`, seen from its end `side`.
    pub fn change(&self, link: usize, side: usize, change: LinkChange) {
        self.order(Order::Change { link, side, change });
    }

    /// Switches the traffic meter on or off.
    pub fn set_metering(&self, on: bool) {
        self.order(Order::SetMetering(on));
    }

    /// The meter's bins that have ended and were not taken yet. Times are those of the monotonic
    /// clock.
    pub fn take_bins(&self) -> Vec<Bin> {
        let (reply, answer) = channel();
        if self.order(Order::TakeBins(reply)) {
            answer.recv().unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// How it is doing; starts a new period of lateness.
    pub fn report(&self) -> Report {
        let (reply, answer) = channel();
        if self.order(Order::Report(reply)) {
            answer.recv().unwrap_or_default()
        } else {
            Report::default()
        }
    }

    /// Frames that switches' ports had no room for, since the start.
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
