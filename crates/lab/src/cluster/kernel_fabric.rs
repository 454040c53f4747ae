//! Fabric made of kernel parts: a bridge for each switch, a token bucket for each port.
//!
//! It costs almost nothing and is exact in rate and queue, but has no delay. A cable between two
//! hosts is a bridge of two ports that does not learn addresses. It can therefore be cut, silenced
//! and metered like any other link. The emulator can also take its place without a change that the
//! hosts notice.

use super::error::ClusterError;
use super::fault_program;
use super::holder::Holder;
use super::link_state::DirectionState;
use super::run_dir::RunDir;
use super::shaper;
use super::tools;
use super::wiring::port_name;
use crate::topology::{End, Link, Topology};

/// Mask of the reserved group addresses whose frames a cable forwards and a switch would not. It
/// contains all but the three that the kernel always keeps (spanning tree, pause, link
/// aggregation).
const CABLE_GROUP_FWD_MASK: u32 = 0xfff8;

fn bridge_name(topology: &Topology, link: usize, side: usize) -> String {
    match topology.links[link].ends[side] {
        End::Port(switch) => format!("sw{switch}"),
        End::Nic(_) => match topology.links[link].ends[1 - side] {
            End::Port(switch) => format!("sw{switch}"),
            End::Nic(_) => format!("c{link}"),
        },
    }
}

/// Returns the fabric's devices of `link`: one per NIC, and both ends of a link between switches.
pub fn port_devices(link: &Link, index: usize) -> Vec<(String, usize)> {
    let is_trunk = link.ends.iter().all(|end| end.nic().is_none());
    (0..2)
        .filter(|side| is_trunk || link.ends[*side].nic().is_some())
        .map(|side| (port_name(index, side), side))
        .collect()
}

/// Returns the `tc` line for the port `device` of `link`. A cable has none, because its queue is
/// the NIC's.
fn queue_line(topology: &Topology, link: &Link, device: &str, side: usize) -> Option<String> {
    // The device at the side of a NIC sends towards that NIC, so its queue belongs to the switch at
    // the other end. Between switches, the device at each side sends for its own switch.
    let owner = match (&link.ends[side], &link.ends[1 - side]) {
        (End::Nic(_), End::Port(switch)) | (End::Port(switch), End::Port(_)) => *switch,
        _ => return None,
    };
    let queue_bytes = link.port_queue_bytes(&topology.switches[owner]);
    shaper::port_line(device, link, queue_bytes)
}

/// Builds the bridges and the ports' queues, and brings the links up.
///
/// # Errors
/// If the kernel refuses a step.
pub fn build(topology: &Topology, fabric: &Holder) -> Result<(), ClusterError> {
    let mut ip = Vec::new();
    let mut tc = Vec::new();
    for (index, _) in topology.switches.iter().enumerate() {
        ip.push(format!(
            "link add sw{index} type bridge stp_state 0 mcast_snooping 0 forward_delay 0"
        ));
        ip.push(format!("link set sw{index} up"));
    }
    for (index, link) in topology.links.iter().enumerate() {
        let mtu = link.mtu;
        if link.is_cable() {
            ip.push(format!(
                "link add c{index} type bridge stp_state 0 mcast_snooping 0 forward_delay 0 ageing_time 0 group_fwd_mask {CABLE_GROUP_FWD_MASK}"
            ));
            ip.push(format!("link set c{index} up"));
        } else if link.ends.iter().all(|end| end.nic().is_none()) {
            let (a, b) = (port_name(index, 0), port_name(index, 1));
            ip.push(format!(
                "link add name {a} mtu {mtu} type veth peer name {b} mtu {mtu}"
            ));
        }
        for (port, side) in port_devices(link, index) {
            ip.push(format!(
                "link set {port} master {}",
                bridge_name(topology, index, side)
            ));
            if link.is_cable() {
                ip.push(format!("link set {port} type bridge_slave learning off"));
            }
            ip.push(format!("link set {port} up"));
            tc.extend(queue_line(topology, link, &port, side));
        }
    }
    tools::batch(fabric, "ip", &ip)?;
    tools::batch(fabric, "tc", &tc)
}

