//! The queue in front of the device that gives TCP backpressure.
//!
//! A TAP gives none: it orphans packets as they are transmitted, and its ring drops silently when
//! full. So the host's side gets an HTB class whose rate follows what the links really carry
//! ([`kumi_multilink::pressure`]); TCP's small-queue limit then holds the rest in the socket. HTB
//! rather than TBF, because a burst of 64 KB need not fit its bucket and a change of rate does not
//! refill it.

use super::class::{self, KernelClass};
use super::load::Load;
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::pressure::{Intake, PERIOD_NS, Pressure};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A change smaller than this is not worth a system call.
const DEADBAND: f64 = 0.01;
/// A queue that kept the links busy within this time measures a share of them, not all.
const LATELY_NS: u64 = 100_000_000;
/// A rate no link has: the class lets everything through.
const OPEN_BPS: f64 = 200e9;

/// Keeps the device's queue at the rate the links really have. Each of the device's queues has one;
/// they share the class.
#[derive(Debug)]
pub struct Shaper {
    queue: usize,
    reported_at_ns: u64,
    class: Arc<Mutex<Class>>,
}

/// The class, and what it follows.
#[derive(Debug)]
struct Class {
    pressure: Pressure,
    load: Load,
    wanted_bps: f64,
    /// The class in the kernel, unless the device is not shaped.
    kernel: Option<KernelClass>,
}

impl Shaper {
    /// Shapers for the `queues` of `device`, open until the links have been measured; without
    /// `enabled` they do nothing. The class is there from the start: putting it in place later would
    /// throw away what is queued. `is_new` is as for [`KernelClass::start`].
    pub fn new(device: &str, is_new: bool, enabled: bool, queues: usize) -> Vec<Self> {
        let kernel = enabled.then(|| KernelClass::start(device, is_new, OPEN_BPS as u64));
        if kernel.is_none() {
            class::remove_ours(device);
        }
        let class = Class {
            pressure: Pressure::default(),
            load: Load::new(queues),
            wanted_bps: OPEN_BPS,
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

    /// The rate in force, if the device is shaped.
    pub fn rate_bps(&self) -> Option<u64> {
        let class = self.class();
        let is_closed = class.kernel.is_some() && class.wanted_bps < OPEN_BPS;
        is_closed.then_some(class.wanted_bps as u64)
    }

    /// Whether this queue has kept the links busy lately.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        self.class().load.was_busy(self.queue, now_ns, LATELY_NS)
    }

    /// Follows the links, and the `waiting_bytes` taken from the host that wait for them. `intake`
    /// starts over when it was used. The times are the kernel's, which all queues share, and the
    /// core's.
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
        if (rate_bps - self.wanted_bps).abs() < DEADBAND * self.wanted_bps {
            return;
        }
        self.wanted_bps = rate_bps;
        if let Some(kernel) = &self.kernel {
            kernel.set_rate(rate_bps as u64);
        }
    }
}
