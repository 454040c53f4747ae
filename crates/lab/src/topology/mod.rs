//! Description of a lab: hosts, switches, and the links between them.
//!
//! A [`Topology`] is read from a TOML file ([`Topology::read`]) and is known to be valid. Every end
//! exists, no device is used twice, and the switches form trees. The same value builds the
//! simulated network and the lab of namespaces.

pub mod address;
pub mod fault;
mod file;
mod network;
mod path;
mod random;

pub use fault::{BurstLoss, Direction, Faults, LinkChange};
pub use kumi_topo::nearest;
pub use kumi_topo::quantity::{Bytes, Delay, NicQueue, Probability, QuantityError, Rate};
pub use kumi_topo::source::FileError as TopologyError;

use kumi_topo::source;

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::Path;

/// Bytes that a frame occupies on the wire beyond header and payload. Preamble and start delimiter
/// take 8, the frame check sequence 4, and the inter-frame gap 12 (IEEE 802.3).
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// Default number of received frames that brings a delayed interrupt forward: the budget of a NAPI
/// poll.
pub const RX_COALESCE_FRAMES_DEFAULT: u32 = 64;

/// Default of [`Link::burst`]. With it, a timer that is 200 µs late loses no rate. With 120 µs, a
/// link on a busy machine lost 1.8 % (`docs/perf-log.md`, 2026-11-21). At 1 Gb/s it is 31 KB, a
/// quarter of a port's default queue.
pub const BURST_DEFAULT: Delay = Delay::from_ns(250_000);

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_HEADER_BYTES: u64 = 14;

/// Default depth of a switch port, in bytes: the share of one port in a cheap switch.
pub const PORT_QUEUE_DEFAULT: Bytes = Bytes::new(128 * 1024);

/// Most hosts of a topology. The addresses have one octet for the host.
pub const HOSTS_MAX: usize = 250;

/// Most layer-2 segments of a topology. The addresses have one octet for the segment.
pub const SEGMENTS_MAX: usize = 250;

/// Fabric that carries the frames in real time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricChoice {
    /// The kernel fabric if the links need only rate, queue and faults that delay no frame.
    /// Otherwise the emulator.
    #[default]
    Auto,
    /// Bridges and token buckets. They are cheap and exact in rate, but have no delay.
    Kernel,
    /// The model of [`crate::model`], run against the real clock.
    Emulator,
}

/// A host. Its NICs are the ends of links that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name, which is also the host name.
    pub name: String,
}

/// A store-and-forward switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Name of the switch.
    pub name: String,
    /// Depth of each port's drop-tail output queue, in bytes. Ethernet headers count, framing does
    /// not.
    pub port_queue: Bytes,
    /// Size of the buffer that all ports share, in bytes, if the switch has one. A frame needs room
    /// in the port's queue and in this buffer.
    pub shared_buffer: Option<Bytes>,
}

/// A NIC of a host: one end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Index of the host in [`Topology::hosts`].
    pub host: usize,
    /// Name of the device inside the host.
    pub device: String,
    /// Address with prefix length, if the file gives one. Otherwise [`address::plan`] assigns it.
    pub address: Option<(Ipv4Addr, u8)>,
    /// Capacity of the transmit queue.
    pub queue: NicQueue,
    /// True if the queue has three bands of its number of packets each, served in order of
    /// priority. This is `pfifo_fast`, the default of most NICs under Linux. It applies to the
    /// kernel's queue only: the simulation has one band.
    pub bands: bool,
    /// Longest time for which a received frame waits for the interrupt that delivers it. Zero
    /// delivers at once.
    pub rx_coalesce: Delay,
    /// Number of received frames that brings the interrupt forward. It applies to the simulation
    /// only, because the kernel's NAPI has no such setting.
    pub rx_coalesce_frames: u32,
    /// True if received segments are merged before the stack sees them. By default it is on only
    /// with `rx_coalesce`.
    pub gro: bool,
    /// True if bursts cross the wire whole, as if the NICs cut and joined them at no cost. The
    /// wire is then as fast as the machine.
    pub tso: bool,
    /// Most segments of a super-frame that the stack hands to the NIC. `None` sets no limit.
    pub gso_max_segs: Option<u32>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// NIC of a host.
    Nic(Nic),
    /// Port of the switch with this index in [`Topology::switches`].
    Port(usize),
}

impl End {
    /// Returns the NIC, if this end is one.
    pub fn nic(&self) -> Option<&Nic> {
        match self {
            Self::Nic(nic) => Some(nic),
            Self::Port(_) => None,
        }
    }
}

