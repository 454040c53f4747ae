//! Sets up a device, changes its links, and removes it.

use super::changes::Links;
use super::clock::Clock;
use super::port::{Port, PortTaken};
use super::shaper::Shaper;
use super::tempo::Tempo;
use super::{COALESCED_PLACES, Device, queues};
use crate::check;
use crate::config::DeviceConfig;
use crate::config::{DatapathChoice, Offload};
use crate::control::Desk;
use crate::datapath::{self, Datapath, Offered};
use crate::interface;
use crate::key;
use crate::ready::Wakers;
use crate::run_dir::RunDir;
use crate::tap::{Created, random_u64, refuse_if_running};
use anyhow::Context;
use kumi_multilink::endpoint::{Config, Endpoint};
use kumi_multilink::lane::Lane;
use kumi_sys::datagrams::{Datagrams, PLACES_MAX};
use kumi_sys::netlink::link::{LinkMonitor, interfaces};
use kumi_sys::tap::TapOffloads;
use std::time::Instant;

/// Bytes of a frame besides its MTU: the inner Ethernet header with a VLAN tag (18) and the virtio
/// header (10).
const FRAME_HEADER_BYTES: usize = 18 + 10;
/// Attempts to open a port that is in use, and the time between them. The kernel takes about 10 ms
/// to clean up a killed process.
const PORT_ATTEMPTS: u32 = 10;
const PORT_RETRY: std::time::Duration = std::time::Duration::from_millis(30);
/// Frames in the device's ring. The default of 500 is less than a window of small frames.
const QUEUE_FRAMES: u32 = 2000;

/// Runs a device of the preset `kumi` until it ends.
///
/// # Errors
/// The configuration does not fit the machine, or the kernel refuses a part.
pub fn run(mut config: DeviceConfig) -> anyhow::Result<()> {
    config.check()?;
    let key = key::load(&config.key)?;
    let all = interfaces()?;
    for (index, name) in config.over.iter().enumerate() {
        check::interface(name, &all, config.needs_ipv6(index))?;
    }
    let dir = RunDir::make(&config.name)?;
    refuse_if_running(&dir, &config.name)?;
    let existed = all.iter().any(|interface| interface.name == config.name);
    let sizing = queues::size(&config, existed)?;
    let taps = queues::open_taps(&config.name, existed, sizing.queues)?;
    let offloads = taps[0].set_offloads(TapOffloads {
        checksum: true,
        tcp_segmentation: config.uses(Offload::TapTso),
        udp_segmentation: config.uses(Offload::TapUso),
    })?;
    let created = Created::new(&config.name, existed);
    let mac = interfaces()?
        .into_iter()
        .find(|interface| interface.name == config.name)
        .and_then(|interface| interface.mac)
        .context("the device has no MAC address")?;
    let (mut datapath, refusal) = start_datapath(&mut config, mac);
    let (node, instance) = (node_identity(&dir, existed)?, random_u64()?);
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let mut sides = Vec::new();
    for lane in queues::lanes(sizing.queues) {
        let mut core = Endpoint::new(
            Config {
                node,
                instance,
                name: host.clone(),
                mac,
                lane,
                coalesces_udp: offloads.udp_segmentation,
                seal: config.seal.seal(),
                key: key.clone(),
                static_peers: config.static_peers(),
            },
            0,
        );
        let mut ports = Vec::new();
        for (number, name) in config.over.iter().enumerate() {
            let number = number as u8;
            let inherited = datapath.as_ref().and_then(|path| path.inherited(number));
            ports.push(open_port_patiently(
                (number, name),
                inherited,
                &config,
                &mut core,
                lane,
            )?);
        }
        sides.push((lane, core, ports));
    }
    let mtu = config.mtu.unwrap_or(match config.datapath {
        DatapathChoice::User => (sides[0].1.unit_bytes_max() - FRAME_HEADER_BYTES) as u32,
        // The frames are those of the links. The daemon cuts its own in two.
        DatapathChoice::Kernel => links_mtu(&config.over)?,
    });
    datapath.iter_mut().for_each(|path| path.set_mtu(mtu));
    interface::configure(&config.name, mtu, QUEUE_FRAMES, &config.address)?;
    // On an existing device, the administrator may have chosen other values.
    let outcome = if existed {
        Ok(())
    } else {
        interface::hasten_neighbours(&config.name)
    };
    if let Err(error) = outcome {
        let warning = "warning: cannot shorten the intervals of neighbour discovery";
        interface::log(&config.name, &format!("{warning}: {error}"));
    }
    if config.datapath == DatapathChoice::Kernel {
        interface::keep_neighbours(&config.name);
    }
    if let Err(error) = interface::set_rto_min(&config.name, config.rto_floor()) {
        let warning = "warning: cannot set the RTO floor of the device's routes";
        interface::log(&config.name, &format!("{warning}: {error}"));
    }
    taps[0].set_persistent(true)?;
    let is_shaped = config.uses(Offload::Shaper);
    let shapers = Shaper::new(&config.name, !existed, is_shaped, taps.len());
    let facts = serde_json::json!({
        "mtu": mtu,
        "tap_tso": offloads.tcp_segmentation,
        "tap_uso": offloads.udp_segmentation,
        "busy_poll": config.busy_poll,
        "queues": sizing.queues,
        "udp_port": config.port,
        "core_bps": sizing.core_bps.round(),
        "datapath_refusal": refusal,
    });
    created.keep();
    let (desk, controls) = Desk::open(&dir.socket(), taps.len())?;
    interface::log(&config.name, "up");
    if let Some(note) = &sizing.note {
        interface::log(&config.name, note);
    }
    let started = Instant::now();
    let parts = sides.into_iter().zip(taps).zip(shapers).zip(controls);
    let mut devices = Vec::new();
    for ((((lane, core, ports), tap), shaper), control) in parts {
        devices.push(Device {
            lane,
            node,
            core,
            tap,
            ports,
            monitor: LinkMonitor::open()?,
            control,
            wakers: Wakers::new()?,
            shaper,
            inlet: Default::default(),
            tempo: Tempo::new(config.uses(Offload::Priority)),
            clock: Clock::new(started),
            datagrams: Datagrams::with_longest(PLACES_MAX).limit_coalesced(COALESCED_PLACES),
            facts: facts.clone(),
            tap_write_errors: 0,
            last_log: (Instant::now(), Default::default()),
            routes_at_ns: 0,
            reopen_at_ns: 0,
            carrier: Default::default(),
            datapath: datapath.take(),
            has_path_news: true,
            seal_mismatch: None,
            has_delivered: false,
            is_ended: false,
            config: config.clone(),
        });
    }
    let mut device = queues::serve(devices, &desk)?;
    if let Some(datapath) = &mut device.datapath {
        datapath.stop();
    }
    device.tap.set_persistent(false)?;
    // The control socket is removed last: a caller that waits for this may start the next daemon at
    // once.
    drop(device);
    dir.clear();
    interface::log(&config.name, "down");
    Ok(())
}

