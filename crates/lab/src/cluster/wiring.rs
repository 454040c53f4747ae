//! The hosts' side of a lab: one veth per NIC, with its peer in the fabric's namespace.
//!
//! The settings made here survive a change of fabric. The kernel fabric and the emulator both
//! attach to the peers, and the hosts cannot detect which one does.

use super::error::ClusterError;
use super::holder::Holder;
use super::shaper;
use super::tools;
use crate::topology::address::NicAddress;
use crate::topology::{Delay, NicPosition, NicQueue, Topology};
use std::net::Ipv4Addr;

/// Interface index of the first NIC. The two ends of a veth must have different indices. In two
/// fresh namespaces the indices would often be equal. The kernel then assumes that the device has
/// no peer, and handles a change of its carrier up to a second later (`linkwatch_urgent_event`).
const NIC_INDEX_BASE: usize = 100;

/// Interface index of the fabric's first port, above the index of every NIC.
const PORT_INDEX_BASE: usize = 10_000;

/// Output of the settings script if the congestion control must be set on each route.
const BY_ROUTE: &str = "congestion-control-by-route";

/// Returns the name of the fabric's device at side `side` of link `link`.
pub fn port_name(link: usize, side: usize) -> String {
    format!("l{link}{}", ['a', 'b'][side])
}

