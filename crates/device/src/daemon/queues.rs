//! Queues of one device: their number, their ends of the TAP, and their threads.
//!
//! Each queue is a [`Device`] with an endpoint, sockets and a thread of its own (ADR 012). The
//! queues share the class that limits the host's rate ([`super::shaper`]) and the control socket
//! ([`crate::control`]). The kernel gives every flow one queue. It chooses by the flow's hash,
//! until the daemon has written a frame of the flow to another queue.

use super::sizing::{self, Sizing};
use super::{Device, Tempo, port};
use crate::config::Offload;
use crate::config::{DatapathChoice, DeviceConfig, QUEUES_MAX, Queues};
use crate::control::Desk;
use crate::tap::open_tap;
use anyhow::anyhow;
use kumi_command::BadInput;
use kumi_multilink::lane::Lane;
use kumi_sys::tap::{self, Tap};

/// Returns the number of queues for the device. Fails if an existing device with one queue is
/// configured to have more.
pub(super) fn size(config: &DeviceConfig, existed: bool) -> Result<Sizing, BadInput> {
    let name = &config.name;
    let is_single_queue = existed && tap::is_multi_queue(name) == Some(false);
    if is_single_queue && matches!(config.queues, Queues::Exactly(2..)) {
        return Err(BadInput(format!(
            "{name} exists with one queue; run `kumi link down {name}` first"
        )));
    }
    let reason = format!("{name} exists with one queue until `kumi link down {name}`");
    let has_no_ports = config.port > u16::MAX - u16::from(QUEUES_MAX);
    let single_queue_reason = if is_single_queue {
        Some(reason.as_str())
    } else if config.datapath == DatapathChoice::Kernel {
        Some("the kernel carries the frames")
    } else if has_no_ports {
        Some("the port leaves too few UDP ports for more queues")
    } else {
        None
    };
    let speed = |name: &String| kumi_sys::speed::link_speed_bps(name);
    let links: Vec<(&str, u64)> = config
        .over
        .iter()
        .map(|name| {
            (
                name.as_str(),
                speed(name).unwrap_or(port::SPEED_UNKNOWN_BPS),
            )
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let core_bps = sizing::core_bps(config.seal.seal());
    Ok(sizing::decide(
        config.queues,
        &links,
        core_bps,
        cores,
        single_queue_reason,
    ))
}

/// Returns the lanes of a device with this number of `queues`.
pub(super) fn lanes(queues: u8) -> impl Iterator<Item = Lane> {
    (0..queues).map(move |number| Lane {
        number,
        count: queues,
    })
}

/// Opens one end of the TAP for each queue. A device left by an earlier daemon keeps its kind: one
/// made for several queues may be opened with one.
pub(super) fn open_taps(name: &str, existed: bool, queues: u8) -> anyhow::Result<Vec<Tap>> {
    let multi_queue = queues > 1 || existed && tap::is_multi_queue(name) == Some(true);
    (0..queues).map(|_| open_tap(name, multi_queue)).collect()
}

/// Ends the other queues when one queue ends, even by a panic.
struct EndGuard<'a>(&'a Desk);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Serves all queues until one ends. Returns the first queue.
pub(super) fn serve(devices: Vec<Device>, desk: &Desk) -> anyhow::Result<Device> {
    let mut devices = devices.into_iter();
    let mut first = devices
        .next()
        .ok_or_else(|| anyhow!("the device has no queue"))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .map(|mut device| {
                scope.spawn(move || {
                    let _guard = EndGuard(desk);
                    // The settings of the scheduler apply to the thread that makes them.
                    device.tempo = Tempo::new(device.config.uses(Offload::Priority));
                    device.serve()
                })
            })
            .collect();
        let outcome = {
            let _guard = EndGuard(desk);
            first.serve()
        };
        for thread in threads {
            let message = "the thread of a queue panicked; see the message above";
            thread.join().map_err(|_| anyhow!(message))??;
        }
        outcome
    })?;
    Ok(first)
}
