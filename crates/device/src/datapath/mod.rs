//! Data path in the kernel: programs at the device and its links carry frames without the daemon
//! (`bpf/multilink`).
//!
//! The daemon keeps what a path needs: keys, discovery, liveness, rates. It writes to the programs'
//! maps who may be reached how. A frame to a peer that is not in the maps goes to the daemon. So a
//! peer moves between the two data paths by one map write.

mod chunk;
mod drain;
mod error;
mod intf;
mod known;
mod program;

pub use error::DatapathError;

use chunk::Chunk;
use intf::{Count, Device, Link, PEERS_MAX, Path, Sender};
use known::Known;
use kumi_multilink::endpoint::direct::DirectPeer;
use kumi_multilink::endpoint::{DirectLink, Endpoint};
use kumi_multilink::wire::{LINKS_MAX, Mac};
use kumi_sys::netlink::link::interfaces;
use nix::time::{ClockId, clock_gettime};
use program::Program;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// Interval of the looks for peers in use, in ns.
const LOOK_NS: u64 = 10_000_000;
/// Interval between updates of rates, and of peers whose offers may be void, in ns.
const FOLLOW_NS: u64 = 50_000_000;

/// MTU of a device until it is told, in bytes.
const MTU_USUAL: u32 = 1500;

/// The kernel's data path of a device.
pub struct Datapath {
    program: Program,
    index: u32,
    links: [Option<(u32, Link)>; LINKS_MAX],
    peers: HashMap<Mac, Known>,
    /// Device of the sender, and local link, by alias.
    senders: HashMap<Mac, (Mac, u8)>,
    looked_at_ns: u64,
    followed_at_ns: u64,
    /// First failure of a map, which is reported once.
    failure: Option<String>,
    chunk: Chunk,
}

/// Returns the addresses of a link for frames that the kernel carries: `None` if its NIC has none.
pub fn link_addresses(address: Option<Mac>) -> Option<DirectLink> {
    let mut alias = Mac::default();
    let random = crate::tap::random_u64().ok()?;
    alias.copy_from_slice(&random.to_ne_bytes()[..6]);
    // Locally administered, and of one station.
    alias[0] = alias[0] & !1 | 2;
    Some(DirectLink {
        address: address?,
        alias,
    })
}

/// Removes what a daemon that was killed left of the data path of `device`, by interface numbers,
/// but not from the interfaces in `keep`.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn clean(device: u32, keep: &[String]) -> io::Result<()> {
    let all = interfaces()?;
    let others = all.iter().filter(|other| !keep.contains(&other.name));
    others.for_each(|other| program::detach(device, other.index));
    Ok(())
}

/// Returns the time of the programs, `CLOCK_MONOTONIC`, in ns.
fn kernel_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

impl Datapath {
    /// Loads the programs and attaches the one that sends to the device `name`.
    ///
    /// # Errors
    /// The kernel refuses them.
    pub fn start(name: &str, index: u32, mac: Mac) -> Result<Self, DatapathError> {
        let device = Device {
            index,
            mac,
            zero: 0,
        };
        let program = Program::load(device)?;
        program.attach_device(name, index)?;
        Ok(Self {
            program,
            index,
            links: [None; LINKS_MAX],
            peers: HashMap::new(),
            senders: HashMap::new(),
            looked_at_ns: 0,
            followed_at_ns: 0,
            failure: None,
            chunk: Chunk::new(MTU_USUAL),
        })
    }

