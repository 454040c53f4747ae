//! A group of processes joined by TCP connections, and its collectives.
//!
//! This module executes the plans of [`kumi_coll`] without an MPI library, for Python, PyTorch and
//! C. Each rank has a thread for it (`progress`). The thread runs while the program computes, so
//! a rank that computes differs from a rank that is lost (ADR 019).

mod bootstrap;
mod card;
mod channel;
mod combine;
mod frame;
mod job;
mod listening;
mod membership;
mod memory;
mod messages;
mod progress;
mod secret;
mod ticket;
mod transport;
mod wind_links;

pub use bootstrap::{Environment, exchange};
pub use card::{CARD_BYTES, Card};
pub use combine::{Element, Reduction};
pub use listening::{Listening, WindRanks};
pub use memory::Memory;
pub use secret::Secret;
pub use ticket::{Completion, Failure, Queue, Ticket};
pub use transport::Transport;

use crate::c::SizeError;
use crate::ranks::{Ranks, RanksError};
use crate::request::{Request, RequestedOperation, WorkError};
use crate::work::Work;
use kumi_sys::fork::Private;
use kumi_topo::Paths;
use membership::Membership;
use messages::Parcel;
use nix::sys::eventfd::EventFd;
use progress::{Command, QueuedCollective};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ticket::{Promise, is_own};

/// Maximum number of ranks of a group, because every rank connects to every other (ADR 019).
pub const RANKS_MAX: usize = 4096;

/// Options of a rank.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of its host in the network file; the kernel's host name if `None`.
    pub host: Option<String>,
    /// Interface whose addresses the others use to reach it; any interface if `None`.
    pub interface: Option<String>,
    /// Network file; a single switch is assumed if `None`.
    pub network: Option<PathBuf>,
    /// Hosts of all ranks of the job, if other ranks of the job may communicate at the same time.
    /// The group then plans with its share of the common links (ADR 024). The same on all ranks.
    pub job: Option<Vec<String>>,
    /// Secret that only the job's processes know; `None` if it was not set. The same on all ranks.
    pub secret: Option<Secret>,
    /// Transport of the chunks of collectives. The same on all ranks.
    pub transport: Transport,
    /// Time without a sign of life after which a rank counts as lost. The default of 700 ms leaves
    /// time to notify the other ranks within one second (ADR 019).
    pub loss_timeout: Duration,
    /// Time limit for the ranks to find each other. The default is 60 s.
    pub start_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: None,
            interface: None,
            network: None,
            job: None,
            secret: None,
            transport: Transport::default(),
            loss_timeout: Duration::from_millis(700),
            start_timeout: Duration::from_secs(60),
        }
    }
}

/// Reason that a group could not be created or an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A system call failed.
    #[error("{operation}: {error}")]
    System {
        /// Operation that failed.
        operation: String,
        /// Error that the kernel returned.
        error: io::Error,
    },
    /// The network of the ranks could not be determined.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// The request is invalid.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// A struct has the size of an incompatible release.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The operation failed, or the group does not work any more.
    #[error(transparent)]
    Failed(#[from] Failure),
}

fn system(operation: &str) -> impl FnOnce(io::Error) -> GroupError + '_ {
    move |error| GroupError::System {
        operation: operation.to_owned(),
        error,
    }
}

/// Returns an FNV-1a digest (64 bits). It detects accidental differences, not intended ones.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Membership of one term, and the network as its members see it.
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

    /// Returns the bottleneck rate of the path to each rank, in bytes per second, if there is a
    /// network file.
    fn pace_bytes_per_s(&self, config: &Config) -> Vec<Option<u64>> {
        let network = self.ranks.network();
        let paths = Paths::new(network);
        let rate = |peer: usize| {
            let is_known = config.network.is_some() && peer != self.rank;
            is_known.then(|| paths.bytes_per_s(self.rank, peer) as u64)
        };
        (0..self.members.len()).map(rate).collect()
    }
}

