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
mod listening;
mod membership;
mod memory;
mod messages;
mod progress;
mod secret;
mod ticket;

pub use bootstrap::{Environment, exchange};
pub use card::{CARD_BYTES, Card};
pub use combine::{Element, Reduction};
pub use listening::Listening;
pub use memory::Memory;
pub use secret::Secret;
pub use ticket::{Done, Failure, Queue, Ticket};

use crate::c::SizeError;
use crate::ranks::{Ranks, RanksError};
use crate::work::{Asked, AskedOperation, Work, WorkError};
use kumi_sys::fork::Private;
use kumi_topo::Paths;
use membership::Membership;
use messages::Parcel;
use nix::sys::eventfd::EventFd;
use progress::{Order, Wanted};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ticket::{Promise, is_own};

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
    bell: Arc<Private<EventFd>>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a forked child has not.
    process: u32,
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
        // If the thread has ended, what cannot be sent is dropped, which fails its ticket.
        let _ = self.orders.send(order);
        self.ring();
    }

    /// Whether this process has the group.
    ///
    /// # Errors
    /// [`Failure::Forked`]: it is a child of the one that has.
    pub fn check(&self) -> Result<(), GroupError> {
        Ok(is_own(self.process)?)
    }

    /// `None` in a forked child, where it may be locked for ever.
    fn membership(&self) -> Option<MutexGuard<'_, Membership>> {
        is_own(self.process).ok()?;
        Some(self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn view(&self) -> Result<Arc<View>, GroupError> {
        is_own(self.process)?;
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let membership = self.shared.lock();
        let membership = membership.unwrap_or_else(PoisonError::into_inner);
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

    /// This rank, among the members of now; `usize::MAX` in a forked child.
    pub fn rank(&self) -> usize {
        self.membership()
            .map_or(usize::MAX, |membership| membership.rank())
    }

    /// How many members there are now; none in a forked child.
    pub fn size(&self) -> usize {
        self.membership()
            .map_or(0, |membership| membership.members().len())
    }

    /// The members of now, by the ranks that they had when the group began.
    pub fn members(&self) -> Vec<usize> {
        self.membership()
            .map_or(Vec::new(), |membership| membership.members().to_vec())
    }

    /// Members of now that are lost, by their ranks of now.
    pub fn lost(&self) -> Vec<usize> {
        let Some(membership) = self.membership() else {
            return Vec::new();
        };
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
        let (promise, ticket) = Promise::new();
        self.order(Order::Collective(Box::new(Wanted {
            term: view.term,
            text,
            work,
            memory,
            combine: combine.filter(|_| is_reduction),
            ticket: promise,
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
        is_own(self.process)?;
        let (rank, ranks) = (self.rank(), self.size());
        if let Some(peer) = peer.filter(|peer| *peer >= ranks || *peer == rank) {
            let text = format!(
                "rank {peer} is none of the others; ranks are 0 to {}, and this is {rank}",
                ranks - 1
            );
            return Err(GroupError::Argument(text));
        }
        let (promise, ticket) = Promise::new();
        let parcel = Parcel {
            peer,
            tag,
            bytes,
            memory,
            ticket: promise,
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

    /// Goes on without members that are lost; all that are left must call it, within `limit` if there is one. Ranks are
    /// numbered anew, in their order.
    ///
    /// # Errors
    /// The others go on without this rank, or the group ended otherwise. [`Failure::Late`]: a rank has not called it, and
    /// the group shrinks when it does.
    pub fn shrink(&self, limit: Option<Duration>) -> Result<(), GroupError> {
        is_own(self.process)?;
        let (promise, ticket) = Promise::new();
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.order(Order::Shrink(promise, until));
        match ticket.wait(None) {
            Some(Err(failure)) => Err(failure.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if is_own(self.process).is_err() {
            // What the thread had locked when the process forked stays so.
            std::mem::forget(thread);
            return;
        }
        self.order(Order::Close);
        if let Some(thread) = thread {
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