    /// Tells the MTU of the device, in bytes.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.chunk = Chunk::new(mtu);
    }

    /// Attaches the program that receives to a link.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_link(&mut self, number: u8, name: &str, index: u32) -> Result<(), DatapathError> {
        self.program.attach_link(self.index, name, index)?;
        self.links[usize::from(number)] = Some((index, Link::default()));
        Ok(())
    }

    /// Removes a link. Its paths are down already, so no peer uses it.
    pub fn remove_link(&mut self, number: u8) {
        if let Some((index, _)) = self.links[usize::from(number)].take() {
            let _ = self.program.set_link(number, &Link::default());
            program::detach(self.index, index);
        }
    }

    /// Returns the time of the next look, in ns.
    pub fn due_ns(&self) -> u64 {
        self.looked_at_ns + LOOK_NS
    }

    /// Passes news between the core and the programs. `has_news` tells that a path changed.
    pub fn follow(&mut self, core: &mut Endpoint, has_news: bool, now_ns: u64) {
        self.follow_drains(core, now_ns);
        if has_news || now_ns >= self.followed_at_ns + FOLLOW_NS {
            self.followed_at_ns = now_ns;
            self.follow_rates(core, now_ns);
            let peers = core.direct_peers(now_ns);
            self.follow_senders(core, &peers);
            self.follow_peers(&peers, now_ns);
            self.follow_chunk(core, now_ns);
        }
        if now_ns >= self.due_ns() {
            self.looked_at_ns = now_ns;
            self.look(core, now_ns);
        }
        core.send_offers(now_ns, |mac, link| match self.peers.get(&mac) {
            Some(peer) => self.program.count_of(peer.number, link).sent_bytes,
            None => 0,
        });
    }

    fn note_failure(&mut self, outcome: Result<(), DatapathError>) {
        if let (Err(error), None) = (outcome, &self.failure) {
            self.failure = Some(error.to_string());
        }
    }

    /// Returns a failure that has not been reported.
    pub fn take_failure(&mut self) -> Option<String> {
        let text = self.failure.as_mut().map(std::mem::take);
        text.filter(|text| !text.is_empty())
    }

    /// Sets the links' rates: those of the core, or more if the peers receive more.
    fn follow_rates(&mut self, core: &Endpoint, now_ns: u64) {
        for number in 0..LINKS_MAX as u8 {
            let Some((index, known)) = self.links[usize::from(number)] else {
                continue;
            };
            let rate_bps = link_bps(core, number);
            let drains = self.peers.values();
            let seen = drains.map(|peer| peer.drains[usize::from(number)].latest_bps(now_ns));
            let link = Link {
                index,
                zero: 0,
                ps_per_byte: ps_per_byte(rate_bps.max(seen.sum())),
            };
            if link != known {
                let outcome = self.program.set_link(number, &link);
                self.note_failure(outcome);
                self.links[usize::from(number)] = Some((index, link));
            }
        }
    }

    /// Takes frames from the peers' aliases. A peer sends only after it has been told.
    fn follow_senders(&mut self, core: &mut Endpoint, peers: &[DirectPeer]) {
        let aliases = |peer: &DirectPeer| {
            let mac = peer.mac;
            let aliases = peer.aliases.clone().into_iter();
            aliases.map(move |(link, alias)| (alias, (mac, link)))
        };
        let wanted: HashMap<Mac, (Mac, u8)> = peers.iter().flat_map(aliases).collect();
        let program = &self.program;
        self.senders.retain(|alias, _| {
            let stays = wanted.contains_key(alias);
            if !stays {
                let _ = program.set_sender(*alias, None);
            }
            stays
        });
        for (alias, (mac, link)) in wanted {
            let Some(number) = self.number_of(mac) else {
                continue; // as many as the programs hold: the others use the daemon
            };
            if self.senders.get(&alias) != Some(&(mac, link)) {
                let sender = Sender {
                    link: link.into(),
                    number,
                    mac,
                    zero: 0,
                };
                if let Err(error) = self.program.set_sender(alias, Some(&sender)) {
                    self.note_failure(Err(error));
                    continue;
                }
                self.senders.insert(alias, (mac, link));
            }
            core.accept_alias(mac, link, alias);
        }
    }

    /// Sends the frames to peers by their present ways.
    fn follow_peers(&mut self, peers: &[DirectPeer], now_ns: u64) {
        let wanted: HashMap<Mac, &DirectPeer> = peers.iter().map(|peer| (peer.mac, peer)).collect();
        let program = &self.program;
        self.peers.retain(|mac, known| {
            let stays = wanted.contains_key(mac);
            if !stays && known.reached.is_some() {
                let _ = program.set_peer(*mac, None);
            }
            stays
        });
        for (mac, peer) in wanted {
            let Some(known) = self.peers.get_mut(&mac) else {
                continue;
            };
            known.rest_slow_links(peer, now_ns);
            let reached = (!peer.ways.is_empty()).then(|| known.ways(peer, now_ns));
            if known.reached != reached {
                match self.program.set_peer(mac, reached.as_ref()) {
                    Ok(()) => known.reached = reached,
                    Err(error) => self.note_failure(Err(error)),
                }
            }
        }
    }

    /// Fits the device's bursts to the slowest path in use.
    fn follow_chunk(&mut self, core: &Endpoint, now_ns: u64) {
        let links = |peer: &Known| peer.reached.map_or(0, |reached| reached.links);
        let rates = self.peers.values().flat_map(|peer| {
            let used = (0..LINKS_MAX as u8).filter(move |link| links(peer) >> link & 1 == 1);
            used.map(|link| peer.drains[usize::from(link)].shown_bps(link_bps(core, link)))
        });
        if let Some(rate_bps) = rates.reduce(f64::min) {
            let outcome = self.chunk.follow(self.index, rate_bps, now_ns);
            self.note_failure(outcome);
        }
    }

    /// Returns the number of a peer, which is its own or a free one.
    fn number_of(&mut self, mac: Mac) -> Option<u32> {
        if let Some(peer) = self.peers.get(&mac) {
            return Some(peer.number);
        }
        let mut is_taken = vec![false; PEERS_MAX];
        for peer in self.peers.values() {
            is_taken[peer.number as usize] = true;
        }
        let number = is_taken.iter().position(|is_taken| !is_taken)? as u32;
        let outcome = self.program.clear(number);
        self.note_failure(outcome);
        self.peers.insert(mac, Known::new(number));
        Some(number)
    }

    /// Tells the core which peers are in use.
    fn look(&mut self, core: &mut Endpoint, now_ns: u64) {
        for (mac, peer) in &mut self.peers {
            let frames = self.program.frames_of(peer.number);
            if std::mem::replace(&mut peer.frames, frames) != frames {
                core.note_direct_use(*mac, now_ns);
            }
        }
    }

    /// Tells the programs what has left the paths, by the counts that have come from the peers, and
    /// reads what has arrived here before those counts.
    fn follow_drains(&mut self, core: &mut Endpoint, now_ns: u64) {
        for arrived in core.take_direct_counts() {
            let (link, travel_ns) = (arrived.link, arrived.rtt_ns / 2);
            let rate_bps = link_bps(core, link);
            let Some(peer) = self.peers.get_mut(&arrived.mac) else {
                continue;
            };
            let count = self.program.count_of(peer.number, link);
            core.note_direct_received(arrived.mac, link, count.received_bytes, now_ns);
            let drain = &mut peer.drains[usize::from(link)];
            let drained = drain.note(
                arrived.counts,
                count.sent_bytes,
                rate_bps,
                (now_ns, travel_ns),
            );
            peer.rates_bps[usize::from(link)] = drained.rate_bps;
            let path = Path {
                ps_per_byte: ps_per_byte(drained.rate_bps),
                latency_ns: travel_ns,
                left_bytes: drained.left_bytes,
                left_at_ns: kernel_ns().saturating_sub(now_ns.saturating_sub(drained.at_ns)),
            };
            let outcome = self.program.set_path(peer.number, link, &path);
            self.note_failure(outcome);
        }
    }

    /// Returns whether the kernel carries the frames to the device with this address.
    pub fn carries(&self, mac: Mac) -> bool {
        let peer = self.peers.get(&mac);
        peer.is_some_and(|peer| peer.reached.is_some())
    }

    /// Returns the bytes that the kernel has carried on the path to a peer, and its rate in bit/s,
    /// or 0 before the peer has reported.
    pub fn path(&self, mac: Mac, link: u8) -> Option<(Count, f64)> {
        let peer = self.peers.get(&mac)?;
        let rate_bps = peer.rates_bps[usize::from(link)];
        Some((self.program.count_of(peer.number, link), rate_bps))
    }

    /// Removes the programs from the device and its links.
    pub fn stop(&mut self) {
        program::detach(self.index, self.index);
        for number in 0..LINKS_MAX as u8 {
            self.remove_link(number);
        }
    }
}

/// Returns the rate of a link as the core knows it, in bit/s.
fn link_bps(core: &Endpoint, number: u8) -> f64 {
    let link = core.link(number);
    link.map_or(1.0, |link| link.capacity.rate_bps().max(1.0))
}

/// Returns the time that a byte takes, in picoseconds.
fn ps_per_byte(rate_bps: f64) -> u64 {
    (8e12 / rate_bps) as u64
}
