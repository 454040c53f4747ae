//! A group of processes joined by TCP connections, and its collectives.
//!
//! What [`kumi_coll`] plans is carried out here without an MPI library: for Python, PyTorch and C. Each rank
//! has a thread of its own for it ([`progress`]), so that ranks that compute are told from ranks that are lost.

mod bootstrap;
mod card;
mod combine;
mod frame;
mod job;
mod lane;
mod membership;
mod memory;
mod messages;
mod progress;
mod secret;
mod ticket;

pub use bootstrap::{Environment, exchange};
pub use card::{CARD_BYTES, Card};
pub use combine::{Element, Reduction};
pub use memory::Memory;
pub use secret::Secret;
pub use ticket::{Done, Failure, Ticket};

use crate::c::SizeError;
use crate::ranks::{Ranks, RanksError};
use crate::work::{Asked, AskedOperation, Work, WorkError};
use card::{Own, own_addresses};
use kumi_topo::Paths;
use membership::Membership;
use messages::Parcel;
use nix::sys::eventfd::{EfdFlags, EventFd};
use progress::{Order, Progress, Settings, Wanted};
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most ranks of a group: all have connections to all.
pub const RANKS_MAX: usize = 4096;

/// How a rank takes part.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name of its host, as the topology file has it; the kernel's, if `None`.
    pub host: Option<String>,
    /// The interface whose addresses it is reached at; any, if `None`.
    pub interface: Option<String>,
    /// The network; one switch, if `None`.
    pub network: Option<PathBuf>,
    /// The hosts of all ranks of the job, where others of them may be at work beside this group: it has its share of the
    /// links that they share (ADR 024). The same on all ranks.
    pub job: Option<Vec<String>>,
    /// What only the job's processes know; `None` if nothing was set. The same on all ranks.
    pub secret: Option<Secret>,
    /// How long nothing may be heard of a rank that runs. A second less what telling takes.
    pub silence: Duration,
    /// How long ranks may take to find each other.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: None,
            interface: None,
            network: None,
            job: None,
            secret: None,
            silence: Duration::from_millis(700),
            patience: Duration::from_secs(60),
        }
    }
}

/// Why there is no group, or it does not do something.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The kernel refuses something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// What it says.
        error: io::Error,
    },
    /// There is no network.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// What was asked for makes no sense.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// Arguments that make no sense.
    #[error("{0}")]
    Argument(String),
    /// A struct of another release.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The group is not what it was.
    #[error(transparent)]
    Failed(#[from] Failure),
}

fn system(what: &str) -> impl FnOnce(io::Error) -> GroupError + '_ {
    move |error| GroupError::System {
        what: what.to_owned(),
        error,
    }
}

/// A rank that can be reached, and has not met the others.
#[derive(Debug)]
pub struct Listening {
    config: Config,
    listeners: Vec<TcpListener>,
    card: Card,
    own: Vec<Own>,
}

/// Ports that are tried until one is free at all addresses.
const PORTS_MAX: usize = 16;

/// Listens at these addresses alone, at one port. An address that is not ready yet, or no more, is left out.
fn listen(own: &mut Vec<Own>) -> io::Result<(Vec<TcpListener>, u16)> {
    let mut why = io::ErrorKind::AddrNotAvailable.into();
    for _ in 0..PORTS_MAX {
        let (mut port, mut listeners, mut heard) = (0, Vec::new(), Vec::new());
        let is_all = own
            .iter()
            .all(|one| match TcpListener::bind((one.address, port)) {
                Ok(listener) => {
                    port = listener.local_addr().map_or(0, |address| address.port());
                    listeners.push(listener);
                    heard.push(*one);
                    port != 0
                }
                Err(error) => {
                    let is_absent = error.kind() == io::ErrorKind::AddrNotAvailable;
                    why = error;
                    is_absent
                }
            });
        if is_all && !listeners.is_empty() {
            *own = heard;
            for listener in &listeners {
                listener.set_nonblocking(true)?;
            }
            return Ok((listeners, port));
        }
    }
    Err(why)
}