/// Request for a collective on one rank.
pub struct Call {
    /// Request, which is the same on all ranks.
    pub request: Request,
    /// Type of the elements. Only reductions use it.
    pub element: Element,
    /// Reduction that combines the elements.
    pub reduction: Reduction,
    /// Location of this rank's blocks.
    pub memory: Box<dyn Memory>,
}

/// One rank's handle of a group. Dropping it leaves the group.
#[derive(Debug)]
pub struct Group {
    config: Config,
    hosts: Vec<String>,
    shared: Arc<Mutex<Membership>>,
    view: Mutex<Arc<View>>,
    commands: Sender<Command>,
    wakeup: Arc<Private<EventFd>>,
    thread: Option<JoinHandle<()>>,
    /// Process that owns the thread. A forked child has no such thread.
    process: u32,
}

impl Group {
    /// Creates a group from the variables of the environment.
    ///
    /// # Errors
    /// A variable is missing or invalid, or other ranks do not arrive in time.
    pub fn from_environment(config: Config, environment: &Environment) -> Result<Self, GroupError> {
        let start_timeout = config.start_timeout;
        let secret = config.secret.clone();
        let secret = secret.unwrap_or_else(|| environment.launcher.clone());
        let listening = Listening::new(config)?;
        let cards = exchange(environment, &secret, &listening.card(), start_timeout);
        let cards = cards.map_err(system("cannot exchange the ranks' cards"))?;
        listening.join(environment.rank, &cards)
    }

    fn wake(&self) {
        // The write fails only if the counter is full, and then the thread wakes up in any case.
        let _ = self.wakeup.write(1);
    }

    fn submit(&self, command: Command) {
        // If the thread has ended, the command is dropped, which fails its ticket.
        let _ = self.commands.send(command);
        self.wake();
    }

    /// Checks that this process owns the group.
    ///
    /// # Errors
    /// [`Failure::Forked`]: this process is a child of the owner.
    pub fn check(&self) -> Result<(), GroupError> {
        Ok(is_own(self.process)?)
    }

    /// Locks the membership. Returns `None` in a forked child, where the lock may be held forever.
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

    /// Returns the hosts of the initial members, by initial rank.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the current rank of this process, or `usize::MAX` in a forked child.
    pub fn rank(&self) -> usize {
        self.membership()
            .map_or(usize::MAX, |membership| membership.rank())
    }

    /// Returns the number of current members, or 0 in a forked child.
    pub fn size(&self) -> usize {
        self.membership()
            .map_or(0, |membership| membership.members().len())
    }

    /// Returns the initial ranks of the current members, by current rank.
    pub fn members(&self) -> Vec<usize> {
        self.membership()
            .map_or(Vec::new(), |membership| membership.members().to_vec())
    }

    /// Returns the current ranks of the members that are lost.
    pub fn lost(&self) -> Vec<usize> {
        let Some(membership) = self.membership() else {
            return Vec::new();
        };
        let members = membership.members().iter().enumerate();
        let lost = members.filter(|(_, member)| membership.is_lost(**member));
        lost.map(|(rank, _)| rank).collect()
    }

