//! A rank before it joins its group: it listens, and its card states where.

use super::card::{CARD_BYTES, Card, LocalAddress, interfaces, local_addresses, reach};
use super::membership::Membership;
use super::progress::{Progress, Settings};
use super::secret::Secret;
use super::ticket::Promise;
use super::wind_links::{self, WindLinks};
use super::{Config, Group, GroupError, RANKS_MAX, Transport, View, digest, system};
use kumi_sys::fork::Private;
use kumi_sys::udp::LinkSocket;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// Rank that is reachable and has not joined the others yet.
#[derive(Debug)]
pub struct Listening {
    config: Config,
    pub(super) listeners: Vec<Private<TcpListener>>,
    pub(super) card: Card,
    local_addresses: Vec<LocalAddress>,
    /// Socket of [`Transport::Wind`].
    wind: Option<LinkSocket>,
}

/// Ranks as Wind reaches them.
#[derive(Debug)]
pub struct WindRanks {
    /// Socket of this rank.
    pub socket: LinkSocket,
    /// Secret of the sessions.
    pub secret: [u8; 32],
    /// Addresses of each rank. Its first one is the one at which this rank reaches it.
    pub addresses: Vec<Vec<SocketAddr>>,
}

/// Number of ports to try until one is free at all addresses.
const PORTS_MAX: usize = 16;

/// Listens on one port at exactly these addresses. Removes addresses that are not available from
/// `addresses`.
fn listen(addresses: &mut Vec<LocalAddress>) -> io::Result<(Vec<Private<TcpListener>>, u16)> {
    let mut last_error = io::ErrorKind::AddrNotAvailable.into();
    for _ in 0..PORTS_MAX {
        let (mut port, mut listeners, mut available) = (0, Vec::new(), Vec::new());
        let is_complete =
            addresses
                .iter()
                .all(|local| match TcpListener::bind((local.address, port)) {
                    Ok(listener) => {
                        port = listener.local_addr().map_or(0, |address| address.port());
                        listeners.push(Private::new(listener));
                        available.push(*local);
                        port != 0
                    }
                    Err(error) => {
                        let is_absent = error.kind() == io::ErrorKind::AddrNotAvailable;
                        last_error = error;
                        is_absent
                    }
                });
        if is_complete && !listeners.is_empty() {
            *addresses = available;
            for listener in &listeners {
                listener.set_nonblocking(true)?;
            }
            return Ok((listeners, port));
        }
    }
    Err(last_error)
}

impl Listening {
    /// Starts to listen.
    ///
    /// # Errors
    /// The host has no such interface, no address or no valid name, or the network file cannot be
    /// read.
    pub fn new(config: Config) -> Result<Self, GroupError> {
        let mut local_addresses = local_addresses(config.interface.as_deref())
            .map_err(system("cannot read the host's addresses"))?;
        if local_addresses.is_empty() {
            let names = interfaces().unwrap_or_default().join(", ");
            return Err(GroupError::Argument(match &config.interface {
                Some(name) => {
                    format!("interface `{name}` has no address that is up: expected one of {names}")
                }
                None => "this host has no address that is up".to_owned(),
            }));
        }
        let (listeners, port) = listen(&mut local_addresses).map_err(system("cannot listen"))?;
        let mut key = [0; 16];
        random(&mut key).map_err(system("/dev/urandom"))?;
        let host = match &config.host {
            Some(host) => host.clone(),
            None => {
                let name = nix::unistd::gethostname()
                    .map_err(|error| system("cannot read the host's name")(error.into()))?;
                name.to_string_lossy().into_owned()
            }
        };
        let is_named = !host.is_empty() && host.len() <= 64 && !host.contains([' ', '\0']);
        if !is_named {
            return Err(GroupError::Argument(format!(
                "invalid host name `{host}`: expected 1 to 64 bytes without spaces"
            )));
        }
        let mut network = match &config.network {
            Some(file) => {
                let operation = format!("cannot read the network file {}", file.display());
                std::fs::read(file).map_err(system(&operation))?
            }
            None => Vec::new(),
        };
        // Host names contain no zero bytes, and neither does the network file.
        for host in config.job.iter().flatten() {
            network.push(0);
            network.extend_from_slice(host.as_bytes());
        }
        let network = match network.is_empty() {
            true => 0,
            false => digest(&network),
        };
        let wind = match config.transport {
            Transport::Tcp => None,
            Transport::Wind | Transport::WindPuts => Some(
                wind_links::bind(&local_addresses)
                    .map_err(system("cannot open a UDP socket for KUMI_TRANSPORT=wind"))?,
            ),
        };
        let wind_port = match &wind {
            Some(socket) => socket.local_address().map(|address| address.port()),
            None => Ok(0),
        };
        let addresses = local_addresses.iter().map(|local| local.address).collect();
        Ok(Self {
            card: Card {
                key,
                proof: secret(&config).proof(&key),
                version: crate::VERSION.to_owned(),
                port,
                addresses,
                host,
                network,
                wind_port: wind_port.map_err(system("cannot read the port of a UDP socket"))?,
            },
            config,
            listeners,
            local_addresses,
            wind,
        })
    }