impl Listening {
    /// Begins to listen.
    ///
    /// # Errors
    /// The host has no such interface, or no address; the topology file cannot be read.
    pub fn new(config: Config) -> Result<Self, GroupError> {
        let mut own =
            own_addresses(config.interface.as_deref()).map_err(system("the host's addresses"))?;
        if own.is_empty() {
            let of = config.interface.as_deref();
            let of = of.map_or("this host".to_owned(), |name| format!("interface `{name}`"));
            return Err(GroupError::Argument(format!(
                "{of} has no address that is up"
            )));
        }
        let (listeners, port) = listen(&mut own).map_err(system("listening"))?;
        let mut key = [0; 16];
        random(&mut key).map_err(system("/dev/urandom"))?;
        let host = match &config.host {
            Some(host) => host.clone(),
            None => {
                let name = nix::unistd::gethostname()
                    .map_err(|error| system("the host's name")(error.into()))?;
                name.to_string_lossy().into_owned()
            }
        };
        let is_named = !host.is_empty() && host.len() <= 64 && !host.contains([' ', '\0']);
        if !is_named {
            return Err(GroupError::Argument(format!(
                "`{host}` is no name of a host"
            )));
        }
        let mut network = match &config.network {
            Some(file) => std::fs::read(file).map_err(system(&file.display().to_string()))?,
            None => Vec::new(),
        };
        // Names have no zeros in them, nor has the file.
        for host in config.job.iter().flatten() {
            network.push(0);
            network.extend_from_slice(host.as_bytes());
        }
        let network = match network.is_empty() {
            true => 0,
            false => digest(&network),
        };
        let addresses = own.iter().map(|one| one.address).collect();
        Ok(Self {
            card: Card {
                key,
                proof: secret(&config).proof(&key),
                version: crate::VERSION.to_owned(),
                port,
                addresses,
                host,
                network,
            },
            config,
            listeners,
            own,
        })
    }

    /// What the others have to know. Whoever knows it, and the job's secret if there is one, can take part.
    pub fn card(&self) -> [u8; CARD_BYTES] {
        self.card.bytes()
    }

    /// Meets the others, whose cards are given by rank.
    ///
    /// # Errors
    /// A card is malformed; ranks have different secrets, libraries or topology files; a rank does not come.
    pub fn join(self, rank: usize, cards: &[Vec<u8>]) -> Result<Group, GroupError> {
        let cards = cards.iter().enumerate().map(|(of, card)| {
            let card = Card::parse(card);
            card.ok_or_else(|| GroupError::Argument(format!("the card of rank {of} is none")))
        });
        let cards = cards.collect::<Result<Vec<_>, _>>()?;
        if cards.len() > RANKS_MAX || cards.get(rank) != Some(&self.card) {
            let text = format!("rank {rank}'s card, of {}, is not this rank's", cards.len());
            return Err(GroupError::Argument(text));
        }
        if let Some(why) = self.config.is_unlike(rank, &cards) {
            return Err(GroupError::Argument(why));
        }
        let hosts: Vec<String> = cards.iter().map(|card| card.host.clone()).collect();
        let members: Vec<usize> = (0..hosts.len()).collect();
        let view = View::new(&self.config, &hosts, &members, rank, 0)?;
        let shared = Arc::new(Mutex::new(Membership::new(rank, cards.len())));
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = EventFd::from_value_and_flags(0, flags);
        let bell = Arc::new(bell.map_err(|error| system("eventfd")(error.into()))?);
        let (orders, inbox) = channel();
        let joined = Arc::new(Ticket::default());
        let settings = Settings {
            rank,
            cards,
            secret: secret(&self.config),
            own: self.own,
            silence: self.config.silence,
            patience: self.config.patience,
            pace: view.pace(&self.config),
        };
        let progress = Progress::new(
            settings,
            Arc::clone(&shared),
            self.listeners,
            inbox,
            Arc::clone(&bell),
            Arc::clone(&joined),
        );
        let progress = progress.map_err(|error| system("epoll")(error.into()))?;
        let thread = std::thread::Builder::new().name("kumi-group".to_owned());
        let thread = thread
            .spawn(move || progress.run())
            .map_err(system("a thread"))?;
        let group = Group {
            config: self.config,
            hosts,
            shared,
            view: Mutex::new(Arc::new(view)),
            orders,
            bell,
            thread: Some(thread),
        };
        group.ring();
        match joined.wait(None) {
            Some(Err(failure)) => Err(failure.into()),
            _ => Ok(group),
        }
    }
}

/// What cards and connections are made with. A launcher's number of the job is not: an exchange of the program's own may
/// join ranks of several.
fn secret(config: &Config) -> Secret {
    config.secret.clone().unwrap_or_else(Secret::none)
}

impl Config {
    /// Why ranks with these cards cannot be a group.
    fn is_unlike(&self, rank: usize, cards: &[Card]) -> Option<String> {
        let own = &cards[rank];
        let pair = |other: usize| {
            let [here, there] = [&own.host, &cards[other].host];
            format!("rank {rank} on {here} and rank {other} on {there}")
        };
        let secret = secret(self);
        if let Some(other) = cards
            .iter()
            .position(|card| card.proof != secret.proof(&card.key))
        {
            return Some(format!(
                "{} have different job secrets, or one has none (KUMI_JOB_SECRET; rank {rank} has {})",
                pair(other),
                secret.origin()
            ));
        }
        if let Some(other) = cards.iter().position(|card| card.version != own.version) {
            let [here, there] = [&own.version, &cards[other].version];
            return Some(format!(
                "{} have different libraries, which may plan differently: libkumi {here} and {there}",
                pair(other)
            ));
        }
        let other = cards.iter().position(|card| card.network != own.network)?;
        Some(format!(
            "{} have different topology files, or one has none, or are of different jobs",
            pair(other)
        ))
    }
}

