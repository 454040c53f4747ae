//! Chunks over Wind, in place of a TCP connection for each direction of a pair.
//!
//! ```text
//!   rank ── unsent ──► Node ══ ordered messages: header | chunk ══► Node ── arrived ──► rank
//! ```
//!
//! A chunk is an ordered message, so the chunks of a pair arrive in the order of the plan. Wind's
//! credit bounds what is in flight to a rank from all others together, and the plan's windows bound
//! what waits in `arrived` for a collective that this rank has not begun.
//!
//! Where the receiver's kernel executes puts, a chunk is put into its landing memory (`ring.rs`),
//! and a message follows when the receiver needs the chunk: its process is woken for that, and not
//! for each datagram. The sender takes a chunk as acknowledged when it is in the landing memory,
//! and the last one when the receiver has been told.

mod link;
mod ring;
mod sender;

pub use link::Chunk;

use crate::group::card::{Card, LocalAddress, reach};
use crate::group::frame::{Header, Kind};
use crate::group::secret::Secret;
use crate::work::CallerStep;
use kumi_multilink::secure::Seal;
use kumi_sys::udp::LinkSocket;
use kumi_wind::{Config, Lost, Node, Received, Region, Rung, Waiting, WindError, random_epoch};
use link::{ChunkPlace, Link, RING_BYTES_MIN, note};
use ring::Inlet;
use sender::{Sender, Source};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Credit of all peers together, in bytes: 1 Gb/s over 60 ms.
const BUDGET_BYTES: u64 = 8 << 20;

/// Time between two looks for ranks that do not answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Landing memory of a rank for all peers together, in bytes.
const LANDING_BYTES: usize = 8 << 20;

/// Landing memory of this rank.
struct Landing {
    region: Region,
    ring_bytes: usize,
}

/// A node, and the chunks from and to each initial rank.
pub struct WindLinks {
    node: Node,
    /// Address at which this rank reaches each rank.
    targets: Vec<Option<SocketAddr>>,
    /// Rank that has an address.
    ranks: HashMap<SocketAddr, usize>,
    links: Vec<Link>,
    landing: Option<Landing>,
    /// Chunks are put where no kernel executes it, too.
    puts_always: bool,
    checked_at: Instant,
}

