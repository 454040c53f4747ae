//! Several queues of one device: how many, their ends of the TAP, and their threads.
//!
//! Each queue is a [`Device`] with an endpoint, sockets and a thread of its own; they share the class that
//! holds the host back ([`super::shaper`]) and the control socket ([`super::control`]). The kernel gives
//! every flow one queue: by its hash, until something of the flow was written to another.

use super::control::Desk;
use super::setup::open_tap;
use super::sizing::{self, Sizing};
use super::{Device, Offload, Tempo, port};
use crate::BadInput;
use crate::link::config::{DeviceConfig, Queues};
use anyhow::anyhow;
use kumi_multilink::lane::Lane;
use kumi_sys::tap::{self, Tap};

/// How many queues the device gets.
pub(super) fn size(config: &DeviceConfig, existed: bool) -> Result<Sizing, BadInput> {
    let name = &config.name;
    let has_one_only = existed && tap::is_multi_queue(name) == Some(false);
    if has_one_only && matches!(config.queues, Queues::Exactly(2..)) {
        return Err(BadInput(format!(
            "{name} exists with one queue; `kumi link down {name}` first"
        )));
    }
    let why = format!("{name} exists with one queue until `kumi link down {name}`");
    let has_no_ports = config.port > u16::MAX - u16::from(crate::link::config::QUEUES_MAX);
    let one_only = if has_one_only {
        Some(why.as_str())
    } else if has_no_ports {
        Some("there are no UDP ports after it for more queues")
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
        one_only,
    ))
}

/// The lanes of a device of `queues`.
pub(super) fn lanes(queues: u8) -> impl Iterator<Item = Lane> {
    (0..queues).map(move |number| Lane {
        number,
        count: queues,
    })
}

/// One end of the TAP for each queue. A device that a daemon left behind keeps its kind: one made for
/// several queues may have one.
pub(super) fn open_taps(name: &str, existed: bool, queues: u8) -> anyhow::Result<Vec<Tap>> {
    let multi_queue = queues > 1 || existed && tap::is_multi_queue(name) == Some(true);
    (0..queues).map(|_| open_tap(name, multi_queue)).collect()
}

/// Ends the other queues when one ends, however it does.
struct EndsAll<'a>(&'a Desk);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Serves all queues until one ends; gives the first.
pub(super) fn serve(devices: Vec<Device>, desk: &Desk) -> anyhow::Result<Device> {
    let mut devices = devices.into_iter();
    let mut first = devices
        .next()
        .ok_or_else(|| anyhow!("a device has a queue"))?;
    std::thread::scope(|scope| {
        let others: Vec<_> = devices
            .map(|mut device| {
                scope.spawn(move || {
                    let _ends = EndsAll(desk);
                    // What a thread asks of the scheduler it asks for itself.
                    device.tempo = Tempo::new(device.config.uses(Offload::Priority));
                    device.serve()
                })
            })
            .collect();
        let outcome = {
            let _ends = EndsAll(desk);
            first.serve()
        };
        for other in others {
            let number = "a queue ended by a fault of its own; see above";
            other.join().map_err(|_| anyhow!(number))??;
        }
        outcome
    })?;
    Ok(first)
}
