//! Addresses that follow from the topology alone, so that every run of a lab has the same ones.
//!
//! A layer-2 segment is the set of links that frames can reach without a router. It is one cable,
//! or one tree of switches with all the links that end in it. Segment `s` (from 1, in the order of
//! the links) is `10.s.0.0/16`. The `k`-th NIC (from 0) that host `h` (from 1) has in it is
//! `10.s.k.h`. So h1 is always `….1`, and a host's links that share a switch have different
//! addresses.

use super::{End, Topology};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Addresses of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicAddress {
    /// Index of the host.
    pub host: usize,
    /// Name of the host.
    pub host_name: String,
    /// Name of the device inside the host.
    pub device: String,
    /// Index of the link.
    pub link: usize,
    /// End of the link, 0 or 1.
    pub side: usize,
    /// Layer-2 segment, from 1.
    pub segment: usize,
    /// Ethernet address, locally administered.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Prefix length of `ipv4`.
    pub prefix_len: u8,
    /// Link-local address that Linux forms from `mac` (RFC 4291, appendix A).
    pub ipv6_link_local: Ipv6Addr,
}

impl NicAddress {
    /// Returns the Ethernet address in colon notation.
    pub fn mac_text(&self) -> String {
        self.mac.map(|octet| format!("{octet:02x}")).join(":")
    }

    /// Returns the name of the NIC, such as `h1:eth1`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.host_name, self.device)
    }
}

/// Returns the layer-2 segment of each link, from 1 in the order of the links.
pub fn segments(topology: &Topology) -> Vec<usize> {
    // In the end, `root` of a switch is the smallest switch index in its segment.
    let mut root: Vec<usize> = (0..topology.switches.len()).collect();
    for _ in 0..topology.switches.len() {
        for link in &topology.links {
            if let [End::Port(a), End::Port(b)] = link.ends {
                let least = root[a].min(root[b]);
                (root[a], root[b]) = (least, least);
            }
        }
    }
    let mut numbers: Vec<Option<usize>> = vec![None; topology.switches.len()];
    let mut next = 1;
    let mut fresh = || {
        next += 1;
        next - 1
    };
    topology
        .links
        .iter()
        .map(|link| {
            let port = link.ends.iter().find_map(|end| match end {
                End::Port(switch) => Some(root[*switch]),
                End::Nic(_) => None,
            });
            match port {
                Some(switch) => *numbers[switch].get_or_insert_with(&mut fresh),
                None => fresh(),
            }
        })
        .collect()
}

/// Returns the link-local address with the modified EUI-64 of `mac`.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        pair(a ^ 2, b),
        pair(c, 0xff),
        pair(0xfe, d),
        pair(e, f),
    )
}

/// Returns the addresses of every NIC, in the order of [`Topology::nics`].
pub fn plan(topology: &Topology) -> Vec<NicAddress> {
    let segments = segments(topology);
    let mut addresses: Vec<NicAddress> = Vec::new();
    for position in topology.nics() {
        let host = position.nic.host;
        let segment = segments[position.link];
        let earlier = addresses.iter().filter(|nic| nic.host == host);
        let nic_index = earlier.clone().count();
        let segment_index = earlier.filter(|nic| nic.segment == segment).count();
        let (ipv4, prefix_len) = position.nic.address.unwrap_or((
            Ipv4Addr::new(10, segment as u8, segment_index as u8, host as u8 + 1),
            16,
        ));
        let mac = [0x02, 0x6b, 0x75, host as u8 + 1, 0, nic_index as u8 + 1];
        addresses.push(NicAddress {
            host,
            host_name: topology.hosts[host].name.clone(),
            device: position.nic.device.clone(),
            link: position.link,
            side: position.side,
            segment,
            mac,
            ipv4,
            prefix_len,
            ipv6_link_local: link_local(mac),
        });
    }
    addresses
}

/// Returns `/etc/hosts` for the host `viewer`. Each host has an address in a segment that it shares
/// with `viewer`, if there is one. Every NIC also has the name `HOST-DEVICE`.
pub fn hosts_file(topology: &Topology, plan: &[NicAddress], viewer: usize) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    let viewer_segments: Vec<usize> = plan
        .iter()
        .filter(|nic| nic.host == viewer)
        .map(|nic| nic.segment)
        .collect();
    for (index, host) in topology.hosts.iter().enumerate() {
        let mut host_nics = plan.iter().filter(|nic| nic.host == index);
        let shared = host_nics
            .clone()
            .find(|nic| viewer_segments.contains(&nic.segment));
        if let Some(nic) = shared.or_else(|| host_nics.next()) {
            text.push_str(&format!("{} {}\n", nic.ipv4, host.name));
        }
    }
    for nic in plan {
        text.push_str(&format!("{} {}-{}\n", nic.ipv4, nic.host_name, nic.device));
    }
    text
}
