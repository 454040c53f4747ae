//! The queue in front of the device that gives TCP backpressure.
//!
//! A TAP gives none: it orphans packets as they are transmitted, and its ring drops silently when
//! full. So the host's side gets an HTB class whose rate follows what the links really carry
//! ([`kumi_multilink::pressure`]); TCP's small-queue limit then holds the rest in the socket. HTB
//! rather than TBF, because a burst of 64 KB need not fit its bucket and a change of rate does not
//! refill it.

use super::interface;
use super::load::Load;
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::pressure::{Intake, PERIOD_NS, Pressure};
use kumi_sys::qdisc::HtbClass;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// A change smaller than this is not worth a system call.
const DEADBAND: f64 = 0.01;
/// What the class may send at once after a rest, in time at its rate.
const BURST_NS: u64 = 500_000;
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
    device: String,
    pressure: Pressure,
    load: Load,
    wanted_bps: f64,
    worker: Option<(Arc<AtomicU64>, Thread)>,
}

impl Shaper {
    /// Shapers for the `queues` of `device`, open until the links have been measured; without
    /// `enabled` they do nothing. The class is there from the start: putting it in place later would
    /// throw away what is queued.
    pub fn new(device: &str, enabled: bool, queues: usize) -> Vec<Self> {
        let mut class = Class {
            device: device.to_owned(),
            pressure: Pressure::default(),
            load: Load::new(queues),
            wanted_bps: OPEN_BPS,
            worker: None,
        };
        if enabled {
            match class.start() {
                Ok(worker) => class.worker = Some(worker),
                Err(error) => {
                    interface::log(device, &format!("no backpressure for TCP: {error:#}"));
                }
            }
        }
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
        let is_closed = class.worker.is_some() && class.wanted_bps < OPEN_BPS;
        is_closed.then_some(class.wanted_bps as u64)
    }

    /// Whether this queue has kept the links busy lately.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        self.class().load.was_busy(self.queue, now_ns, LATELY_NS)
    }

    /// Follows the links, and the `waiting_bytes` taken from the host that wait for them. `intake`
    /// starts over when it was used.
    pub fn adjust(
        &mut self,
        now_ns: u64,
        core: &Endpoint,
        waiting_bytes: usize,
        intake: &mut Intake,
    ) {
        if now_ns < self.reported_at_ns + PERIOD_NS {
            return;
        }
        self.reported_at_ns = now_ns;
        let load = core.load(now_ns, waiting_bytes);
        let mut class = self.class();
        class
            .load
            .report(self.queue, now_ns, load, std::mem::take(intake));
        class.adjust(now_ns);
    }
}

impl Class {
    fn adjust(&mut self, now_ns: u64) {
        if self.worker.is_none() || !self.pressure.is_due(now_ns) {
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
        if let Some((rate, thread)) = &self.worker {
            rate.store(rate_bps as u64, Ordering::Relaxed);
            thread.unpark();
        }
    }

    /// Puts the class in place and starts the thread that changes its rate: the kernel's
    /// configuration lock may be held for long by others, and the data must not wait for it.
    fn start(&self) -> anyhow::Result<(Arc<AtomicU64>, Thread)> {
        let mut class = install(&self.device, self.wanted_bps)?;
        let rate = Arc::new(AtomicU64::new(self.wanted_bps as u64));
        let seen = Arc::clone(&rate);
        let thread = std::thread::spawn(move || {
            let mut applied = seen.load(Ordering::Relaxed);
            loop {
                let wanted = seen.load(Ordering::Relaxed);
                if wanted == applied {
                    std::thread::park();
                    continue;
                }
                applied = wanted;
                if class.set_rate(wanted / 8, BURST_NS).is_err() {
                    return; // the device is going
                }
            }
        });
        Ok((rate, thread.thread().clone()))
    }
}

fn install(device: &str, rate_bps: f64) -> anyhow::Result<HtbClass> {
    let rate = format!("{}bit", rate_bps as u64);
    let root = [
        "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb", "default", "1",
    ];
    interface::run("tc", &root)?;
    let class = [
        "class", "replace", "dev", device, "parent", "1:", "classid", "1:1", "htb",
    ];
    let rates = [
        "rate", &rate, "burst", "64k", "cburst", "64k", "quantum", "65536",
    ];
    interface::run("tc", &[&class[..], &rates[..]].concat())?;
    let index = nix::net::if_::if_nametoindex(device)?;
    Ok(HtbClass::open(index)?)
}
