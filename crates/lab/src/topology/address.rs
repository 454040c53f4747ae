//! Addresses that follow from the topology alone, so that every run of a lab has the same ones.
//!
//! A layer-2 segment is what frames can reach through switches without a router: one cable, or one
//! tree of switches with all the links that end in it. Segment `s` (from 1, in the order of the
//! links) is `10.s.0.0/16`; the `k`-th NIC (from 0) that host `h` (from 1) has in it is
//! `10.s.k.h`. So h1 is always `….1`, and links of one host that share a switch stay distinct.

use super::{End, Topology};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The addresses of one NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicAddress {
    /// Host's index.
    pub host: usize,
    /// Host's name.
    pub host_name: String,
    /// Device's name inside the host.
    pub device: String,
    /// Index of the link.
    pub link: usize,
    /// Which end of the link, 0 or 1.
    pub side: usize,
    /// Layer-2 segment, from 1.
    pub segment: usize,
    /// Ethernet address, locally administered.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Prefix length of `ipv4`.
    pub prefix_len: u8,
    /// The link-local address that Linux forms from `mac` (RFC 4291, appendix A).
    pub ipv6_link_local: Ipv6Addr,
}

impl NicAddress {
    /// The Ethernet address in colon notation.
    pub fn mac_text(&self) -> String {
        self.mac.map(|octet| format!("{octet:02x}")).join(":")
    }

    /// `h1:eth1`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.host_name, self.device)
    }
}

/// For each link, the layer-2 segment it lies in, from 1 in the order of the links.
pub fn segments(topology: &Topology) -> Vec<usize> {
    // A switch's segment is the smallest switch index that it reaches.
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

/// The link-local address with the modified EUI-64 of `mac`.
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

/// The addresses of every NIC, in the order of the links.
pub fn plan(topology: &Topology) -> Vec<NicAddress> {
    let segments = segments(topology);
    let mut planned: Vec<NicAddress> = Vec::new();
    for at in topology.nics() {
        let host = at.nic.host;
        let segment = segments[at.link];
        let earlier = planned.iter().filter(|other| other.host == host);
        let nic_index = earlier.clone().count();
        let in_segment = earlier.filter(|other| other.segment == segment).count();
        let (ipv4, prefix_len) = at.nic.address.unwrap_or((
            Ipv4Addr::new(10, segment as u8, in_segment as u8, host as u8 + 1),
            16,
        ));
        let mac = [0x02, 0x6b, 0x75, host as u8 + 1, 0, nic_index as u8 + 1];
        planned.push(NicAddress {
            host,
            host_name: topology.hosts[host].name.clone(),
            device: at.nic.device.clone(),
            link: at.link,
            side: at.side,
            segment,
            mac,
            ipv4,
            prefix_len,
            ipv6_link_local: link_local(mac),
        });
    }
    planned
}

/// `/etc/hosts` as `viewer` needs it: for each host an address in a segment that both are in,
/// where there is one, and `HOST-DEVICE` for every NIC.
pub fn hosts_file(topology: &Topology, plan: &[NicAddress], viewer: usize) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    let mine: Vec<usize> = plan
        .iter()
        .filter(|nic| nic.host == viewer)
        .map(|nic| nic.segment)
        .collect();
    for (index, host) in topology.hosts.iter().enumerate() {
        let mut of_host = plan.iter().filter(|nic| nic.host == index);
        let shared = of_host.clone().find(|nic| mine.contains(&nic.segment));
        if let Some(nic) = shared.or_else(|| of_host.next()) {
            text.push_str(&format!("{} {}\n", nic.ipv4, host.name));
        }
    }
    for nic in plan {
        text.push_str(&format!("{} {}-{}\n", nic.ipv4, nic.host_name, nic.device));
    }
    text
}