/// A full-duplex link.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The two ends of the link.
    pub ends: [End; 2],
    /// Rate of each direction. Without one, only the machine limits the link.
    pub rate: Option<Rate>,
    /// Propagation delay of each direction.
    pub delay: Delay,
    /// Depth of this link's switch ports, in bytes, if it differs from the switch's.
    pub port_queue: Option<Bytes>,
    /// Depth of the link's token buckets, as time at its rate. A link sends this much at once after
    /// a pause or after a late timer. The simulation has no token buckets. The emulator has them in
    /// the hosts, and spreads what they send at once over its time on the wire.
    pub burst: Delay,
    /// Largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Faults from the start, the same in both directions.
    pub faults: Faults,
}

impl Link {
    /// Returns the depth of this link's port at `switch`, in bytes.
    pub fn port_queue_bytes(&self, switch: &Switch) -> u64 {
        self.port_queue.unwrap_or(switch.port_queue).get()
    }

    /// Returns whether both ends are NICs.
    pub fn is_cable(&self) -> bool {
        self.ends.iter().all(|end| end.nic().is_some())
    }
}

/// A valid description of a lab.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Name of the lab, unless the command gives another.
    pub name: String,
    /// Fabric that carries the frames in real time.
    pub fabric: FabricChoice,
    /// `net.ipv4.tcp_congestion_control` of every host. A namespace would otherwise inherit the
    /// machine's choice, and results of different machines could not be compared.
    pub congestion_control: String,
    /// Hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// Switches, in the order of the file.
    pub switches: Vec<Switch>,
    /// Links, in the order of the file.
    pub links: Vec<Link>,
}

/// A NIC with its position in the topology.
#[derive(Debug, Clone, Copy)]
pub struct NicPosition<'a> {
    /// NIC at this position.
    pub nic: &'a Nic,
    /// Index of its link in [`Topology::links`].
    pub link: usize,
    /// End of the link at which the NIC is, 0 or 1.
    pub side: usize,
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid. The error names the file, the line, the key, the
    /// value and the accepted form.
    pub fn read(path: &Path) -> Result<Self, TopologyError> {
        let (file, text) = source::read(path)?;
        Self::parse(&file, &text)
    }

    /// Parses a topology from `text`. Error messages name `file`.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, TopologyError> {
        file::parse(file, text)
    }

    /// Returns every NIC, in the order of the links and of their ends.
    pub fn nics(&self) -> impl Iterator<Item = NicPosition<'_>> {
        self.links.iter().enumerate().flat_map(|(link, l)| {
            l.ends
                .iter()
                .enumerate()
                .filter_map(move |(side, end)| end.nic().map(|nic| NicPosition { nic, link, side }))
        })
    }

    /// Returns the NICs of the host with index `host`, in the order of the links.
    pub fn nics_of(&self, host: usize) -> impl Iterator<Item = NicPosition<'_>> {
        self.nics()
            .filter(move |position| position.nic.host == host)
    }

    /// Returns the NIC called `name`, such as `h1:eth1`.
    pub fn nic(&self, name: &str) -> Option<NicPosition<'_>> {
        let (host, device) = name.split_once(':')?;
        self.nics().find(|position| {
            self.hosts[position.nic.host].name == host && position.nic.device == device
        })
    }

    /// Returns the names of all NICs, such as `h1:eth1`, in the order of [`Topology::nics`].
    pub fn nic_names(&self) -> Vec<String> {
        self.nics()
            .map(|position| {
                format!(
                    "{}:{}",
                    self.hosts[position.nic.host].name, position.nic.device
                )
            })
            .collect()
    }

    /// Returns the links of a shortest path from host `from` to host `to`, in path order.
    pub fn path(&self, from: usize, to: usize) -> Option<Vec<&Link>> {
        let node = |end: &End| match end {
            End::Nic(nic) => nic.host,
            End::Port(switch) => self.hosts.len() + switch,
        };
        let mut reached: Vec<Option<Vec<&Link>>> =
            vec![None; self.hosts.len() + self.switches.len()];
        reached[from] = Some(Vec::new());
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(current) = queue.pop_front() {
            if current == to {
                break;
            }
            // Hosts do not forward.
            if current != from && current < self.hosts.len() {
                continue;
            }
            let path = reached[current].clone().unwrap_or_default();
            for link in &self.links {
                let ends = [node(&link.ends[0]), node(&link.ends[1])];
                for (start, end) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                    if start == current && reached[end].is_none() {
                        let mut extended = path.clone();
                        extended.push(link);
                        reached[end] = Some(extended);
                        queue.push_back(end);
                    }
                }
            }
        }
        reached[to].take()
    }

    /// Returns the index of the host called `name`.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// Returns whether the kernel fabric can carry the topology. This requires links without delay,
    /// jitter and re-ordering, and switches without a shared buffer.
    pub fn fits_kernel(&self) -> bool {
        self.switches
            .iter()
            .all(|switch| switch.shared_buffer.is_none())
            && self
                .links
                .iter()
                .all(|link| link.delay == Delay::ZERO && link.faults.needs_no_delay())
    }
}

#[cfg(test)]
mod tests;
