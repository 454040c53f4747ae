//! What a lab is made of: hosts, switches, and the links between them.
//!
//! A [`Topology`] is read from a TOML file ([`Topology::read`]) and is known to be sound: every end
//! exists, no device is used twice, the switches form trees. The same value builds the simulated
//! network and the cluster in a box.

pub mod address;
pub mod fault;
mod file;
mod network;
mod random;

pub use fault::{BurstLoss, Direction, Faults, LinkChange};
pub use kumi_topo::nearest;
pub use kumi_topo::quantity::{Bytes, Delay, NicQueue, Probability, QuantityError, Rate};
pub use kumi_topo::source::FileError as TopologyError;

use kumi_topo::source;

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::Path;

/// Bytes a frame occupies on the wire beyond header and payload: preamble and start delimiter 8,
/// frame check sequence 4, inter-frame gap 12 (IEEE 802.3).
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// Received frames that bring a delayed interrupt forward, unless the file says otherwise: a
/// NAPI poll's budget.
pub const RX_COALESCE_FRAMES_DEFAULT: u32 = 64;

/// [`Link::burst`] where the file gives none: a timer 200 us late loses no rate then (on a busy machine 120
/// us lost 1.8 %), and the 31 KB at 1 Gb/s are a small part of any port's queue.
pub const BURST_DEFAULT: Delay = Delay::from_ns(250_000);

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER_BYTES: u64 = 14;

/// Drop-tail bytes of a switch port when a topology names none: a cheap switch's share a port.
pub const PORT_QUEUE_DEFAULT: Bytes = Bytes::new(128 * 1024);

/// Most hosts a topology may have; the addresses have one octet for them.
pub const HOSTS_MAX: usize = 250;

/// Most layer-2 segments a topology may have; the addresses have one octet for them.
pub const SEGMENTS_MAX: usize = 250;

/// What carries the frames in real time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricChoice {
    /// The kernel where only rate and queue (and faults that need no waiting) are asked for,
    /// otherwise the emulator.
    #[default]
    Auto,
    /// Bridges and token buckets: cheap, exact in rate, no delay.
    Kernel,
    /// The model of [`crate::model`] against the real clock.
    Emulator,
}

/// A host; its NICs are the ends of links that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name, also its host name.
    pub name: String,
}

/// A store-and-forward switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Drop-tail bytes of each port's output queue, Ethernet headers included, framing not.
    pub port_queue: Bytes,
    /// Bytes all ports share, if the switch has one pool; a frame needs room in both.
    pub shared_buffer: Option<Bytes>,
}

/// A NIC of a host: one end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Index of the host in [`Topology::hosts`].
    pub host: usize,
    /// Name of the device inside the host.
    pub device: String,
    /// Address with prefix length, if the file gives one; otherwise [`address::plan`] does.
    pub address: Option<(Ipv4Addr, u8)>,
    /// Transmit queue.
    pub queue: NicQueue,
    /// Three bands of the queue's packets each, the first served first, as `pfifo_fast` has and most NICs
    /// of Linux by default. Kernel only: the simulation has one.
    pub bands: bool,
    /// How long a received frame may wait for the interrupt that delivers it; zero is at once.
    pub rx_coalesce: Delay,
    /// How many received frames bring the interrupt forward. Model and simulation only: the
    /// kernel's NAPI has no such number to set.
    pub rx_coalesce_frames: u32,
    /// Received segments are merged before the stack sees them. Coalescing implies it.
    pub gro: bool,
    /// Most segments of a super-frame that the stack hands to the NIC, if limited.
    pub gso_max_segs: Option<u32>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// A host's NIC.
    Nic(Nic),
    /// A port of the switch with this index in [`Topology::switches`].
    Port(usize),
}

impl End {
    /// The NIC, if this end is one.
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
    /// Its two ends.
    pub ends: [End; 2],
    /// Rate each way; none is as fast as the machine.
    pub rate: Option<Rate>,
    /// Propagation delay, one way.
    pub delay: Delay,
    /// Drop-tail bytes of this link's switch ports, where they differ from the switch's.
    pub port_queue: Option<Bytes>,
    /// Time of its rate that a kernel-shaped link which has rested, or whose timer was late, sends at
    /// once; the emulator and the simulation send frame by frame.
    pub burst: Delay,
    /// Largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Faults, the same both ways, from the start.
    pub faults: Faults,
}

