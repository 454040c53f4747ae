//! Sets up the device and removes it.

use super::{Device, Nic};
use crate::protocol::{ETHER_TYPE, HEADER_BYTES, Ri2n};
use anyhow::Context;
use kumi_command::BadInput;
use kumi_device::check;
use kumi_device::config::DeviceConfig;
use kumi_device::control::Control;
use kumi_device::interface;
use kumi_device::ready::Wakers;
use kumi_device::run_dir::RunDir;
use kumi_device::tap::{Created, open_tap, random_u64, refuse_if_running};
use kumi_sys::netlink::link::{Interface, LinkMonitor, interfaces};
use kumi_sys::raw_ethernet::RawEthernet;
use kumi_sys::tap::TapOffloads;
use std::time::Instant;

/// Bytes of a frame besides its MTU: the virtio header (10) and the Ethernet header with a VLAN tag
/// (18).
const FRAME_HEADER_BYTES: usize = 10 + 18;
/// Frames in the device's ring. With the links' socket buffers, this is about the 1000 frames that
/// each of the paper's two NICs could queue.
const QUEUE_FRAMES: u32 = 1000;

/// Runs the device until it ends.
pub fn run(config: DeviceConfig) -> anyhow::Result<()> {
    config.check()?;
    let all = interfaces()?;
    let mut links = Vec::new();
    for name in &config.over {
        links.push(check::interface(name, &all, false)?);
    }
    let mtu = mtu(&config, &links)?;
    let dir = RunDir::make(&config.name)?;
    refuse_if_running(&dir, &config.name)?;
    let is_existing = all.iter().any(|interface| interface.name == config.name);
    let tap = open_tap(&config.name, false)?;
    tap.set_offloads(TapOffloads {
        checksum: false,
        tcp_segmentation: false,
        udp_segmentation: false,
    })?;
    let created = Created::new(&config.name, is_existing);
    let mac = interfaces()?
        .into_iter()
        .find(|interface| interface.name == config.name)
        .and_then(|interface| interface.mac)
        .context("the device has no MAC address")?;
    let nics: Vec<Nic> = links
        .iter()
        .map(|link| open_nic(link))
        .collect::<Result<_, _>>()?;
    interface::configure(&config.name, mtu, QUEUE_FRAMES, &config.address)?;
    // A daemon of the other preset may have left its queue on the device.
    kumi_device::class::remove_ours(&config.name);
    tap.set_persistent(true)?;
    // The file shows `kumi link down` that the device is kumi's, in case this process crashes.
    std::fs::write(dir.node(), "ri2n\n")?;
    created.keep();
    let mut device = Device {
        core: Ri2n::new(mac, nics.len(), random_u64()? as u32, 0),
        mtu,
        tap,
        nics,
        waiting_frame: None,
        frame_bytes_max: mtu as usize + FRAME_HEADER_BYTES,
        monitor: LinkMonitor::open()?,
        control: Control::listen(&dir.socket())?,
        wakers: Wakers::new()?,
        started: Instant::now(),
        tap_write_errors: 0,
        is_ending: false,
        config,
    };
    interface::log(&device.config.name, "up, preset ri2n");
    device.serve()?;
    device.tap.set_persistent(false)?;
    let name = device.config.name.clone();
    // The control socket is removed last: a caller that waits for this may start the next daemon at
    // once.
    drop(device);
    dir.clear();
    interface::log(&name, "down");
    Ok(())
}

/// Returns the device's MTU: the least MTU of the links less the header (§5.2), or a smaller
/// configured one.
fn mtu(config: &DeviceConfig, links: &[&Interface]) -> Result<u32, BadInput> {
    let least = links.iter().map(|link| link.mtu).min().unwrap_or(0);
    let most = least - HEADER_BYTES as u32;
    match config.mtu {
        Some(mtu) if mtu > most => Err(BadInput(format!(
            "invalid mtu {mtu}: expected at most {most}; the links have MTU {least}, of which the header takes {HEADER_BYTES} bytes"
        ))),
        Some(mtu) => Ok(mtu),
        None => Ok(most),
    }
}

fn open_nic(interface: &Interface) -> anyhow::Result<Nic> {
    let name = &interface.name;
    let socket = RawEthernet::open(interface.index, ETHER_TYPE, interface.mtu)
        .with_context(|| format!("{name}: a packet socket needs CAP_NET_RAW; run as root"))?;
    Ok(Nic {
        name: name.clone(),
        index: interface.index,
        socket,
        has_carrier: interface.has_carrier,
        is_blocked: false,
        refused: 0,
        overrun: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nic(mtu: u32) -> Interface {
        Interface {
            index: 2,
            name: "eth1".to_owned(),
            mtu,
            mac: Some([2, 0, 0, 0, 0, 1]),
            is_up: true,
            has_carrier: true,
            is_loopback: false,
            master: None,
            is_gone: false,
        }
    }

    #[test]
    fn mtu__larger_than_the_links_carry__is_refused_with_the_largest() {
        let (first, second) = (nic(9000), nic(1500));
        let device_mtu = |value: serde_json::Value| {
            let config = json!({"name": "kumi0", "over": ["eth1", "eth2"], "mtu": value});
            let config: DeviceConfig = serde_json::from_value(config).unwrap();
            mtu(&config, &[&first, &second]).map_err(|error| error.0)
        };
        assert_eq!(device_mtu(json!(null)), Ok(1492));
        assert_eq!(device_mtu(json!(1492)), Ok(1492));
        let message = "invalid mtu 1493: expected at most 1492; the links have MTU 1500, of which \
                       the header takes 8 bytes";
        assert_eq!(device_mtu(json!(1493)), Err(message.to_owned()));
    }
}
