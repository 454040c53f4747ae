//! The queue in front of the device that gives TCP backpressure (ADR 007).
//!
//! A TAP gives none: it orphans packets as they are transmitted, and its ring drops silently when
//! it is full. So the host sends through an HTB class whose rate follows the rate of the links
//! ([`kumi_multilink::pressure`]). TCP's small-queue limit then keeps the rest in the socket.
//!
//! HTB is used rather than TBF for two reasons. A burst of 64 KB need not fit HTB's bucket, and a
//! change of the rate does not refill the bucket.

use super::load::Load;
use crate::class::{self, KernelClass};
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::pressure::{Intake, PERIOD_NS, Pressure};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smallest relative change of the rate that is worth a system call.
const DEADBAND: f64 = 0.01;
/// Time for which a queue counts as busy after it kept the links busy, in ns. A busy queue measures
/// its share of the links, not all of them.
const RECENT_NS: u64 = 100_000_000;
/// Rate of the open class, in bits per second. The device never reaches it, so the class lets
/// everything through.
const OPEN_BPS: f64 = 200e9;

/// Keeps the device's class at the rate of the links. Each queue of the device has a `Shaper`; they
/// share the class.
#[derive(Debug)]
pub struct Shaper {
    queue: usize,
    reported_at_ns: u64,
    class: Arc<Mutex<Class>>,
}

/// The class, its controller, and the reports of the queues.
#[derive(Debug)]
struct Class {
    pressure: Pressure,
    load: Load,
    target_bps: f64,
    /// The class in the kernel; `None` if the device is not shaped.
    kernel: Option<KernelClass>,
}

impl Shaper {
    /// Returns a shaper for each of the `queues` of `device`. If not `enabled`, they do nothing.
    ///
    /// The class exists from the start, because installing it later would discard the queued
    /// packets. It is open until the links have been measured. `is_new` is as for
    /// [`KernelClass::start`].
    pub fn new(device: &str, is_new: bool, enabled: bool, queues: usize) -> Vec<Self> {
        let kernel = enabled.then(|| KernelClass::start(device, is_new, OPEN_BPS as u64));
        if kernel.is_none() {
            class::remove_ours(device);
        }
        let class = Class {
            pressure: Pressure::default(),
            load: Load::new(queues),
            target_bps: OPEN_BPS,
            kernel,
        };
        let class = Arc::new(Mutex::new(class));
        let shaper = |queue| Self {
            queue,
            reported_at_ns: 0,
            class: Arc::clone(&class),
        };
        (0..queues).map(shaper).collect()
    }

    fn class(&self) -> MutexGuard<'_, Class> {
        let class = self.class.lock();
        class.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rate in force, in bits per second; `None` while the class is open or if the
    /// device is not shaped.
    pub fn rate_bps(&self) -> Option<u64> {
        let class = self.class();
        let is_closed = class.kernel.is_some() && class.target_bps < OPEN_BPS;
        is_closed.then_some(class.target_bps as u64)
    }

    /// Returns whether this queue has kept the links busy within the last `RECENT_NS`.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        self.class().load.was_busy(self.queue, now_ns, RECENT_NS)
    }

    /// Reports the load of this queue and adjusts the class, at most once per `PERIOD_NS`.
    ///
    /// `waiting_bytes` are bytes taken from the host that wait for the links. `intake` is reset
    /// after each report. `now_ns` is the kernel's time, which all queues share; `core_now_ns` is
    /// the core's.
    pub fn adjust(
        &mut self,
        (now_ns, core_now_ns): (u64, u64),
        core: &Endpoint,
        waiting_bytes: usize,
        intake: &mut Intake,
    ) {
        if now_ns < self.reported_at_ns + PERIOD_NS {
            return;
        }
        self.reported_at_ns = now_ns;
        let load = core.load(core_now_ns, waiting_bytes);
        let mut class = self.class();
        class
            .load
            .report(self.queue, now_ns, load, std::mem::take(intake));
        class.adjust(now_ns);
    }
}

impl Class {
    fn adjust(&mut self, now_ns: u64) {
        if self.kernel.is_none() || !self.pressure.is_due(now_ns) {
            return;
        }
        let (capacity_bps, backlog_ns) = self.load.sum(now_ns);
        let intake = self.load.take_intake();
        let rate_bps = self
            .pressure
            .adjust(now_ns, capacity_bps, backlog_ns, intake)
            .min(OPEN_BPS);
        if (rate_bps - self.target_bps).abs() < DEADBAND * self.target_bps {
            return;
        }
        self.target_bps = rate_bps;
        if let Some(kernel) = &self.kernel {
            kernel.set_rate(rate_bps as u64);
        }
    }
}
