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

/// A rate no link has: the class lets everything through.
const OPEN_BPS: f64 = 200e9;

/// Keeps the device's queue at the rate the links really have.
#[derive(Debug)]
pub struct Shaper {
    device: String,
    pressure: Pressure,
    wanted_bps: f64,
    worker: Option<(Arc<AtomicU64>, Thread)>,
}

impl Shaper {
    /// A shaper for `device`, open until the links have been measured; without `enabled` it does
    /// nothing. The class is there from the start: putting it in place later would throw away what
    /// is queued.
    pub fn new(device: &str, enabled: bool) -> Self {
        let mut shaper = Self {
            device: device.to_owned(),
            pressure: Pressure::default(),
            wanted_bps: OPEN_BPS,
            worker: None,
        };
        if enabled {
            match shaper.start() {
                Ok(worker) => shaper.worker = Some(worker),
                Err(error) => {
                    interface::log(device, &format!("no backpressure for TCP: {error:#}"));
                }
            }
        }
        shaper
    }

    /// The rate in force, if the device is shaped.
    pub fn rate_bps(&self) -> Option<u64> {
        let is_closed = self.worker.is_some() && self.wanted_bps < OPEN_BPS;
        is_closed.then_some(self.wanted_bps as u64)
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
        if self.worker.is_none() || !self.pressure.is_due(now_ns) {
            return;
        }
        let (capacity_bps, backlog_ns) = core.load(now_ns, waiting_bytes);
        let intake = std::mem::take(intake);
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