impl Link {
    /// The drop-tail bytes of the port at `end`, given the topology's switches.
    pub fn port_queue_bytes(&self, switch: &Switch) -> u64 {
        self.port_queue.unwrap_or(switch.port_queue).get()
    }

    /// Whether both ends are NICs.
    pub fn is_cable(&self) -> bool {
        self.ends.iter().all(|end| end.nic().is_some())
    }
}

/// A sound description of a lab.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// The lab's name, unless the command gives another.
    pub name: String,
    /// What carries the frames in real time.
    pub fabric: FabricChoice,
    /// `net.ipv4.tcp_congestion_control` in every host. A namespace would otherwise inherit the
    /// machine's choice, which no result could then be compared across.
    pub congestion_control: String,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Switches.
    pub switches: Vec<Switch>,
    /// Links.
    pub links: Vec<Link>,
}

/// A NIC together with where it is.
#[derive(Debug, Clone, Copy)]
pub struct NicAt<'a> {
    /// The NIC.
    pub nic: &'a Nic,
    /// Index of its link in [`Topology::links`].
    pub link: usize,
    /// Which end of the link it is, 0 or 1.
    pub side: usize,
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// Names the file, the line, the key, the value and what would be right.
    pub fn read(path: &Path) -> Result<Self, TopologyError> {
        let (file, text) = source::read(path)?;
        Self::parse(&file, &text)
    }

    /// Reads a topology from `text`; `file` is for the error messages.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, TopologyError> {
        file::parse(file, text)
    }

    /// Every NIC, host by host in the order of the links.
    pub fn nics(&self) -> impl Iterator<Item = NicAt<'_>> {
        self.links.iter().enumerate().flat_map(|(link, l)| {
            l.ends
                .iter()
                .enumerate()
                .filter_map(move |(side, end)| end.nic().map(|nic| NicAt { nic, link, side }))
        })
    }

    /// The NICs of the host with index `host`, in the order of the links.
    pub fn nics_of(&self, host: usize) -> impl Iterator<Item = NicAt<'_>> {
        self.nics().filter(move |at| at.nic.host == host)
    }

    /// The NIC called `name`, as `h1:eth1`.
    pub fn nic(&self, name: &str) -> Option<NicAt<'_>> {
        let (host, device) = name.split_once(':')?;
        self.nics()
            .find(|at| self.hosts[at.nic.host].name == host && at.nic.device == device)
    }

    /// The names of all NICs, as `h1:eth1`.
    pub fn nic_names(&self) -> Vec<String> {
        self.nics()
            .map(|at| format!("{}:{}", self.hosts[at.nic.host].name, at.nic.device))
            .collect()
    }

    /// The links of a shortest way from host `from` to host `to`, in its order.
    pub fn path(&self, from: usize, to: usize) -> Option<Vec<&Link>> {
        let node = |end: &End| match end {
            End::Nic(nic) => nic.host,
            End::Port(switch) => self.hosts.len() + switch,
        };
        let mut reached: Vec<Option<Vec<&Link>>> =
            vec![None; self.hosts.len() + self.switches.len()];
        reached[from] = Some(Vec::new());
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(here) = queue.pop_front() {
            if here == to {
                break;
            }
            // A host does not forward.
            if here != from && here < self.hosts.len() {
                continue;
            }
            let way = reached[here].clone().unwrap_or_default();
            for link in &self.links {
                let ends = [node(&link.ends[0]), node(&link.ends[1])];
                for (near, far) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                    if near == here && reached[far].is_none() {
                        let mut longer = way.clone();
                        longer.push(link);
                        reached[far] = Some(longer);
                        queue.push_back(far);
                    }
                }
            }
        }
        reached[to].take()
    }

    /// Index of the host called `name`.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// Whether the kernel fabric can carry it: no frame has to wait for anything but its turn, and
    /// no switch has a shared buffer.
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