    /// Returns the card, which the other ranks need. A process that knows it, and the job's secret
    /// if there is one, can join.
    pub fn card(&self) -> [u8; CARD_BYTES] {
        self.card.bytes()
    }

    /// Returns the cards of all ranks, and checks that they fit this rank's.
    fn read(&self, rank: usize, cards: &[Vec<u8>]) -> Result<Vec<Card>, GroupError> {
        let cards = cards.iter().enumerate().map(|(card_rank, card)| {
            let card = Card::parse(card);
            card.ok_or_else(|| {
                GroupError::Argument(format!(
                    "the card of rank {card_rank} is malformed: expected the {CARD_BYTES} bytes that this rank made"
                ))
            })
        });
        let cards = cards.collect::<Result<Vec<_>, _>>()?;
        if cards.len() > RANKS_MAX || cards.get(rank) != Some(&self.card) {
            let text = format!(
                "card {rank} of {} is not this rank's; pass at most {RANKS_MAX} cards, in the order of ranks",
                cards.len()
            );
            return Err(GroupError::Argument(text));
        }
        match self.config.find_difference(rank, &cards) {
            Some(reason) => Err(GroupError::Argument(reason)),
            None => Ok(cards),
        }
    }

    /// Gives up the group, and returns what Wind needs to reach the other ranks. Their cards are
    /// given by rank.
    ///
    /// # Errors
    /// As [`Self::join`], or the transport is not Wind.
    pub fn into_wind(self, rank: usize, cards: &[Vec<u8>]) -> Result<WindRanks, GroupError> {
        let cards = self.read(rank, cards)?;
        let secret = secret(&self.config).wind(cards.iter().map(|card| &card.key));
        let addresses = cards.iter().map(|card| {
            let first = reach(card, &self.local_addresses).map(|address| address.ip());
            let all = first.into_iter().chain(card.addresses.iter().copied());
            all.map(|address| SocketAddr::new(address, card.wind_port))
                .collect()
        });
        Ok(WindRanks {
            secret,
            addresses: addresses.collect(),
            socket: self.wind.ok_or_else(|| {
                GroupError::Argument("the transport of the ranks is not Wind".to_owned())
            })?,
        })
    }

    /// Joins the other ranks. Their cards are given by rank.
    ///
    /// # Errors
    /// A card is malformed, or ranks have different secrets, libraries or network files, or a rank
    /// does not arrive in time.
    pub fn join(self, rank: usize, cards: &[Vec<u8>]) -> Result<Group, GroupError> {
        let cards = self.read(rank, cards)?;
        let hosts: Vec<String> = cards.iter().map(|card| card.host.clone()).collect();
        let members: Vec<usize> = (0..hosts.len()).collect();
        let view = View::new(&self.config, &hosts, &members, rank, 0)?;
        let shared = Arc::new(Mutex::new(Membership::new(rank, cards.len())));
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakeup = EventFd::from_value_and_flags(0, flags);
        let wakeup = wakeup.map_err(|error| system("eventfd")(error.into()))?;
        let wakeup = Arc::new(Private::new(wakeup));
        let (commands, command_receiver) = channel();
        let (join_promise, join_ticket) = Promise::new();
        let wind = self.wind.map(|socket| {
            let secret = secret(&self.config);
            let puts_always = self.config.transport == Transport::WindPuts;
            WindLinks::new(socket, &cards, &secret, &self.local_addresses, puts_always)
        });
        let wind = wind.transpose();
        let wind = wind.map_err(|error| GroupError::Argument(error.to_string()))?;
        let settings = Settings {
            rank,
            cards,
            secret: secret(&self.config),
            local_addresses: self.local_addresses,
            loss_timeout: self.config.loss_timeout,
            start_timeout: self.config.start_timeout,
            pace_bytes_per_s: view.pace_bytes_per_s(&self.config),
        };
        let progress = Progress::new(
            settings,
            Arc::clone(&shared),
            self.listeners,
            wind,
            command_receiver,
            Arc::clone(&wakeup),
            join_promise,
        );
        let progress = progress.map_err(|error| system("epoll")(error.into()))?;
        let thread = std::thread::Builder::new().name("kumi-group".to_owned());
        let thread = thread
            .spawn(move || progress.run())
            .map_err(system("cannot start a thread"))?;
        let group = Group {
            config: self.config,
            hosts,
            shared,
            view: Mutex::new(Arc::new(view)),
            commands,
            wakeup,
            thread: Some(thread),
            process: std::process::id(),
        };
        group.wake();
        match join_ticket.wait(None) {
            Some(Err(failure)) => Err(failure.into()),
            _ => Ok(group),
        }
    }
}

