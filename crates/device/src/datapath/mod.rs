//! Data path in the kernel: programs at the device and its links carry frames without the daemon
//! (`bpf/multilink`).
//!
//! The daemon keeps what a path needs: keys, discovery, liveness, rates. It writes to the programs'
//! maps who may be reached how. A frame to a peer that is not in the maps goes to the daemon. So a
//! peer moves between the two data paths by one map write.

mod bulk;
mod chunk;
mod drain;
mod error;
mod intf;
mod known;
mod least;
mod lost;
mod program;
mod questions;
mod trial;
mod trials;

pub use error::DatapathError;

use crate::tap::random_u64;
use chunk::{Basis, Chunk};
use intf::{Count, Device, Link, PEERS_MAX, Peer, Sender};
use known::Known;
use kumi_multilink::endpoint::direct::{Alias, DirectPeer};
use kumi_multilink::endpoint::{DirectLink, Endpoint};
use kumi_multilink::wire::{LINKS_MAX, Mac, QuestionKey};
use kumi_sys::netlink::link::interfaces;
use kumi_sys::raw_ethernet::FrameSender;
use nix::time::{ClockId, clock_gettime};
use program::{Inherited, Program};
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

/// Interval of the looks for peers in use, in ns.
const LOOK_NS: u64 = 10_000_000;
/// Interval between updates of rates, and of peers whose offers may be void, in ns.
const FOLLOW_NS: u64 = 50_000_000;

/// Time after the last frame for which a peer counts as in use, in ns.
const USED_NS: u64 = 200_000_000;

/// Time for which bursts stay long after a long stream sent last, in ns: a change costs each
/// connection a look-up of its route. Chosen by judgement.
const LONG_NS: u64 = 1_000_000_000;

/// Time for which frames of a sender are taken after its offer ended, in ns. A daemon that starts
/// again offers the same in the meantime.
const LINGER_NS: u64 = 2_000_000_000;
/// Time for which the ways of a predecessor count, in ns: several handshakes. Chosen by judgement.
const INHERIT_NS: u64 = 10_000_000_000;

/// MTU of a device until it is told, in bytes.
const MTU_USUAL: u32 = 1500;
/// Bytes of the IPv6 and UDP headers of a datagram.
pub const UNDERLAY_BYTES: usize = 48;

/// The kernel's data path of a device.
pub struct Datapath {
    program: Program,
    index: u32,
    /// The device as the programs know it.
    device: Device,
    /// MTU of the device, in bytes.
    mtu: u32,
    links: [Option<(u32, Link)>; LINKS_MAX],
    peers: HashMap<Mac, Known>,
    /// Senders, by alias.
    senders: HashMap<Mac, Taken>,
    /// Offers of a predecessor of this daemon, by link.
    inherited: [Option<Offered>; LINKS_MAX],
    looked_at_ns: u64,
    followed_at_ns: u64,
    /// Time of the next look at a trial, in ns; `u64::MAX` without a trial.
    trial_look_ns: u64,
    /// Sends questions, and when the next one is due, in ns.
    questions: FrameSender,
    ask_at_ns: u64,
    /// The daemon carries all frames for the time being.
    is_paused: bool,
    /// First failure of a map, which is reported once.
    failure: Option<String>,
    chunk: Chunk,
}

/// Alias and key that a daemon offers on a link. Its successor offers them again.
#[derive(Debug, Clone, Copy)]
pub struct Offered {
    alias: Mac,
    key: QuestionKey,
}

/// A sender whose frames the kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken {
    /// Its entry in the programs' map.
    sender: Sender,
    /// Time until which its frames are taken though nobody offers them, in ns.
    until_ns: u64,
}

/// Traffic of the kernel on a path, and by what it chooses links.
#[derive(Debug, Clone, Copy)]
pub struct Carried {
    /// Bytes, as on the wire.
    pub count: Count,
    /// Rate of the path in bit/s, 0 before the peer has reported.
    pub rate_bps: f64,
    /// The link is not used, as it is slow beside the others.
    pub rests: bool,
    /// Share of the bytes (0–1) that the path lost lately without being full.
    pub loss: f64,
    /// The kernel leaves the path to the daemon, which repairs losses.
    pub is_lossy: bool,
}