    /// Starts a collective. It runs after all collectives that were started earlier.
    ///
    /// # Errors
    /// The request is invalid. This is detected before any other rank is notified.
    pub fn start(&self, call: Call) -> Result<Arc<Ticket>, GroupError> {
        let Call {
            request,
            element,
            reduction,
            memory,
        } = call;
        let view = self.view()?;
        let is_reduction = matches!(
            request.operation,
            RequestedOperation::Reduce
                | RequestedOperation::ReduceScatter
                | RequestedOperation::AllReduce
        );
        let combine = combine::combine(element, reduction);
        if is_reduction && combine.is_none() {
            let (element_name, reduction_name) = (element.name(), reduction.name());
            return Err(GroupError::Argument(format!(
                "the reduction {reduction_name} is not defined for {element_name}"
            )));
        }
        let text = describe(&request, is_reduction.then_some((element, reduction)));
        let work = match view.members.len() {
            1 => None,
            _ => Some(Work::new(&view.ranks, view.rank, request)?),
        };
        let (promise, ticket) = Promise::new();
        self.submit(Command::Collective(Box::new(QueuedCollective {
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
                "invalid peer rank {peer}: expected 0 to {}, except this rank, {rank}",
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

    /// Starts to send a message. Its memory is block 0.
    ///
    /// # Errors
    /// The rank is out of range or this rank itself.
    pub fn send(
        &self,
        to: usize,
        tag: u64,
        bytes: u64,
        memory: Box<dyn Memory>,
    ) -> Result<Arc<Ticket>, GroupError> {
        let (parcel, ticket) = self.parcel(Some(to), tag, bytes, memory)?;
        self.submit(Command::Send(parcel));
        Ok(ticket)
    }

    /// Starts to receive a message of at most `bytes` bytes, from any rank if `from` is `None`.
    ///
    /// # Errors
    /// The rank is out of range or this rank itself.
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        bytes: u64,
        memory: Box<dyn Memory>,
    ) -> Result<Arc<Ticket>, GroupError> {
        let (parcel, ticket) = self.parcel(from, tag, bytes, memory)?;
        self.submit(Command::Receive(parcel));
        Ok(ticket)
    }

    /// Continues without the lost members. All remaining members must call it, within `limit` if
    /// there is one. Ranks are renumbered in their order.
    ///
    /// # Errors
    /// The others continue without this rank, or the group has ended for another reason.
    /// [`Failure::Late`]: a rank has not called it yet. The group shrinks as soon as that rank
    /// does.
    pub fn shrink(&self, limit: Option<Duration>) -> Result<(), GroupError> {
        is_own(self.process)?;
        let (promise, ticket) = Promise::new();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.submit(Command::Shrink(promise, deadline));
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
            // A lock that the thread held at the time of the fork stays locked in the child.
            std::mem::forget(thread);
            return;
        }
        self.submit(Command::Close);
        if let Some(thread) = thread {
            // An error means that the thread has panicked and printed a message.
            let _ = thread.join();
        }
    }
}

/// Returns a description of a request. Different requests have different descriptions.
fn describe(request: &Request, reduction: Option<(Element, Reduction)>) -> String {
    let name = match request.operation {
        RequestedOperation::Gather => "a gather",
        RequestedOperation::Scatter => "a scatter",
        RequestedOperation::Broadcast => "a broadcast",
        RequestedOperation::Reduce => "a reduce",
        RequestedOperation::AllGather => "an all-gather",
        RequestedOperation::ReduceScatter => "a reduce-scatter",
        RequestedOperation::AllReduce => "an all-reduce",
        RequestedOperation::AllToAll => "an all-to-all",
    };
    let root = match request.operation {
        RequestedOperation::Gather | RequestedOperation::Scatter => {
            format!(" with root {}", request.root)
        }
        RequestedOperation::Broadcast | RequestedOperation::Reduce => {
            format!(" with root {}", request.root)
        }
        _ => String::new(),
    };
    let sum: u64 = request.bytes.iter().sum();
    let first = request.bytes.first().copied().unwrap_or(0);
    let bytes = match request.bytes.iter().all(|bytes| *bytes == first) {
        true if request.bytes.len() == 1 => format!("{first} bytes"),
        true => format!("{} blocks of {first} bytes", request.bytes.len()),
        false => {
            let all_bytes: Vec<u8> = request
                .bytes
                .iter()
                .flat_map(|bytes| bytes.to_le_bytes())
                .collect();
            let digest = digest(&all_bytes) as u32;
            format!(
                "{} blocks, {sum} bytes in all (sizes {digest:08x})",
                request.bytes.len()
            )
        }
    };
    let suffix = reduction.map_or(String::new(), |(element, reduction)| {
        format!(", {} of {}", reduction.name(), element.name())
    });
    format!("{name} of {bytes}{suffix}{root}")
}

#[cfg(test)]
mod tests;
