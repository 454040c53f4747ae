//! The queue in front of the device that gives TCP backpressure.
//!
//! A TAP gives none: it orphans packets as they are transmitted, and its ring drops silently when
//! full. So the host's side gets an HTB class whose rate follows what the links really carry
//! ([`kumi_multilink::pressure`]); TCP's small-queue limit then holds the rest in the socket. HTB
//! rather than TBF, because a burst of 64 KB need not fit its bucket and a change of rate does not
//! refill it.

use super::interface;
use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::pressure::{Intake, Pressure};
use kumi_sys::qdisc::HtbClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;

/// A change smaller than this is not worth a system call.
const DEADBAND: f64 = 0.01;
/// What the class may send at once after a rest, in time at its rate.
const BURST_NS: u64 = 500_000;

/// Keeps the device's queue at the rate the links really have.
#[derive(Debug)]
pub struct Shaper {
    device: String,
    enabled: bool,
    pressure: Pressure,
    wanted_bps: f64,
    worker: Option<(Arc<AtomicU64>, Thread)>,
}

impl Shaper {
    /// A shaper for `device`; without `enabled` it does nothing.
    pub fn new(device: &str, enabled: bool) -> Self {
        Self {
            device: device.to_owned(),
            enabled,
            pressure: Pressure::default(),
            wanted_bps: 0.0,
            worker: None,
        }
    }

    /// The rate in force, if the device is shaped.
    pub fn rate_bps(&self) -> Option<u64> {
        self.worker.as_ref().map(|_| self.wanted_bps as u64)
    }

    /// Follows the links. `intake` starts over when it was used.
    pub fn adjust(&mut self, now_ns: u64, core: &Endpoint, intake: &mut Intake) {
        if !self.enabled || !self.pressure.is_due(now_ns) {
            return;
        }
        let Some((capacity_bps, backlog_ns)) = core.load(now_ns) else {
            return;
        };
        let intake = std::mem::take(intake);
        let rate_bps = self
            .pressure
            .adjust(now_ns, capacity_bps, backlog_ns, intake);
        if (rate_bps - self.wanted_bps).abs() < DEADBAND * self.wanted_bps {
            return;
        }
        self.wanted_bps = rate_bps;
        if self.worker.is_none() {
            self.worker = self.start();
        }
        if let Some((rate, thread)) = &self.worker {
            rate.store(rate_bps as u64, Ordering::Relaxed);
            thread.unpark();
        }
    }

    /// Puts the class in place and starts the thread that changes its rate: the kernel's
    /// configuration lock may be held for long by others, and the data must not wait for it.
    fn start(&mut self) -> Option<(Arc<AtomicU64>, Thread)> {
        let class = install(&self.device, self.wanted_bps).map_err(|error| {
            interface::log(&self.device, &format!("no backpressure for TCP: {error:#}"));
            self.enabled = false;
        });
        let mut class = class.ok()?;
        let rate = Arc::new(AtomicU64::new(self.wanted_bps as u64));
        let seen = Arc::clone(&rate);
        let thread = std::thread::spawn(move || {
            let mut applied = 0;
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
        Some((rate, thread.thread().clone()))
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