/// Returns the smallest MTU of these interfaces, in bytes.
fn links_mtu(over: &[String]) -> anyhow::Result<u32> {
    let all = interfaces()?;
    let links = all.iter().filter(|link| over.contains(&link.name));
    links
        .map(|link| link.mtu)
        .min()
        .context("the device has no links")
}

/// Attaches the kernel's data path to a device and its links, if it is configured, in place of that
/// of a daemon that was killed. If the kernel refuses, the daemon carries the frames. Then also
/// returns the reason.
fn start_datapath(config: &mut DeviceConfig, mac: [u8; 6]) -> (Option<Datapath>, Option<String>) {
    let start = || -> anyhow::Result<Option<Datapath>> {
        let index = interface::index(&config.name)?;
        if config.datapath == DatapathChoice::User {
            datapath::clean(index, &[])?;
            return Ok(None);
        }
        let used = [&config.over[..], std::slice::from_ref(&config.name)].concat();
        datapath::clean(index, &used)?;
        let links = config.over.iter().map(|name| interface::index(name));
        let links = links.collect::<Result<Vec<u32>, _>>()?;
        let mut datapath = Datapath::start(&config.name, index, mac, &links)?;
        for ((number, name), link) in (0..).zip(&config.over).zip(links) {
            datapath.add_link(number, name, link)?;
        }
        Ok(Some(datapath))
    };
    match start() {
        Ok(datapath) => (datapath, None),
        Err(error) => {
            let _ = interface::index(&config.name).map(|index| datapath::clean(index, &[]));
            config.datapath = DatapathChoice::User;
            let text = format!("{error:#}");
            let message = format!("warning: no data path in the kernel: {text}");
            interface::log(&config.name, &message);
            (None, Some(text))
        }
    }
}

/// Opens a port, with several attempts while it is in use. The port may belong to a killed daemon
/// that the kernel is still cleaning up.
fn open_port_patiently(
    link: (u8, &str),
    inherited: Option<Offered>,
    config: &DeviceConfig,
    core: &mut Endpoint,
    lane: Lane,
) -> anyhow::Result<Port> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        attempts -= 1;
        match open_port(link, inherited, config, core, lane, 0) {
            Err(error) if attempts > 0 && error.is::<PortTaken>() => {
                std::thread::sleep(PORT_RETRY);
            }
            outcome => return outcome,
        }
    }
}