/// Returns the script lines for a host that has no devices yet.
fn host_settings(topology: &Topology) -> Vec<String> {
    let mut lines: Vec<String> = [
        // Link-local addresses are usable at once. No router is solicited, because there are no
        // routers.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/dad_transmits", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
        // Several NICs may share a subnet, so each answers for its own addresses only.
        ("net/ipv4/conf/all/arp_ignore", "1"),
        ("net/ipv4/conf/all/arp_announce", "2"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        // A connection must not inherit the metrics of an earlier one: results would depend on the
        // order of the runs.
        ("net/ipv4/tcp_no_metrics_save", "1"),
        ("net/mptcp/enabled", "1"),
    ]
    .map(|(path, value)| tools::sysctl_line(path, value))
    .into();
    let cc = &topology.congestion_control;
    let proc = "/proc/sys/net/ipv4";
    lines.push(format!(
        "grep -qw '{cc}' {proc}/tcp_available_congestion_control || {{ echo \"congestion control {cc} is not available; choose one of $(cat {proc}/tcp_available_congestion_control)\" >&2; exit 1; }}"
    ));
    // The default of a namespace must be a congestion control that the machine allows to every
    // user. A route may name any.
    lines.push(format!(
        "( echo '{cc}' > {proc}/tcp_congestion_control ) 2>/dev/null || echo {BY_ROUTE}"
    ));
    // Every group may ping. A user namespace with a single group cannot set this, and does not need
    // it.
    lines.push("echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range 2>/dev/null || :".into());
    lines
}

/// Returns the lines that make the host's end of a veth behave like the NIC.
fn nic_settings(position: &NicPosition<'_>, finished_checksums: bool) -> Vec<String> {
    let nic = position.nic;
    let device = &nic.device;
    // The wire carries frames of at most the MTU, unless the NIC is to carry bursts. Super-frames
    // are divided after the queue, as in a NIC.
    let state = |is_on: bool| if is_on { "on" } else { "off" };
    let (segmentation, gro) = (state(nic.tso), state(nic.gro));
    let checksum = state(!finished_checksums);
    let mut lines = vec![format!(
        "ethtool -K {device} tso {segmentation} tx-udp-segmentation {segmentation} tx {checksum} \
         gro {gro} >/dev/null"
    )];
    if nic.rx_coalesce > Delay::ZERO {
        // NAPI, which `gro on` enables for a veth, polls again only after the timer has expired.
        // The effect is that of a NIC's interrupt moderation.
        let ns = nic.rx_coalesce.ns();
        let refusal = format!(
            "{{ echo 'only root may set rx_coalesce, on {device}; run as root or remove it' >&2; exit 1; }}"
        );
        let class = format!("/sys/class/net/{device}");
        lines.push(format!(
            "( echo 1 > {class}/napi_defer_hard_irqs ) 2>/dev/null || {refusal}"
        ));
        lines.push(format!(
            "( echo {ns} > {class}/gro_flush_timeout ) 2>/dev/null || {refusal}"
        ));
    }
    lines
}

/// Creates every NIC with its device, addresses, queue and offloads. The peers are created in
/// `fabric` and stay down.
///
/// Returns notes for the user about the hosts, in sentences.
///
/// # Errors
/// If the kernel refuses a step. The caller drops the namespaces.
pub fn wire(
    topology: &Topology,
    plan: &[NicAddress],
    hosts: &[Holder],
    fabric: &Holder,
    finished_checksums: bool,
) -> Result<Vec<String>, ClusterError> {
    let cc = &topology.congestion_control;
    let mut is_per_route = false;
    tools::script(
        fabric,
        &["all", "default"].map(|scope| {
            // The fabric must not send frames of its own, such as neighbour discovery or multicast
            // reports.
            tools::sysctl_line(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")
        }),
    )?;
    for host in hosts {
        is_per_route |= tools::script(host, &host_settings(topology))?.contains(BY_ROUTE);
    }
    let mut links = Vec::new();
    for (position, address) in topology.nics().zip(plan) {
        let mtu = topology.links[position.link].mtu;
        // The length is set at creation, because a queue beneath another keeps its initial length.
        let length = match position.nic.queue {
            NicQueue::Packets(packets) if position.nic.bands => format!(" txqueuelen {packets}"),
            _ => String::new(),
        };
        links.push(format!(
            "link add name {} index {} mtu {mtu} type veth peer name {} index {} mtu {mtu}{length} address {} netns {}",
            port_name(position.link, position.side),
            PORT_INDEX_BASE + 2 * position.link + position.side,
            position.nic.device,
            NIC_INDEX_BASE + links.len(),
            address.mac_text(),
            hosts[position.nic.host].pid(),
        ));
    }
    tools::batch(fabric, "ip", &links)?;
    for (index, host) in hosts.iter().enumerate() {
        let (mut ip, mut tc, mut offloads) = (Vec::new(), Vec::new(), Vec::new());
        for (position, address) in topology
            .nics()
            .zip(plan)
            .filter(|(position, _)| position.nic.host == index)
        {
            let device = &position.nic.device;
            let link = &topology.links[position.link];
            ip.push(format!(
                "addr add {}/{} brd + dev {device}",
                address.ipv4, address.prefix_len
            ));
            if let Some(segments) = position.nic.gso_max_segs {
                ip.push(format!("link set {device} gso_max_segs {segments}"));
            }
            ip.push(format!("link set {device} up"));
            if is_per_route {
                let Ipv4Net {
                    network,
                    address,
                    len,
                } = Ipv4Net::new(address);
                ip.push(format!("route change {network}/{len} dev {device} proto kernel scope link src {address} congctl {cc}"));
                ip.push(format!(
                    "route replace fe80::/64 dev {device} proto kernel metric 256 congctl {cc}"
                ));
            }
            tc.extend(shaper::nic_lines(position.nic, link));
            offloads.extend(nic_settings(&position, finished_checksums));
        }
        tools::script(host, &offloads)?;
        tools::batch(host, "tc", &tc)?;
        tools::batch(host, "ip", &ip)?;
    }
    let lines: Vec<String> = topology
        .nics()
        .map(|position| port_name(position.link, position.side))
        .map(|port| format!("ethtool -K {port} tso off gso off gro off >/dev/null"))
        .collect();
    tools::script(fabric, &lines)?;
    let note = format!(
        "{cc} is set on the routes of the lab's NICs, not as the hosts' default, because this machine does not allow it to all users; for devices created later, give their routes `congctl {cc}`, or run `sysctl net.ipv4.tcp_allowed_congestion_control=\"$(sysctl -n net.ipv4.tcp_allowed_congestion_control) {cc}\"` before `up`"
    );
    Ok(if is_per_route { vec![note] } else { Vec::new() })
}

/// IPv4 network of a NIC, in the form that `ip route` uses.
struct Ipv4Net {
    network: Ipv4Addr,
    address: Ipv4Addr,
    len: u8,
}

impl Ipv4Net {
    fn new(nic: &NicAddress) -> Self {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(nic.prefix_len))
            .unwrap_or(0);
        let network = Ipv4Addr::from(u32::from(nic.ipv4) & mask);
        Self {
            network,
            address: nic.ipv4,
            len: nic.prefix_len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs `line` with `sh` and returns the reason of its failure.
    fn refusal(line: &str) -> String {
        let output = Command::new("sh").args(["-c", line]).output().unwrap();
        assert!(!output.status.success(), "{line}");
        String::from_utf8(output.stderr).unwrap()
    }

    #[test]
    fn settings__that_this_machine_refuses__are_named_with_what_it_accepts() {
        let text = r#"
            name = "t"
            congestion_control = "kumi-none"
            host = [{ name = "h1" }, { name = "h2" }]
            link = [{ between = ["h1:nowhere0", "h2:nowhere0"], rx_coalesce = "50us" }]
        "#;
        let topology = Topology::parse("t.toml", text).unwrap();
        let lines = host_settings(&topology);
        let line = lines.iter().find(|line| line.starts_with("grep")).unwrap();
        let expected = "congestion control kumi-none is not available; choose one of ";
        assert!(refusal(line).contains(expected), "{}", refusal(line));

        let position = topology.nics().next().unwrap();
        let lines = nic_settings(&position, false);
        // No machine has this device, so the setting fails for root as well.
        assert_eq!(
            refusal(&lines[1]),
            "only root may set rx_coalesce, on nowhere0; run as root or remove it\n"
        );
    }
}