/// Returns the addresses of a link for frames that the kernel carries: `None` if its NIC has none.
/// `inherited` is what a predecessor of this daemon offered.
pub fn link_addresses(address: Option<Mac>, inherited: Option<Offered>) -> Option<DirectLink> {
    let random = || {
        let random = || random_u64().ok().map(u64::to_ne_bytes);
        let mut alias = Mac::default();
        alias.copy_from_slice(&random()?[..6]);
        // Locally administered, and of one station.
        alias[0] = alias[0] & !1 | 2;
        let mut key = QuestionKey::default();
        key[..8].copy_from_slice(&random()?);
        key[8..].copy_from_slice(&random()?);
        Some(Offered { alias, key })
    };
    let Offered { alias, key } = inherited.or_else(random)?;
    Some(DirectLink {
        address: address?,
        alias,
        key,
    })
}

/// Checks whether the kernel accepts the programs. They are released again.
///
/// # Errors
/// The kernel refuses them, or the build has none.
pub fn check() -> Result<(), DatapathError> {
    Program::load(Device::new(0, Mac::default(), 0), None).map(drop)
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
    /// Loads the programs and attaches the one that sends to the device `name`. If a daemon with
    /// the same `links` was killed, its programs are replaced, and frames flow on meanwhile.
    ///
    /// # Errors
    /// The kernel refuses them.
    pub fn start(name: &str, index: u32, mac: Mac, links: &[u32]) -> Result<Self, DatapathError> {
        let inherited = Inherited::find(index, links).filter(|inherited| {
            let numbers = 0..LINKS_MAX as u8;
            let own = links.iter().copied().chain(std::iter::repeat(0));
            let mut both = numbers.zip(own);
            both.all(|(number, own)| [0, own].contains(&inherited.interface(number)))
        });
        match Self::start_with(name, index, mac, inherited.as_ref()) {
            Err(error) if inherited.is_some() => {
                let mut fresh = Self::start_with(name, index, mac, None)?;
                fresh.failure = Some(format!(
                    "the state of the daemon before is not taken over, and streams pause: {error}"
                ));
                Ok(fresh)
            }
            outcome => outcome,
        }
    }

    fn start_with(
        name: &str,
        index: u32,
        mac: Mac,
        inherited: Option<&Inherited>,
    ) -> Result<Self, DatapathError> {
        let device = Device::new(index, mac, kernel_ns());
        let questions = FrameSender::open().map_err(DatapathError::Questions)?;
        let program = Program::load(device, inherited)?;
        program.attach_device(name, index)?;
        let peers = inherited.map(Inherited::peers).unwrap_or_default();
        let senders = inherited.map(Inherited::senders).unwrap_or_default();
        let offered = |link: u8| {
            let ways = peers.iter().map(|(_, peer)| peer.ways[usize::from(link)]);
            let mut aliases = ways.map(|way| way.from);
            let alias = aliases.find(|from| *from != Mac::default())?;
            let key = inherited?.link(link)?.key;
            Some(Offered { alias, key })
        };
        let offered = std::array::from_fn(|link| offered(link as u8));
        let known = |(mac, peer): (Mac, Peer)| {
            let answers = std::array::from_fn(|link| program.answer_of(peer.number, link as u8));
            (mac, Known::inherited(peer, answers, INHERIT_NS))
        };
        let peers = peers.into_iter().map(known).collect();
        let taken = |(alias, sender): (Mac, Sender)| {
            let taken = Taken {
                sender,
                until_ns: INHERIT_NS,
            };
            (alias, taken)
        };
        Ok(Self {
            program,
            index,
            device,
            mtu: MTU_USUAL,
            links: [None; LINKS_MAX],
            peers,
            senders: senders.into_iter().map(taken).collect(),
            inherited: offered,
            looked_at_ns: 0,
            followed_at_ns: 0,
            trial_look_ns: u64::MAX,
            questions,
            ask_at_ns: 0,
            is_paused: false,
            failure: None,
            chunk: Chunk::new(MTU_USUAL),
        })
    }

    /// Returns what a predecessor of this daemon offered on a link.
    pub fn inherited(&self, link: u8) -> Option<Offered> {
        self.inherited[usize::from(link)]
    }

    /// Tells the MTU of the device, in bytes.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.chunk = Chunk::new(mtu);
        self.mtu = mtu;
    }

    /// Attaches the program that receives to a link.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_link(&mut self, number: u8, name: &str, index: u32) -> Result<(), DatapathError> {
        self.program.attach_link(self.index, name, index)?;
        self.program.clear_load(number)?;
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

    /// Leaves all frames to the daemon, or takes them again, from the next [`Self::follow`] on.
    /// Frames of the peers' kernels are taken in either case.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns whether all frames are left to the daemon.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the time at which [`Self::follow`] is due, in ns.
    pub fn due_ns(&self) -> u64 {
        let look_at_ns = self.looked_at_ns + LOOK_NS;
        self.ask_at_ns.min(look_at_ns).min(self.trial_look_ns)
    }

    /// Passes news between the core and the programs. `has_news` tells that a path changed.
    pub fn follow(&mut self, core: &mut Endpoint, has_news: bool, now_ns: u64) {
        self.hear(core, now_ns);
        let is_late = now_ns >= self.trial_look_ns.min(self.followed_at_ns + FOLLOW_NS);
        if has_news || is_late {
            self.followed_at_ns = now_ns;
            self.follow_rates(core);
            let mut peers = core.direct_peers(now_ns);
            let ways = peers.iter_mut().flat_map(|peer| &mut peer.ways);
            ways.for_each(|way| way.is_up &= fits(self.mtu, way.datagram_bytes));
            self.follow_senders(core, &peers, now_ns);
            self.follow_peers(core, &peers, now_ns);
            let looks = self.peers.values().filter_map(Known::trial_look_ns);
            self.trial_look_ns = looks.min().unwrap_or(u64::MAX);
            self.follow_chunk(core, now_ns);
        }
        if now_ns >= self.looked_at_ns + LOOK_NS {
            self.looked_at_ns = now_ns;
            self.look(now_ns);
        }
        self.ask(core, now_ns);
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
    fn follow_rates(&mut self, core: &Endpoint) {
        let now_ns = kernel_ns();
        for number in 0..LINKS_MAX as u8 {
            let Some((index, known)) = self.links[usize::from(number)] else {
                continue;
            };
            if core.link(number).is_none() {
                continue; // it is being removed
            }
            let rate_bps = link_bps(core, number);
            let drains = self.peers.values();
            let seen = drains.map(|peer| peer.drains[usize::from(number)].latest_bps(now_ns));
            let direct = core.link(number).and_then(|link| link.config.direct);
            let link = Link {
                index,
                zero: 0,
                byte_time: byte_time(rate_bps.max(seen.sum())),
                key: direct.map(|direct| direct.key).unwrap_or_default(),
            };
            if link != known {
                let outcome = self.program.set_link(number, &link);
                self.note_failure(outcome);
                self.links[usize::from(number)] = Some((index, link));
            }
        }
    }

    /// Takes frames from the peers' aliases. A peer sends after an offer has accepted its alias.
    fn follow_senders(&mut self, core: &mut Endpoint, peers: &[DirectPeer], now_ns: u64) {
        let aliases = |peer: &DirectPeer| {
            let mac = peer.mac;
            let aliases = peer.aliases.clone().into_iter();
            aliases.map(move |alias| (alias.mac, (mac, alias)))
        };
        let wanted: HashMap<Mac, (Mac, Alias)> = peers.iter().flat_map(aliases).collect();
        let program = &self.program;
        self.senders.retain(|alias, taken| {
            let stays = wanted.contains_key(alias) || now_ns < taken.until_ns;
            if !stays {
                let _ = program.set_sender(*alias, None);
            }
            stays
        });
        for (address, (mac, alias)) in wanted {
            let Some(number) = self.number_of(mac) else {
                continue; // the maps are full: frames of further peers go by the daemon
            };
            let sender = Sender {
                link: alias.link.into(),
                number,
                mac,
                zero: 0,
                key: alias.key,
            };
            let known = self.senders.get(&address);
            if known.is_none_or(|known| known.sender != sender) {
                if let Err(error) = self.program.set_sender(address, Some(&sender)) {
                    self.note_failure(Err(error));
                    continue;
                }
            }
            let taken = Taken {
                sender,
                until_ns: now_ns + LINGER_NS,
            };
            self.senders.insert(address, taken);
            core.accept_alias(mac, alias.link, address);
        }
    }

    /// Sends the frames to peers by their present ways.
    fn follow_peers(&mut self, core: &Endpoint, peers: &[DirectPeer], now_ns: u64) {
        let wanted: HashMap<Mac, &DirectPeer> = peers.iter().map(|peer| (peer.mac, peer)).collect();
        let program = &self.program;
        let taken: HashSet<Mac> = self
            .senders
            .values()
            .map(|taken| taken.sender.mac)
            .collect();
        self.peers.retain(|mac, known| {
            let is_awaited = now_ns < known.inherited_until_ns;
            // The number of a peer whose frames are still taken is not free.
            let stays = wanted.contains_key(mac) || is_awaited || taken.contains(mac);
            if !wanted.contains_key(mac) && !is_awaited && known.reached.take().is_some() {
                let _ = program.set_peer(*mac, None);
            }
            stays
        });
        for (mac, peer) in wanted {
            let Some(known) = self.peers.get_mut(&mac) else {
                continue;
            };
            known.has_daemon = peer.has_daemon;
            let daemon_bps = |link| (link_bps(core, link), is_measured(core, link));
            known.choose_bulk(peer, daemon_bps, kernel_ns());
            known.rest_slow_links(peer, now_ns);
            known.try_links(peer, |link| link_bps(core, link), (kernel_ns(), now_ns));
            let is_back = peer.ways.iter().any(|way| way.is_up);
            if !is_back && now_ns < known.inherited_until_ns {
                continue; // the predecessor's ways still count
            }
            known.inherited_until_ns = 0;
            let mut reached =
                (!peer.ways.is_empty()).then(|| known.ways(peer, (kernel_ns(), now_ns)));
            if self.is_paused {
                reached.iter_mut().for_each(|reached| reached.links = 0);
            }
            if known.reached != reached {
                match self.program.set_peer(mac, reached.as_ref()) {
                    Ok(()) => known.reached = reached,
                    Err(error) => self.note_failure(Err(error)),
                }
            }
        }
    }

    /// Fits the device's bursts to the slowest path on which the kernel carries long streams, or
    /// messages if no long stream sent lately. The daemon cuts bursts of long streams itself, and
    /// takes long ones with fewer calls.
    fn follow_chunk(&mut self, core: &Endpoint, now_ns: u64) {
        let kernel_now_ns = kernel_ns();
        let has_long = kernel_now_ns < self.program.long_at_ns() + LONG_NS;
        let is_daemons = |peer: &Known| has_long && peer.daemon_has_bulk();
        let links = |peer: &Known| match peer.reached {
            Some(reached) if !is_daemons(peer) => reached.links,
            _ => 0,
        };
        let has_daemons = self.peers.values().any(is_daemons);
        let daemons = has_daemons.then_some((f64::INFINITY, Basis::Daemon));
        let rates = self.peers.values().flat_map(|peer| {
            let used = (0..LINKS_MAX as u8).filter(move |link| links(peer) >> link & 1 == 1);
            used.map(move |link| {
                let drain = &peer.drains[usize::from(link)];
                let (rate_bps, is_measured) = drain.least_bps(link_bps(core, link), kernel_now_ns);
                let basis = if is_measured {
                    Basis::Measurement
                } else {
                    Basis::Guess
                };
                (rate_bps, basis)
            })
        });
        let least =
            |one: (f64, Basis), other: (f64, Basis)| (one.0.min(other.0), one.1.min(other.1));
        if let Some((rate_bps, basis)) = rates.chain(daemons).reduce(least) {
            let basis = if has_long { basis } else { Basis::Messages };
            let outcome = self.chunk.follow(self.index, (rate_bps, basis), now_ns);
            self.note_failure(outcome);
        }
    }

    /// Returns the number of a peer, which is its own or a free one.
    fn number_of(&mut self, mac: Mac) -> Option<u32> {
        if let Some(peer) = self.peers.get(&mac) {
            return Some(peer.number);
        }
        let mut is_taken = vec![false; PEERS_MAX];
        let senders = self.senders.values().map(|taken| taken.sender.number);
        for number in self.peers.values().map(|peer| peer.number).chain(senders) {
            is_taken[number as usize] = true;
        }
        let number = is_taken.iter().position(|is_taken| !is_taken)? as u32;
        let outcome = self.program.clear(number);
        self.note_failure(outcome);
        self.peers.insert(mac, Known::new(number));
        Some(number)
    }

    /// Looks for peers in use, and tells the programs that the daemon runs.
    fn look(&mut self, now_ns: u64) {
        self.device.alive_at_ns = kernel_ns();
        let outcome = self.program.set_device(&self.device);
        self.note_failure(outcome);
        for peer in self.peers.values_mut() {
            let frames = self.program.frames_of(peer.number);
            if std::mem::replace(&mut peer.frames, frames) != frames {
                if now_ns >= peer.used_until_ns {
                    self.ask_at_ns = now_ns;
                }
                peer.used_until_ns = now_ns + USED_NS;
            }
        }
    }

    /// Returns whether the kernel carries the frames to the device with this address.
    pub fn carries(&self, mac: Mac) -> bool {
        let peer = self.peers.get(&mac);
        let reached = peer.and_then(|peer| peer.reached);
        reached.is_some_and(|reached| reached.links != 0)
    }

    /// Returns whether the device with this address has offered its kernel's data path.
    pub fn is_offered(&self, mac: Mac) -> bool {
        let peer = self.peers.get(&mac);
        peer.is_some_and(|peer| peer.reached.is_some())
    }

    /// Returns whether the daemon of the device with this address was heard lately.
    pub fn has_daemon(&self, mac: Mac) -> bool {
        let peer = self.peers.get(&mac);
        peer.is_none_or(|peer| peer.has_daemon)
    }

    /// Returns whether the daemon carries long streams to the device with this address.
    pub fn daemon_has_bulk(&self, mac: Mac) -> bool {
        let peer = self.peers.get(&mac);
        peer.is_some_and(Known::daemon_has_bulk)
    }

    /// Returns what the kernel has carried on the path to a peer.
    pub fn path(&self, mac: Mac, link: u8, now_ns: u64) -> Option<Carried> {
        let peer = self.peers.get(&mac)?;
        Some(Carried {
            count: self.program.count_of(peer.number, link),
            rate_bps: peer.rates_bps[usize::from(link)],
            rests: peer.rests(link, now_ns),
            loss: peer.losses[usize::from(link)].share(),
            is_lossy: peer.is_lossy(link),
        })
    }

    /// Removes the programs from the device and its links.
    pub fn stop(&mut self) {
        program::detach(self.index, self.index);
        for number in 0..LINKS_MAX as u8 {
            self.remove_link(number);
        }
    }
}

/// Returns whether a path that carries such datagrams carries the longest frames of a device with
/// this MTU. The kernel does not cut them.
fn fits(mtu: u32, datagram_bytes: usize) -> bool {
    datagram_bytes + UNDERLAY_BYTES >= mtu as usize
}

/// Returns the rate of a link as the core knows it, in bit/s.
fn link_bps(core: &Endpoint, number: u8) -> f64 {
    let link = core.link(number);
    link.map_or(1.0, |link| link.capacity.rate_bps().max(1.0))
}

/// Returns whether the core has measured the rate of a link.
fn is_measured(core: &Endpoint, number: u8) -> bool {
    let link = core.link(number);
    link.is_some_and(|link| link.capacity.is_measured())
}

/// Returns the time that a byte takes, in 1/1024 ns.
fn byte_time(rate_bps: f64) -> u64 {
    (8e9 * 1024.0 / rate_bps) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits__path_that_carries_less_than_the_device_sends__is_left_to_the_daemon() {
        assert!(fits(1500, 1452));
        assert!(fits(1280, 1232), "what every path carries");
        assert!(!fits(1500, 1451));
        assert!(!fits(9000, 1452), "a switch without jumbo frames");
    }
}
