//! Conversion between a lab's topology and the network of the collectives' planners.

use super::{Bytes, Delay, End, FabricChoice, Faults, Host, Link, Nic, NicQueue, Switch, Topology};
use kumi_topo::{Network, Rate};

/// Rate assumed for a link without a limit: 100 Gb/s.
const UNLIMITED: Rate = match Rate::from_bps(100_000_000_000) {
    Some(rate) => rate,
    None => panic!("a rate"),
};

/// Queue of a simulated NIC, in packets, as Linux's default `txqueuelen`.
const NIC_PACKETS: u32 = 1000;

/// Largest payload of an Ethernet frame, in bytes.
const MTU: u32 = 1500;

impl Topology {
    /// Returns the hosts, switches and links as a tree. Returns `None` if they do not form a tree,
    /// or if a host has several links.
    pub fn network(&self) -> Option<Network> {
        let end = |end: &End| match end {
            End::Nic(nic) => kumi_topo::End::Host(nic.host),
            End::Port(switch) => kumi_topo::End::Switch(*switch),
        };
        let links = self.links.iter().map(|link| kumi_topo::Link {
            ends: [end(&link.ends[0]), end(&link.ends[1])],
            rates: [link.rate.unwrap_or(UNLIMITED); 2],
            latency: link.delay,
        });
        let network = Network {
            name: self.name.clone(),
            hosts: self
                .hosts
                .iter()
                .map(|host| kumi_topo::Host {
                    name: host.name.clone(),
                    both_ways: None,
                })
                .collect(),
            switches: self
                .switches
                .iter()
                .map(|switch| kumi_topo::Switch {
                    name: switch.name.clone(),
                })
                .collect(),
            links: links.collect(),
        };
        let text = network.to_toml().ok()?;
        Network::parse(&self.name, &text).ok()
    }

    /// Creates a topology for a simulation of `network`, with switch ports of `port_queue` bytes.
    /// Both directions of a link have the rate from its first end to its second. Hosts keep their
    /// names, and the one NIC of each is `eth1`.
    pub fn of(network: &Network, port_queue: Bytes) -> Self {
        let end = |end: kumi_topo::End| match end {
            kumi_topo::End::Switch(switch) => End::Port(switch),
            kumi_topo::End::Host(host) => End::Nic(Nic {
                host,
                device: "eth1".to_owned(),
                address: None,
                queue: NicQueue::Packets(NIC_PACKETS),
                bands: false,
                rx_coalesce: Delay::ZERO,
                rx_coalesce_frames: 1,
                gro: false,
                tso: false,
                gso_max_segs: None,
            }),
        };
        let links = network.links.iter().map(|link| Link {
            ends: link.ends.map(end),
            rate: Some(link.rates[0]),
            delay: link.latency,
            port_queue: None,
            burst: Delay::ZERO,
            mtu: MTU,
            faults: Faults::default(),
        });
        let hosts = network.hosts.iter().map(|host| Host {
            name: host.name.clone(),
        });
        let switches = network.switches.iter().map(|switch| Switch {
            name: switch.name.clone(),
            port_queue,
            shared_buffer: None,
        });
        Self {
            name: network.name.clone(),
            fabric: FabricChoice::Emulator,
            congestion_control: "cubic".to_owned(),
            hosts: hosts.collect(),
            switches: switches.collect(),
            links: links.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(links: &str) -> Topology {
        let text = format!(
            "name = \"t\"\nhost = [{{ name = \"a\" }}, {{ name = \"b\" }}]\nswitch = [{{ name = \"s\" }}]\n{links}"
        );
        Topology::parse("t.toml", &text).unwrap()
    }

    #[test]
    fn network__hosts_with_one_link_each__is_a_tree() {
        let slow = "[[link]]\nbetween = [\"a:eth1\", \"s\"]\nrate = \"10Mbit\"\ndelay = \"1ms\"\n";
        let fast = "[[link]]\nbetween = [\"b:eth1\", \"s\"]\nrate = \"1Gbit\"\n";
        let network = topology(&format!("{slow}{fast}")).network().unwrap();
        assert_eq!(network.links[0].rates[1].bps(), 10_000_000);
        assert_eq!(network.links[0].latency.ns(), 1_000_000);
        let extra = "[[link]]\nbetween = [\"b:eth2\", \"s\"]\nrate = \"1Gbit\"\n";
        assert_eq!(topology(&format!("{slow}{fast}{extra}")).network(), None);
        let round_trip = Topology::of(&network, Bytes::new(65536)).network().unwrap();
        assert_eq!(round_trip, network);
    }
}
