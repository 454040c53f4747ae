//! The HTB class in the kernel that limits the host's rate, and the thread that sets its rate (ADR
//! 007).
//!
//! Others may hold the kernel's configuration lock for a long time, and the data path must not wait
//! for it. So the loops store the rate that they want, and a thread applies it. The thread
//! reinstalls a class that was removed. It leaves a queue alone that the administrator has
//! installed instead.

use crate::interface;
use anyhow::Context;
use kumi_sys::qdisc::HtbClass;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Burst of the class after an idle time, in ns at its rate.
const BURST_NS: u64 = 500_000;
/// Time between attempts to reinstall the class. Each attempt runs `tc` one to three times.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// Handle of the device's root queue, and its default class.
const HANDLE: &str = "1:";
const DEFAULT_CLASS: &str = "0x1";

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
            said: String::new(),
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
    said: String,
}

impl Keeper {
    fn keep(mut self) {
        let mut applied_bps = None;
        while !self.is_ended.load(Ordering::Relaxed) {
            let wanted_bps = self.rate_bps.load(Ordering::Relaxed);
            let Some(class) = &mut self.class else {
                std::thread::park_timeout(RETRY_EVERY);
                if !self.is_ended.load(Ordering::Relaxed) {
                    self.put_in_place(false);
                }
                continue;
            };
            if applied_bps == Some(wanted_bps) {
                std::thread::park();
                continue;
            }
            match class.set_rate(wanted_bps / 8, BURST_NS) {
                Ok(()) => applied_bps = Some(wanted_bps),
                Err(error) => {
                    (self.class, applied_bps) = (None, None);
                    self.say(format!("cannot set the rate of the queue ({error})"));
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
                if !std::mem::take(&mut self.said).is_empty() {
                    interface::log(&self.device, "the queue is installed again");
                }
            }
            Err(error) => self.say(format!("warning: no backpressure for TCP: {error:#}")),
        }
    }

    fn say(&mut self, what: String) {
        if self.said != what {
            interface::log(&self.device, &what);
            self.said = what;
        }
    }
}

/// Owner of a device's root queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This daemon, or an earlier one.
    Ours,
    /// The kernel: it is the default queue.
    Kernel,
    /// The administrator.
    Administrator,
}

/// Returns the owner of the root queue in the output of `tc -json qdisc show`.
fn owner(shown: &Value) -> Owner {
    let queues = shown.as_array().into_iter().flatten();
    let Some(root) = queues.into_iter().find(|queue| queue["root"] == true) else {
        return Owner::Kernel;
    };
    let is_htb = root["kind"] == "htb" && root["handle"] == HANDLE;
    if is_htb && root["options"]["default"] == DEFAULT_CLASS {
        Owner::Ours
    } else if root["handle"] == "0:" {
        Owner::Kernel
    } else {
        Owner::Administrator
    }
}

fn queue_owner(device: &str) -> anyhow::Result<Owner> {
    let text = interface::run("tc", &["-json", "qdisc", "show", "dev", device])?;
    let shown = serde_json::from_str(&text).context("invalid output of `tc -json qdisc show`")?;
    Ok(owner(&shown))
}

/// Removes the queue that an earlier daemon left on a device that must have none.
pub fn remove_ours(device: &str) {
    if queue_owner(device).is_ok_and(|owner| owner == Owner::Ours) {
        let _ = interface::run("tc", &["qdisc", "del", "dev", device, "root"]);
    }
}

/// Installs the class. A root queue of an earlier daemon stays, with the packets in it, because the
/// kernel refuses to replace an HTB by another HTB.
fn install(device: &str, rate_bps: u64, may_replace: bool) -> anyhow::Result<HtbClass> {
    match queue_owner(device)? {
        Owner::Ours => {}
        Owner::Administrator if !may_replace => anyhow::bail!(
            "{device} has another root queue, which is left alone; \
             run `tc qdisc del dev {device} root` to restore kumi's queue"
        ),
        Owner::Kernel | Owner::Administrator => {
            let root = [
                "qdisc", "replace", "dev", device, "root", "handle", HANDLE, "htb", "default", "1",
            ];
            interface::run("tc", &root)?;
        }
    }
    let rate = format!("{rate_bps}bit");
    let class = [
        "class", "replace", "dev", device, "parent", HANDLE, "classid", "1:1", "htb",
    ];
    let rates = [
        "rate", &rate, "burst", "64k", "cburst", "64k", "quantum", "65536",
    ];
    interface::run("tc", &[&class[..], &rates[..]].concat())?;
    let index = nix::net::if_::if_nametoindex(device)?;
    Ok(HtbClass::open(index)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queue_owner__each_kind__is_recognized() {
        let shown = |kind, handle, default| {
            json!([{"kind": "ingress", "handle": "ffff:", "options": {}},
                   {"kind": kind, "handle": handle, "root": true, "options": {"default": default}}])
        };
        assert_eq!(owner(&shown("htb", "1:", "0x1")), Owner::Ours);
        assert_eq!(owner(&shown("htb", "1:", "0x30")), Owner::Administrator);
        assert_eq!(owner(&shown("htb", "8001:", "0x1")), Owner::Administrator);
        assert_eq!(owner(&shown("fq", "8002:", "0x1")), Owner::Administrator);
        assert_eq!(owner(&shown("fq_codel", "0:", "0x1")), Owner::Kernel);
        assert_eq!(owner(&json!([])), Owner::Kernel);
    }
}
