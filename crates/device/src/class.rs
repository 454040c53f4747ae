//! The HTB class in the kernel that limits the host's rate, and the thread that sets its rate (ADR
//! 007).
//!
//! Others may hold the kernel's configuration lock for a long time, and the data path must not wait
//! for it. So the loops store the rate that they want, and a thread applies it. The thread
//! reinstalls a class that was removed. It leaves a queue alone that the administrator has
//! installed instead.

use crate::interface;
use anyhow::Context;
use kumi_sys::netlink::htb::{self, HtbClass, RootQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Burst of the class after an idle time, in ns at its rate.
const BURST_NS: u64 = 500_000;
/// Time between attempts to reinstall the class. The administrator who removed it may be at work.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// A class whose rate follows [`Self::set_rate`]. Dropping it ends the thread and leaves the class.
#[derive(Debug)]
pub struct KernelClass {
    rate_bps: Arc<AtomicU64>,
    is_ended: Arc<AtomicBool>,
    thread: Thread,
}

impl KernelClass {
    /// Installs the class of `device` with the rate `rate_bps`, and starts the thread. A failure is
    /// logged, and the thread tries again.
    ///
    /// `is_new` states that this start created the device. Only then may a foreign root queue be
    /// replaced, because no administrator can have chosen it.
    pub fn start(device: &str, is_new: bool, rate_bps: u64) -> Self {
        let rate = Arc::new(AtomicU64::new(rate_bps));
        let is_ended = Arc::new(AtomicBool::new(false));
        let mut keeper = Keeper {
            device: device.to_owned(),
            rate_bps: Arc::clone(&rate),
            is_ended: Arc::clone(&is_ended),
            class: None,
            last_problem: String::new(),
        };
        keeper.put_in_place(is_new);
        let thread = std::thread::spawn(move || keeper.keep());
        Self {
            rate_bps: rate,
            is_ended,
            thread: thread.thread().clone(),
        }
    }

    /// Stores a new rate, which the thread applies soon.
    pub fn set_rate(&self, rate_bps: u64) {
        self.rate_bps.store(rate_bps, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for KernelClass {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// State of the thread.
struct Keeper {
    device: String,
    rate_bps: Arc<AtomicU64>,
    is_ended: Arc<AtomicBool>,
    class: Option<HtbClass>,
    /// Last problem that was logged, so that the log has it once.
    last_problem: String,
}

impl Keeper {
    fn keep(mut self) {
        let mut applied_bps = None;
        while !self.is_ended.load(Ordering::Relaxed) {
            let target_bps = self.rate_bps.load(Ordering::Relaxed);
            let Some(class) = &mut self.class else {
                std::thread::park_timeout(RETRY_EVERY);
                if !self.is_ended.load(Ordering::Relaxed) {
                    self.put_in_place(false);
                }
                continue;
            };
            if applied_bps == Some(target_bps) {
                std::thread::park();
                continue;
            }
            match class.set_rate(target_bps / 8, BURST_NS) {
                Ok(()) => applied_bps = Some(target_bps),
                Err(error) => {
                    (self.class, applied_bps) = (None, None);
                    self.log_problem(format!("cannot set the rate of the queue ({error})"));
                    self.put_in_place(false);
                }
            }
        }
    }

    fn put_in_place(&mut self, may_replace: bool) {
        let rate_bps = self.rate_bps.load(Ordering::Relaxed);
        match install(&self.device, rate_bps, may_replace) {
            Ok(class) => {
                self.class = Some(class);
                if !std::mem::take(&mut self.last_problem).is_empty() {
                    interface::log(&self.device, "the queue is installed again");
                }
            }
            Err(error) => self.log_problem(format!("warning: no backpressure for TCP: {error:#}")),
        }
    }

    fn log_problem(&mut self, problem: String) {
        if self.last_problem != problem {
            interface::log(&self.device, &problem);
            self.last_problem = problem;
        }
    }
}

/// Removes the queue that an earlier daemon left on a device that must have none.
pub fn remove_ours(device: &str) {
    let Ok(index) = interface::index(device) else {
        return;
    };
    if htb::root_queue(index).is_ok_and(|queue| queue == RootQueue::Kumi) {
        let _ = htb::remove(index);
    }
}

/// Installs the class. A root queue of an earlier daemon stays, with the packets in it, because the
/// kernel refuses to replace an HTB by another HTB.
fn install(device: &str, rate_bps: u64, may_replace: bool) -> anyhow::Result<HtbClass> {
    let index = interface::index(device)?;
    match htb::root_queue(index).context("cannot read the root queue")? {
        RootQueue::Kumi => {}
        RootQueue::Foreign(kind) if !may_replace => anyhow::bail!(
            "{device} has another root queue ({kind}), which is left alone; \
             run `tc qdisc del dev {device} root` to restore kumi's queue"
        ),
        RootQueue::Default | RootQueue::Foreign(_) => {
            htb::install(index).context("cannot install an HTB as the root queue")?;
        }
    }
    HtbClass::create(index, rate_bps / 8, BURST_NS).context("cannot create the class of the queue")
}