fn open_port(
    (number, name): (u8, &str),
    inherited: Option<Offered>,
    config: &DeviceConfig,
    core: &mut Endpoint,
    lane: Lane,
    now_ns: u64,
) -> anyhow::Result<Port> {
    let all = interfaces()?;
    let interface = check::interface(name, &all, config.needs_ipv6(usize::from(number)))?;
    let udp_port = config.port + u16::from(lane.number);
    let port = Port::open(number, interface, udp_port, config.uses(Offload::UdpGro))?;
    // The link of a removed interface makes room for that of its successor.
    if core.link(number).is_some() {
        core.remove_link(number, now_ns);
    }
    let direct = match config.datapath {
        DatapathChoice::User => None,
        DatapathChoice::Kernel => datapath::link_addresses(interface.mac, inherited),
    };
    let link = Port::link_config(interface, config.port, config.peer.is_empty(), direct);
    core.add_link(number, link, now_ns);
    if let Some(link) = core.link_mut(number) {
        link.queue.segmentation = config.uses(Offload::UdpSegment);
    }
    core.handle_carrier(number, interface.has_carrier, now_ns);
    Ok(port)
}

impl Device {
    /// Returns the links, for checks of a change to them.
    pub(super) fn links(&self) -> Links<'_> {
        Links {
            device: &self.config.name,
            names: self.ports.iter().map(|port| port.name.as_str()).collect(),
        }
    }

    pub(super) fn add_link(&mut self, name: &str, now_ns: u64) -> anyhow::Result<()> {
        self.links().check_new(name)?;
        let is_taken = |number: &u8| self.ports.iter().any(|port| port.number == *number);
        let number = (0..kumi_multilink::wire::LINKS_MAX as u8)
            .find(|number| !is_taken(number))
            .context("no number is free for the link")?;
        let port = open_port(
            (number, name),
            None,
            &self.config,
            &mut self.core,
            self.lane,
            now_ns,
        )?;
        if let Some(datapath) = &mut self.datapath {
            datapath.add_link(number, &port.name, port.index)?;
        }
        self.ports.push(port);
        Ok(())
    }

    /// Reopens the ports of removed interfaces, if an interface of the same name exists. A port
    /// that cannot be opened yet (the interface is down or has no IPv6) is tried again later.
    pub(super) fn reopen_links(&mut self, now_ns: u64) {
        for index in 0..self.ports.len() {
            if !self.ports[index].is_gone {
                continue;
            }
            let (number, name) = (self.ports[index].number, self.ports[index].name.clone());
            let fixed_bps = self.core.link(number).and_then(|link| {
                let is_fixed = link.config.is_rate_fixed;
                is_fixed.then(|| link.capacity.rate_bps() as u64)
            });
            let lane = self.lane;
            let link = (number, name.as_str());
            let outcome = open_port(link, None, &self.config, &mut self.core, lane, now_ns);
            if let Ok(port) = outcome {
                if let Some(datapath) = &mut self.datapath {
                    let outcome = datapath.add_link(number, &port.name, port.index);
                    if let Err(error) = outcome {
                        interface::log(&self.config.name, &format!("warning: {error}"));
                    }
                }
                self.ports[index] = port;
                interface::log(&self.config.name, &format!("{name} is in use again"));
                if fixed_bps.is_some() {
                    let _ = self.set_rate(&name, fixed_bps);
                }
            }
        }
    }

    pub(super) fn remove_link(&mut self, name: &str, now_ns: u64) -> anyhow::Result<()> {
        let index = self.links().find_removable(name)?;
        let port = self.ports.remove(index);
        self.core.remove_link(port.number, now_ns);
        if let Some(datapath) = &mut self.datapath {
            datapath.follow(&mut self.core, true, now_ns);
            datapath.remove_link(port.number);
        }
        self.transmit();
        Ok(())
    }

    pub(super) fn set_rate(&mut self, name: &str, rate_bps: Option<u64>) -> anyhow::Result<()> {
        let index = self.links().find_for_rate(name, rate_bps)?;
        let number = self.ports[index].number;
        let link = self.core.link_mut(number).context("the link was removed")?;
        let was_fixed = std::mem::replace(&mut link.config.is_rate_fixed, rate_bps.is_some());
        match rate_bps {
            Some(rate_bps) => link.capacity.set(rate_bps),
            // A fixed rate is no measurement, so measuring starts from the NIC's claim.
            None if was_fixed => link.forget_rate(),
            None => {}
        }
        Ok(())
    }
}

/// Returns the device's identity, which is kept while the device persists.
fn node_identity(dir: &RunDir, existed: bool) -> anyhow::Result<u64> {
    let identity = std::fs::read_to_string(dir.node()).ok().filter(|_| existed);
    if let Some(node) = identity.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()) {
        return Ok(node);
    }
    let node = random_u64()?;
    std::fs::write(dir.node(), format!("{node:016x}\n"))?;
    Ok(node)
}