fn random(key: &mut [u8]) -> io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(key)
}

/// FNV-1a, 64 bits: tells files apart that differ by accident.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A membership, and the network as its members see it.
#[derive(Debug)]
struct View {
    term: u32,
    rank: usize,
    members: Vec<usize>,
    ranks: Ranks,
}

impl View {
    fn new(
        config: &Config,
        hosts: &[String],
        members: &[usize],
        rank: usize,
        term: u32,
    ) -> Result<Self, RanksError> {
        let names: Vec<&str> = members
            .iter()
            .map(|member| hosts[*member].as_str())
            .collect();
        let job: Vec<&str> = match &config.job {
            Some(job) => job.iter().map(String::as_str).collect(),
            None => names.clone(),
        };
        Ok(Self {
            term,
            rank,
            members: members.to_vec(),
            ranks: Ranks::in_job(config.network.as_deref(), &names, &job)?,
        })
    }

    /// What each rank's path carries, if that was written down.
    fn pace(&self, config: &Config) -> Vec<Option<u64>> {
        let network = self.ranks.network();
        let paths = Paths::new(network);
        let of = |peer: usize| {
            let is_known = config.network.is_some() && peer != self.rank;
            is_known.then(|| paths.bytes_per_s(self.rank, peer) as u64)
        };
        (0..self.members.len()).map(of).collect()
    }
}

/// A collective, as it is asked for on one rank.
pub struct Call {
    /// What all ranks ask for alike, but for the memory.
    pub asked: Asked,
    /// What is combined, where something is.
    pub element: Element,
    /// How.
    pub reduction: Reduction,
    /// Where this rank's blocks are.
    pub memory: Box<dyn Memory>,
}