/// Returns the secret for cards and connections. A launcher's job number is not used here: a
/// program's own exchange may join ranks of several launches.
fn secret(config: &Config) -> Secret {
    config.secret.clone().unwrap_or_else(Secret::none)
}

impl Config {
    /// Returns the reason that ranks with these cards cannot form a group, if there is one.
    fn find_difference(&self, rank: usize, cards: &[Card]) -> Option<String> {
        let own = &cards[rank];
        let pair = |peer: usize| {
            let [own_host, peer_host] = [&own.host, &cards[peer].host];
            format!("rank {rank} on {own_host} and rank {peer} on {peer_host}")
        };
        let secret = secret(self);
        if let Some(peer) = cards
            .iter()
            .position(|card| card.proof != secret.proof(&card.key))
        {
            return Some(format!(
                "{} have different job secrets, or one has none (KUMI_JOB_SECRET; rank {rank} has {})",
                pair(peer),
                secret.origin()
            ));
        }
        if let Some(peer) = cards.iter().position(|card| card.version != own.version) {
            let [own_version, peer_version] = [&own.version, &cards[peer].version];
            return Some(format!(
                "{} have different libraries, which may plan differently: libkumi {own_version} and {peer_version}",
                pair(peer)
            ));
        }
        let transport = |card: &Card| match card.wind_port {
            0 => Transport::Tcp,
            _ => Transport::Wind,
        };
        if let Some(peer) = cards
            .iter()
            .position(|card| transport(card) != transport(own))
        {
            let [own_transport, peer_transport] = [own, &cards[peer]].map(transport);
            return Some(format!(
                "{} have different transports, {} and {}: set the variable alike for all ranks",
                pair(peer),
                own_transport.setting(),
                peer_transport.setting()
            ));
        }
        let peer = cards.iter().position(|card| card.network != own.network)?;
        Some(format!(
            "{} have different topology files, or one has none, or are of different jobs",
            pair(peer)
        ))
    }
}