/// Opens a socket at the only address of the interface, or at all addresses of this host.
///
/// # Errors
/// The kernel refuses the socket.
pub fn bind(addresses: &[LocalAddress]) -> io::Result<LinkSocket> {
    let address = match addresses {
        [only] => only.address,
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    LinkSocket::bound(SocketAddr::new(address, 0))
}

impl WindLinks {
    /// Creates the links of a rank whose socket is `socket`. The cards are given by initial rank.
    ///
    /// # Errors
    /// The system refuses a descriptor or random numbers.
    pub fn new(
        socket: LinkSocket,
        cards: &[Card],
        secret: &Secret,
        local_addresses: &[LocalAddress],
        puts_always: bool,
    ) -> Result<Self, WindError> {
        let epoch = random_epoch().map_err(|error| WindError::System {
            what: "cannot read random numbers",
            error,
        })?;
        let config = Config {
            // As on the connections that it replaces. The multilink device encrypts, if wanted.
            seal: Seal::Plain,
            budget_bytes: BUDGET_BYTES,
            message_bytes_max: u32::MAX,
            rung: Rung::Auto,
            waiting: Waiting::Block,
            ..Config::new(secret.wind(cards.iter().map(|card| &card.key)), epoch)
        };
        let target = |card: &Card| {
            let address = reach(card, local_addresses)?;
            Some(SocketAddr::new(address.ip(), card.wind_port))
        };
        let own = |(rank, card): (usize, &Card)| {
            let port = card.wind_port;
            let name = move |ip: &IpAddr| (SocketAddr::new(*ip, port), rank);
            card.addresses.iter().map(name).collect::<Vec<_>>()
        };
        let node = Node::polled(socket, config)?;
        let landing = landing(&node, cards.len(), puts_always)?;
        Ok(Self {
            node,
            landing,
            puts_always,
            targets: cards.iter().map(target).collect(),
            ranks: cards.iter().enumerate().flat_map(own).collect(),
            links: cards.iter().map(|_| Link::default()).collect(),
            checked_at: Instant::now(),
        })
    }

    /// Returns the time until the next turn is due; `None` if only an arrival makes one due.
    pub fn time_to_timeout(&self) -> Option<Duration> {
        self.node.time_to_timeout()
    }

    /// Receives and sends. [`Self::take_arrived`] returns what has arrived.
    pub fn turn(&mut self) {
        self.node.turn();
    }

    /// Returns the ranks of which chunks have arrived, or those that sent something that is no
    /// chunk, with the reason.
    pub fn take_arrived(&mut self) -> BTreeMap<usize, Result<(), String>> {
        let mut arrivals = BTreeMap::new();
        while let Some(Received { peer, message }) = self.node.next() {
            let address = self.node.peer_address(peer);
            let rank = address.and_then(|address| self.ranks.get(&address).copied());
            // A process that has the secret, and is not a rank.
            let Some(rank) = rank else { continue };
            let result = self.links[rank].take(&message.header, message.data);
            self.links[rank].id.get_or_insert(peer);
            if result.is_ok() {
                self.offer(rank);
            }
            if !matches!(arrivals.get(&rank), Some(Err(_))) {
                arrivals.insert(rank, result);
            }
        }
        arrivals
    }

    /// Offers the peer a ring of the landing memory, once.
    fn offer(&mut self, rank: usize) {
        let (link, landing) = (&mut self.links[rank], &self.landing);
        let Some(landing) = landing.as_ref().filter(|_| link.inlet.is_none()) else {
            return;
        };
        let place = landing.region.place((rank * landing.ring_bytes) as u64);
        let mut body = place.region.to_le_bytes().to_vec();
        body.extend_from_slice(&place.key);
        body.extend_from_slice(&place.offset.to_le_bytes());
        let header = note(Kind::Landing, landing.ring_bytes as u64, &body);
        link.notes.push_back((header, body));
        link.inlet = Some(Inlet::new(landing.ring_bytes as u64));
    }

    /// Returns the chunks to a rank that have been put since the last call, with the header of
    /// each.
    ///
    /// # Errors
    /// The rank refuses them, or does not answer.
    pub fn take_put(&mut self, rank: usize) -> Result<Vec<Header>, String> {
        let (node, link) = (&self.node, &mut self.links[rank]);
        let Some(id) = link.id else {
            return Ok(Vec::new());
        };
        let mut put = Vec::new();
        while let Some(flight) = link.flights.front_mut() {
            let mut advance = || -> Result<bool, WindError> {
                if !flight.is_put {
                    flight.is_put = node.advance(&mut flight.transfer, &mut Source(&[]))?;
                }
                let is_told = match flight.told {
                    Some(told) if flight.is_put => node.is_placed(id, told.number)?,
                    told => told.is_none(),
                };
                Ok(flight.is_put && is_told)
            };
            match advance() {
                // A rank that has left had all that it needed, or its leave is an error by itself.
                Ok(true) | Err(WindError::Lost(Lost::Closed)) => put.push(flight.header),
                Ok(false) => break,
                Err(error) => return Err(format!("{error}, over UDP")),
            }
            link.flights.pop_front();
        }
        Ok(put)
    }

    /// Queues a chunk. [`Self::flush`] sends it.
    pub fn push(&mut self, rank: usize, header: Header, step: CallerStep) {
        self.links[rank].unsent.push_back((header, step));
    }

    /// Returns the ranks to which something is queued or being put.
    pub fn waiting(&self) -> Vec<usize> {
        let is_waiting = |link: &Link| {
            !link.unsent.is_empty() || !link.notes.is_empty() || !link.flights.is_empty()
        };
        let links = self.links.iter().enumerate();
        let waiting = links.filter(|(_, link)| is_waiting(link));
        waiting.map(|(rank, _)| rank).collect()
    }

    /// Sends the queued chunks of a rank, as far as Wind takes them. `read` returns their bytes.
    ///
    /// # Errors
    /// The rank has no address, or does not answer.
    pub fn flush<'a>(
        &mut self,
        rank: usize,
        read: impl Fn(&CallerStep) -> Option<&'a [u8]>,
    ) -> Result<(), String> {
        let Self {
            node,
            links,
            targets,
            ..
        } = self;
        let link = &mut links[rank];
        if link.unsent.is_empty() && link.notes.is_empty() {
            return Ok(());
        }
        let id = match link.id {
            Some(id) => id,
            None => {
                let target = targets[rank].ok_or("it has no address")?;
                let id = node.connect(target).map_err(|error| error.to_string())?;
                *link.id.insert(id)
            }
        };
        let sender = Sender {
            node,
            id,
            puts: self.puts_always || node.peer_has_kernel(id),
        };
        let sent = sender.send(link, read);
        // The receiver waits for the whole chunk.
        node.send_waiting();
        sent.map_err(|error| format!("{error}, over UDP"))
    }

    /// Returns the ranks to which this rank has sent and that do not answer, each with the reason.
    /// The end of a session does not count: the rank has left. The answer is empty if the last
    /// one is recent.
    pub fn silent(&mut self) -> Vec<(usize, String)> {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return Vec::new();
        }
        self.checked_at = Instant::now();
        let links = self.links.iter().enumerate();
        let failed = links.filter_map(|(rank, link)| match self.node.check(link.id?) {
            Ok(()) | Err(WindError::Lost(Lost::Closed)) => None,
            Err(error) => Some((rank, format!("{error}, over UDP"))),
        });
        failed.collect()
    }

    /// Returns the next chunk from a rank.
    pub fn front(&self, rank: usize) -> Option<&Chunk> {
        self.links[rank].arrived.front()
    }

    /// Takes the next chunk from a rank, and writes its bytes to `destination`, which has their
    /// length.
    pub fn take_into(&mut self, rank: usize, destination: &mut [u8]) {
        let link = &mut self.links[rank];
        let Some(chunk) = link.arrived.pop_front() else {
            return;
        };
        match (chunk.place, &self.landing, &mut link.inlet) {
            (ChunkPlace::Message(data), ..) => {
                link.arrived_bytes -= data.len();
                if !destination.is_empty() {
                    destination.copy_from_slice(&data);
                }
            }
            (ChunkPlace::Landed(offset, end), Some(landing), Some(inlet)) => {
                let offset = rank * landing.ring_bytes + offset;
                landing.region.memory().read(offset, destination);
                if let Some(position) = inlet.free(end) {
                    let header = note(Kind::Freed, position, &[]);
                    link.notes.push_back((header, Vec::new()));
                }
            }
            // A chunk lands only in a ring.
            (ChunkPlace::Landed(..), ..) => {}
        }
    }

    /// Drops the queued chunks: their collective has ended. Those that have been put are told, so
    /// that the receiver drops them as well.
    pub fn drop_unsent(&mut self) {
        for link in &mut self.links {
            link.unsent.clear();
            link.tell();
        }
    }

    /// Tells the receivers to which nothing is on its way of the chunks that have been put: what
    /// this rank waits for may depend on them, for instance room in the ring. Returns these
    /// receivers.
    pub fn tell_idle(&mut self) -> Vec<usize> {
        let links = self.links.iter_mut().enumerate();
        let told = links
            .filter_map(|(rank, link)| (link.flights.is_empty() && link.tell()).then_some(rank));
        told.collect()
    }
}

/// Returns the landing memory of a rank of `ranks`, if it uses one.
fn landing(node: &Node, ranks: usize, puts_always: bool) -> Result<Option<Landing>, WindError> {
    // A multiple of the page, so that no chunk shares one with those of another peer.
    let ring_bytes = (LANDING_BYTES / ranks.max(1)) & !4095;
    if ring_bytes < RING_BYTES_MIN || !(puts_always || node.has_kernel()) {
        return Ok(None);
    }
    let region = node.register(ring_bytes * ranks)?;
    // The kernel may have no room for it, and then would execute nothing.
    let is_used = puts_always || region.is_in_kernel();
    Ok(is_used.then_some(Landing { region, ring_bytes }))
}

impl AsFd for WindLinks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}