/// A rank's part in a group. Dropped, it leaves.
#[derive(Debug)]
pub struct Group {
    config: Config,
    hosts: Vec<String>,
    shared: Arc<Mutex<Membership>>,
    view: Mutex<Arc<View>>,
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Group {
    /// A group by what the environment says.
    ///
    /// # Errors
    /// A variable is missing or wrong; the others do not come.
    pub fn from_environment(config: Config, environment: &Environment) -> Result<Self, GroupError> {
        let patience = config.patience;
        let secret = config.secret.clone();
        let secret = secret.unwrap_or_else(|| environment.launcher.clone());
        let listening = Listening::new(config)?;
        let cards = exchange(environment, &secret, &listening.card(), patience);
        let cards = cards.map_err(system("the ranks' cards"))?;
        listening.join(environment.rank, &cards)
    }

    fn ring(&self) {
        // A bell that has rung too often has rung.
        let _ = self.bell.write(1);
    }

    fn order(&self, order: Order) {
        // The thread is gone only when the group is.
        let _ = self.orders.send(order);
        self.ring();
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> Result<Arc<View>, GroupError> {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let membership = self.membership();
        if view.term != membership.term() {
            let (members, rank) = (membership.members(), membership.rank());
            let term = membership.term();
            *view = Arc::new(View::new(&self.config, &self.hosts, members, rank, term)?);
        }
        Ok(Arc::clone(&view))
    }

    /// The hosts of those with whom it began, by rank.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// This rank, among the members of now.
    pub fn rank(&self) -> usize {
        self.membership().rank()
    }

    /// How many members there are now.
    pub fn size(&self) -> usize {
        self.membership().members().len()
    }

    /// The members of now, by the ranks that they had when the group began.
    pub fn members(&self) -> Vec<usize> {
        self.membership().members().to_vec()
    }

    /// Members of now that are lost, by their ranks of now.
    pub fn lost(&self) -> Vec<usize> {
        let membership = self.membership();
        let members = membership.members().iter().enumerate();
        let lost = members.filter(|(_, member)| membership.is_lost(**member));
        lost.map(|(rank, _)| rank).collect()
    }

    /// Starts a collective, behind those that were started before.
    ///
    /// # Errors
    /// What is asked for makes no sense. That is found out here, before any rank is told.
    pub fn start(&self, call: Call) -> Result<Arc<Ticket>, GroupError> {
        let Call {
            asked,
            element,
            reduction,
            memory,
        } = call;
        let view = self.view()?;
        let is_reduction = matches!(
            asked.operation,
            AskedOperation::Reduce | AskedOperation::ReduceScatter | AskedOperation::AllReduce
        );
        let combine = combine::combine(element, reduction);
        if is_reduction && combine.is_none() {
            let (of, by) = (element.name(), reduction.name());
            return Err(GroupError::Argument(format!("{of} have no {by}")));
        }
        let text = describe(&asked, is_reduction.then_some((element, reduction)));
        let work = match view.members.len() {
            1 => None,
            _ => Some(Work::new(&view.ranks, view.rank, asked)?),
        };
        let ticket = Arc::new(Ticket::default());
        self.order(Order::Collective(Box::new(Wanted {
            term: view.term,
            text,
            work,
            memory,
            combine: combine.filter(|_| is_reduction),
            ticket: Arc::clone(&ticket),
        })));
        Ok(ticket)
    }

    fn parcel(
        &self,
        peer: Option<usize>,
        tag: u64,
        bytes: u64,
        memory: Box<dyn Memory>,
    ) -> Result<(Parcel, Arc<Ticket>), GroupError> {
        let (rank, ranks) = (self.rank(), self.size());
        if let Some(peer) = peer.filter(|peer| *peer >= ranks || *peer == rank) {
            let text = format!(
                "rank {peer} is none of the others; ranks are 0 to {}, and this is {rank}",
                ranks - 1
            );
            return Err(GroupError::Argument(text));
        }
        let ticket = Arc::new(Ticket::default());
        let parcel = Parcel {
            peer,
            tag,
            bytes,
            memory,
            ticket: Arc::clone(&ticket),
        };
        Ok((parcel, ticket))
    }

    /// Starts to send a message, which is block 0.
    ///
    /// # Errors
    /// The rank is none.
    pub fn send(
        &self,
        to: usize,
        tag: u64,
        bytes: u64,
        memory: Box<dyn Memory>,
    ) -> Result<Arc<Ticket>, GroupError> {
        let (parcel, ticket) = self.parcel(Some(to), tag, bytes, memory)?;
        self.order(Order::Send(parcel));
        Ok(ticket)
    }

    /// Starts to receive a message of at most so many bytes, from any rank if none is named.
    ///
    /// # Errors
    /// The rank is none.
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        bytes: u64,
        memory: Box<dyn Memory>,
    ) -> Result<Arc<Ticket>, GroupError> {
        let (parcel, ticket) = self.parcel(from, tag, bytes, memory)?;
        self.order(Order::Receive(parcel));
        Ok(ticket)
    }

    /// Goes on without members that are lost; all that are left must call it. Ranks are numbered anew, in their order.
    ///
    /// # Errors
    /// The others go on without this rank, or the group ended otherwise.
    pub fn shrink(&self) -> Result<(), GroupError> {
        let ticket = Arc::new(Ticket::default());
        self.order(Order::Shrink(Arc::clone(&ticket)));
        match ticket.wait(None) {
            Some(Err(failure)) => Err(failure.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.order(Order::Close);
        if let Some(thread) = self.thread.take() {
            // It has panicked, and said so.
            let _ = thread.join();
        }
    }
}

/// What is asked for, in words that differ if it does.
fn describe(asked: &Asked, combines: Option<(Element, Reduction)>) -> String {
    let name = match asked.operation {
        AskedOperation::Gather => "a gather",
        AskedOperation::Scatter => "a scatter",
        AskedOperation::Broadcast => "a broadcast",
        AskedOperation::Reduce => "a reduce",
        AskedOperation::AllGather => "an all-gather",
        AskedOperation::ReduceScatter => "a reduce-scatter",
        AskedOperation::AllReduce => "an all-reduce",
        AskedOperation::AllToAll => "an all-to-all",
    };
    let root = match asked.operation {
        AskedOperation::Gather | AskedOperation::Scatter => format!(" with root {}", asked.root),
        AskedOperation::Broadcast | AskedOperation::Reduce => format!(" with root {}", asked.root),
        _ => String::new(),
    };
    let sum: u64 = asked.bytes.iter().sum();
    let first = asked.bytes.first().copied().unwrap_or(0);
    let bytes = match asked.bytes.iter().all(|bytes| *bytes == first) {
        true if asked.bytes.len() == 1 => format!("{first} bytes"),
        true => format!("{} blocks of {first} bytes", asked.bytes.len()),
        false => {
            let flat: Vec<u8> = asked
                .bytes
                .iter()
                .flat_map(|bytes| bytes.to_le_bytes())
                .collect();
            let digest = digest(&flat) as u32;
            format!(
                "{} blocks, {sum} bytes in all (sizes {digest:08x})",
                asked.bytes.len()
            )
        }
    };
    let combined = combines.map_or(String::new(), |(element, reduction)| {
        format!(", {} of {}", reduction.name(), element.name())
    });
    format!("{name} of {bytes}{combined}{root}")
}

#[cfg(test)]
mod tests;
