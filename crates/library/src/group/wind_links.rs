//! Chunks over Wind, in place of a TCP connection for each direction of a pair.
//!
//! ```text
//!   rank ── unsent ──► Node ══ ordered messages: header | chunk ══► Node ── arrived ──► rank
//! ```
//!
//! A chunk is an ordered message, so the chunks of a pair arrive in the order of the plan. Wind's
//! credit bounds what is in flight to a rank from all others together, and the plan's windows bound
//! what waits in `arrived` for a collective that this rank has not begun.

use crate::group::card::{Card, LocalAddress, reach};
use crate::group::frame::{Channel, HEADER_BYTES, Header};
use crate::group::secret::Secret;
use crate::work::CallerStep;
use kumi_multilink::secure::Seal;
use kumi_sys::udp::LinkSocket;
use kumi_wind::{
    Class, Config, Lost, Message, Mode, Node, PeerId, Received, Rung, Waiting, WindError,
    random_epoch,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A chunk that has arrived.
pub struct Chunk {
    /// Header of its frame.
    pub header: Header,
    /// Its bytes, as many as the header states.
    pub data: Vec<u8>,
}

/// Credit of all peers together, in bytes: 1 Gb/s over 60 ms.
const BUDGET_BYTES: u64 = 8 << 20;

/// Most bytes of one peer's chunks that wait for their collective. The plan's windows are far
/// below.
const ARRIVED_BYTES_MAX: usize = 256 << 20;

/// Time between two looks for ranks that do not answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Link {
    id: Option<PeerId>,
    unsent: VecDeque<(Header, CallerStep)>,
    arrived: VecDeque<Chunk>,
    arrived_bytes: usize,
}

/// A node, and the chunks from and to each initial rank.
pub struct WindLinks {
    node: Node,
    /// Address at which this rank reaches each rank.
    targets: Vec<Option<SocketAddr>>,
    /// Rank that has an address.
    ranks: HashMap<SocketAddr, usize>,
    links: Vec<Link>,
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
            rung: Rung::User,
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
        Ok(Self {
            node: Node::polled(socket, config)?,
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

    /// Receives and sends. Returns the ranks of which chunks have arrived, or those that sent
    /// something that is no chunk, with the reason.
    pub fn turn(&mut self) -> BTreeMap<usize, Result<(), String>> {
        self.node.turn();
        let mut arrivals = BTreeMap::new();
        while let Some(Received { peer, message }) = self.node.next() {
            let address = self.node.peer_address(peer);
            let rank = address.and_then(|address| self.ranks.get(&address).copied());
            // A process that has the secret, and is not a rank.
            let Some(rank) = rank else { continue };
            let result = self.links[rank].take(&message.header, message.data);
            if !matches!(arrivals.get(&rank), Some(Err(_))) {
                arrivals.insert(rank, result);
            }
        }
        arrivals
    }

    /// Queues a chunk. [`Self::flush`] sends it.
    pub fn push(&mut self, rank: usize, header: Header, step: CallerStep) {
        self.links[rank].unsent.push_back((header, step));
    }

    /// Returns the ranks with queued chunks.
    pub fn waiting(&self) -> Vec<usize> {
        let links = self.links.iter().enumerate();
        let waiting = links.filter(|(_, link)| !link.unsent.is_empty());
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
        if link.unsent.is_empty() {
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
        while let Some((header, step)) = link.unsent.front() {
            let message = Message {
                class: Class::Ordered,
                mode: Mode::MessageThrough,
                header: header.bytes().to_vec(),
                data: vec![read(step).unwrap_or_default().to_vec()],
                place: None,
            };
            match node.try_send(id, message) {
                Ok(Some(_)) => link.unsent.pop_front(),
                Ok(None) => break,
                Err(error) => return Err(format!("{error}, over UDP")),
            };
        }
        // The receiver waits for the whole chunk.
        node.send_waiting();
        Ok(())
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

    /// Takes the next chunk from a rank.
    pub fn take(&mut self, rank: usize) -> Option<Chunk> {
        let link = &mut self.links[rank];
        let chunk = link.arrived.pop_front()?;
        link.arrived_bytes -= chunk.data.len();
        Some(chunk)
    }

    /// Drops the queued chunks: their collective has ended.
    pub fn drop_unsent(&mut self) {
        self.links.iter_mut().for_each(|link| link.unsent.clear());
    }
}

impl Link {
    fn take(&mut self, header: &[u8], data: Vec<u8>) -> Result<(), String> {
        let header: Option<&[u8; HEADER_BYTES]> = header.try_into().ok();
        let header = header.and_then(|header| Header::parse(header, Channel::Chunks));
        let header = header.filter(|header| header.bytes == data.len() as u64);
        let header = header.ok_or("it sent an invalid frame")?;
        self.arrived_bytes += data.len();
        if self.arrived_bytes > ARRIVED_BYTES_MAX {
            return Err(format!(
                "more than {ARRIVED_BYTES_MAX} bytes of it are early"
            ));
        }
        self.arrived.push_back(Chunk { header, data });
        Ok(())
    }
}

impl AsFd for WindLinks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}