fn random(key: &mut [u8]) -> io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener__given_an_interface__is_bound_to_its_addresses() {
        let config = Config {
            interface: Some("lo".to_owned()),
            ..Config::default()
        };
        let listening = Listening::new(config).unwrap();
        let ports: Vec<_> = listening
            .listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        assert!(!ports.is_empty());
        for port in ports {
            assert!(
                port.ip().is_loopback() && port.port() == listening.card.port,
                "{port}"
            );
        }
        // All of 127.0.0.0/8 belongs to the loopback interface, which lists only one address of it.
        let address = ("127.0.0.2", listening.card.port);
        let error = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn config__invalid_values__are_named_with_what_is_accepted() {
        let loopback = || Config {
            interface: Some("lo".to_owned()),
            ..Config::default()
        };
        let error_of = |config| Listening::new(config).unwrap_err().to_string();
        let long = "h".repeat(65);
        for host in ["", "two words", "zero\0", long.as_str()] {
            let config = Config {
                host: Some(host.to_owned()),
                ..loopback()
            };
            assert_eq!(
                error_of(config),
                format!("invalid host name `{host}`: expected 1 to 64 bytes without spaces")
            );
        }
        let file = Config {
            network: Some("/no/such/file".into()),
            ..loopback()
        };
        assert_eq!(
            error_of(file),
            "cannot read the network file /no/such/file: No such file or directory (os error 2)"
        );
        let interface = Config {
            interface: Some("none-such".to_owned()),
            ..loopback()
        };
        let error = error_of(interface);
        let start = "interface `none-such` has no address that is up: expected one of ";
        assert!(error.starts_with(start) && error.contains("lo"), "{error}");
    }

    #[test]
    fn cards__malformed_or_in_another_order__are_refused_with_what_is_accepted() {
        let make = || {
            let config = Config {
                host: Some("here".to_owned()),
                interface: Some("lo".to_owned()),
                ..Config::default()
            };
            Listening::new(config).unwrap()
        };
        let error_of = |rank, change: &dyn Fn(&mut Vec<Vec<u8>>)| {
            let (own, peer) = (make(), make());
            let mut cards = [own.card(), peer.card()].map(|card| card.to_vec()).to_vec();
            change(&mut cards);
            own.join(rank, &cards).unwrap_err().to_string()
        };
        let malformed = "is malformed: expected the 512 bytes that this rank made";
        assert_eq!(
            error_of(0, &|cards| cards[1] = vec![0; CARD_BYTES]),
            format!("the card of rank 1 {malformed}")
        );
        assert_eq!(
            error_of(0, &|cards| cards[0].truncate(9)),
            format!("the card of rank 0 {malformed}")
        );
        let order = "is not this rank's; pass at most 4096 cards, in the order of ranks";
        assert_eq!(
            error_of(0, &|cards| cards.swap(0, 1)),
            format!("card 0 of 2 {order}")
        );
        for rank in [1, 2] {
            let error = error_of(rank, &|_| {});
            assert_eq!(error, format!("card {rank} of 2 {order}"));
        }
    }

    #[test]
    fn cards__different_secret_or_version__are_refused_with_the_difference() {
        let config = |secret: Option<&str>| Config {
            interface: Some("lo".to_owned()),
            secret: secret
                .map(|text| Secret::from_bytes(text.as_bytes(), "KUMI_JOB_SECRET").unwrap()),
            ..Config::default()
        };
        let error_of = |peer: Config, change: &dyn Fn(&mut Card)| {
            let own = Listening::new(config(Some("what the job knows"))).unwrap();
            let mut peer = Listening::new(peer).unwrap();
            change(&mut peer.card);
            let cards = [own.card(), peer.card()].map(|card| card.to_vec());
            own.join(0, &cards).unwrap_err().to_string()
        };
        for peer in [None, Some("what another job knows")] {
            let error = error_of(config(peer), &|_| ());
            assert!(error.contains("have different job secrets"), "{error}");
        }
        let same_secret = config(Some("what the job knows"));
        let error = error_of(same_secret, &|card| card.version = "0.0.9+0".to_owned());
        assert!(
            error.contains("which may plan differently: libkumi 0.1.0+"),
            "{error}"
        );
    }

    #[test]
    fn cards__different_transports__are_refused_with_both() {
        let listening = |transport| {
            let config = Config {
                interface: Some("lo".to_owned()),
                host: Some("here".to_owned()),
                transport,
                ..Config::default()
            };
            Listening::new(config).unwrap()
        };
        let (own, peer) = (listening(Transport::Wind), listening(Transport::Tcp));
        let cards = [own.card(), peer.card()].map(|card| card.to_vec());
        assert_eq!(
            own.join(0, &cards).unwrap_err().to_string(),
            "rank 0 on here and rank 1 on here have different transports, KUMI_TRANSPORT=wind and \
             KUMI_TRANSPORT=tcp: set the variable alike for all ranks"
        );
    }

    /// A process may read the cards, for instance in a public store, without knowing the secret.
    #[test]
    fn stranger__with_the_cards_but_not_the_secret__is_not_accepted_as_a_rank() {
        use std::io::{Read, Write};
        let config = Config {
            interface: Some("lo".to_owned()),
            secret: Some(Secret::from_bytes(b"what the job knows", "").unwrap()),
            ..Config::default()
        };
        let [first, second] = [(); 2].map(|()| Listening::new(config.clone()).unwrap());
        let cards = [first.card(), second.card()].map(|card| card.to_vec());
        let card = first.card.clone();
        std::thread::scope(|scope| {
            let first_thread = scope.spawn(|| first.join(0, &cards).unwrap());
            let hello = crate::group::frame::Hello {
                channel: crate::group::frame::Channel::Control,
                is_call: false,
                from: 1,
                term: 0,
                key: card.key,
            };
            let mut stranger =
                std::net::TcpStream::connect((card.addresses[0], card.port)).unwrap();
            stranger.write_all(&hello.bytes()).unwrap();
            let mut answer = Vec::new();
            assert_eq!(stranger.read_to_end(&mut answer).unwrap(), 0);
            assert!(!first_thread.is_finished());
            let group = second.join(1, &cards).unwrap();
            drop((first_thread.join().unwrap(), group));
        });
    }
}