/// Sets the ports of link `index` to the rate that the topology now has.
///
/// # Errors
/// If the kernel refuses.
pub fn set_rate(topology: &Topology, fabric: &Holder, index: usize) -> Result<(), ClusterError> {
    let link = &topology.links[index];
    let lines: Vec<String> = port_devices(link, index)
        .into_iter()
        .filter_map(|(port, side)| queue_line(topology, link, &port, side))
        .collect();
    tools::batch(fabric, "tc", &lines)
}

/// Returns the hook at which faults apply to frames that the end at `side` sends: the device, and
/// true for its ingress. If the sender is a NIC, the hook is behind the queue and the rate. If it
/// is a switch port, the hook is before them.
fn fault_hook(link: &Link, index: usize, side: usize) -> (String, bool) {
    match (&link.ends[side], &link.ends[1 - side]) {
        (End::Nic(_), _) => (port_name(index, side), true),
        (End::Port(_), End::Nic(_)) => (port_name(index, 1 - side), false),
        (End::Port(_), End::Port(_)) => (port_name(index, side), false),
    }
}

/// Applies the faults and the blackhole of `direction` to frames that the end at `side` of link
/// `index` sends. If `direction` has neither, its program is removed. Returns false if this machine
/// has no BPF or no compiled program.
///
/// # Errors
/// If the files cannot be written.
pub fn set_direction(
    topology: &Topology,
    fabric: &Holder,
    run_dir: &RunDir,
    (index, side): (usize, usize),
    direction: &DirectionState,
) -> Result<bool, ClusterError> {
    let (device, is_ingress) = fault_hook(&topology.links[index], index, side);
    let hook = if is_ingress { "ingress" } else { "egress" };
    if direction.is_sound() {
        let removal = format!("tc filter del dev {device} {hook} pref 1 2>/dev/null || :");
        return tools::script(fabric, &[removal]).map(|_| true);
    }
    let Some(object) = fault_program::object(&direction.faults, direction.blackhole, is_ingress)
    else {
        return Ok(false);
    };
    let path = run_dir.path().join(format!("fault-{device}-{hook}.o"));
    std::fs::write(&path, object)
        .map_err(ClusterError::io(format!("writing {}", path.display())))?;
    let outcome = tools::script(
        fabric,
        &[
            format!("tc qdisc add dev {device} clsact 2>/dev/null || :"),
            format!(
                "tc filter replace dev {device} {hook} pref 1 handle 1 bpf da obj {} sec tc",
                path.display()
            ),
        ],
    );
    match outcome {
        Ok(_) => Ok(true),
        Err(ClusterError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the fabric so that the emulator can take over: bridges, port queues, and the devices
/// between switches. The peers of the hosts' NICs stay.
///
/// # Errors
/// If the kernel refuses.
pub fn dismantle(topology: &Topology, fabric: &Holder) -> Result<(), ClusterError> {
    let mut ip = Vec::new();
    let mut lines = Vec::new();
    for (index, link) in topology.links.iter().enumerate() {
        if link.is_cable() {
            ip.push(format!("link del c{index}"));
        } else if link.ends.iter().all(|end| end.nic().is_none()) {
            ip.push(format!("link del {}", port_name(index, 0)));
            continue;
        }
        for (port, _) in port_devices(link, index) {
            lines.push(format!("tc qdisc del dev {port} root 2>/dev/null || :"));
            lines.push(format!("tc qdisc del dev {port} clsact 2>/dev/null || :"));
        }
    }
    ip.extend((0..topology.switches.len()).map(|index| format!("link del sw{index}")));
    tools::batch(fabric, "ip", &ip)?;
    tools::script(fabric, &lines).map(drop)
}

/// Returns the number of frames that the ports' queues have dropped; `None` if `tc` does not report
/// it.
pub fn port_drops(fabric: &Holder) -> Option<u64> {
    let shown = fabric
        .command("tc")
        .args(["-j", "-s", "qdisc", "show"])
        .output()
        .ok()?;
    let queues: Vec<serde_json::Value> = serde_json::from_slice(&shown.stdout).ok()?;
    let of_ports = queues.iter().filter(|queue| queue["kind"] == "tbf");
    Some(of_ports.filter_map(|queue| queue["drops"].as_u64()).sum())
}
