//! The thread that transports a group's bytes. It reads, writes and watches its peers while the
//! program computes (ADR 019).
//!
//! ```text
//!  program ──orders──► Progress ──► Job: due actions ──► connections out ──► peers
//!     ▲                   ▲  │
//!     └────── tickets ────┼──┘
//!       control messages, chunks, messages ◄── connections in ◄── peers
//! ```
//!
//! - `collectives.rs` executes collectives in order.
//! - `words.rs` handles the control messages of peers.
//! - `data.rs` sends and receives chunks and messages.
//! - `members.rs` watches the peers and agrees on the membership.
//! - `connections.rs` makes connections.
//! - `strangers.rs` accepts connections and identifies their makers.

mod collectives;
mod connections;
mod data;
mod members;
mod strangers;
mod words;

use crate::group::card::{Card, Own};
use crate::group::combine::Combine;
use crate::group::frame::{Header, Kind, Lane};
use crate::group::job::Job;
use crate::group::lane::{In, Out, Payload, Stream};
use crate::group::membership::Membership;
use crate::group::memory::Memory;
use crate::group::messages::{Messages, Parcel};
use crate::group::secret::Secret;
use crate::group::ticket::{Done, Failure, Promise};
use crate::work::Work;
use kumi_sys::fork::Private;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use strangers::Stranger;

/// Maximum length of the control messages queued for a peer, in bytes. A peer that exceeds it has
/// not read for long and is lost.
const WORDS_BYTES_MAX: usize = 4 << 20;

/// Maximum number of control messages stored for collectives that this rank has not begun.
const EARLY_MAX: usize = 1 << 16;

/// Maximum length of one peer's control messages for a term that has not begun here, in bytes.
/// Those of [`collectives::AHEAD_MAX`] collectives and of
/// [`WINDOW`](crate::group::messages::WINDOW) offers take a twentieth of it.
const LATER_BYTES_MAX: usize = 4 << 20;

/// Order of the program.
pub enum Order {
    /// Starts a collective.
    Collective(Box<Wanted>),
    /// Sends a message.
    Send(Parcel),
    /// Receives a message.
    Receive(Parcel),
    /// Continues without the lost ranks, if all remaining ranks agree in time.
    Shrink(Promise, Option<Instant>),
    /// Leaves the group.
    Close,
}

/// Collective to execute after those ordered earlier.
pub struct Wanted {
    /// Term for which it was planned.
    pub term: u32,
    /// Description of the request, equal on every rank.
    pub text: String,
    /// Progress of this rank's plan; `None` in a group of one rank.
    pub work: Option<Work>,
    /// Location of the blocks.
    pub memory: Box<dyn Memory>,
    /// Function that combines elements; `None` if the operation does not combine.
    pub combine: Option<Combine>,
    /// Settled when the collective ends.
    pub ticket: Promise,
}

/// Parameters of a group.
pub struct Settings {
    pub rank: usize,
    pub cards: Vec<Card>,
    /// Secret of the job, which its processes know beside the cards.
    pub secret: Secret,
    pub own: Vec<Own>,
    /// Time without a sign of life after which a rank counts as lost.
    pub silence: Duration,
    /// Time limit for the ranks to find each other.
    pub patience: Duration,
    /// Bottleneck rate of the path to each rank, in bytes per second, if it is known.
    pub pace: Vec<Option<u64>>,
}

struct Peer {
    words: Option<Out>,
    pieces: Option<Out>,
    messages: Option<Out>,
    words_in: Option<In>,
    pieces_in: Option<In>,
    messages_in: Option<In>,
    /// Control messages to write together at the end of the turn.
    unsaid: Vec<u8>,
    /// Number of chunks received from it and not acknowledged yet.
    got: u64,
    heard_at: Instant,
    said_at: Instant,
    /// Bytes of its control messages that wait for their term.
    later_bytes: usize,
    /// Number of collectives that it completed before it left; `None` while it has not left.
    left_after: Option<u64>,
    /// Time at which a connection to it broke.
    broken_at: Option<Instant>,
    /// True if this rank cannot connect to it, and it makes the reverse connections.
    calls: bool,
}

struct Active {
    job: Job,
    sequence: u64,
    text: String,
    ticket: Promise,
}

/// Control messages for a collective that this rank has not begun.
#[derive(Default)]
struct Early {
    heard: HashMap<usize, u64>,
    asked: Option<(usize, String)>,
    disagree: Option<String>,
}

/// Source of an epoll event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Listener,
    Bell,
    Stranger(u64),
    Out(usize, Lane),
    In(usize, Lane),
    Call(usize, Lane),
}

impl Ready {
    fn token(self) -> u64 {
        let of = |kind: u64, peer: usize, lane: Lane| kind << 56 | (peer as u64) << 8 | lane as u64;
        match self {
            Self::Listener => 0,
            Self::Bell => 1,
            Self::Stranger(name) => 1 << 56 | name,
            Self::Out(peer, lane) => of(2, peer, lane),
            Self::In(peer, lane) => of(3, peer, lane),
            Self::Call(peer, lane) => of(4, peer, lane),
        }
    }

    fn from_token(token: u64) -> Self {
        let lane = Lane::of_number(token & 0xff).unwrap_or(Lane::Messages);
        let peer = (token >> 8 & 0xffff_ffff) as usize;
        match token >> 56 {
            0 if token == 0 => Self::Listener,
            0 => Self::Bell,
            1 => Self::Stranger(token & !(1 << 56)),
            2 => Self::Out(peer, lane),
            3 => Self::In(peer, lane),
            _ => Self::Call(peer, lane),
        }
    }
}

fn epoll() -> nix::Result<Private<Epoll>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let fd = epoll.0.as_raw_fd();
    Ok(Private::of(epoll, fd))
}

/// State of the thread. Peers are numbered by initial rank, members by current rank.
pub struct Progress {
    settings: Settings,
    membership: Membership,
    /// Copy of the membership for the program.
    shared: Arc<Mutex<Membership>>,
    peers: Vec<Peer>,
    listeners: Vec<Private<TcpListener>>,
    /// Unidentified connections, in order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    strangers_named: u64,
    /// End of the pause in accepting connections that follows a failed `accept`.
    accepts_from: Option<Instant>,
    /// Reverse connections that this rank makes, until their hello is written. `spare` holds
    /// reverse connections that peers have made and this rank does not need.
    calls: HashMap<(usize, Lane), Out>,
    spare: HashMap<(usize, Lane), Stream>,
    orders: Receiver<Order>,
    bell: Arc<Private<EventFd>>,
    epoll: Private<Epoll>,
    waiting: VecDeque<Wanted>,
    active: Option<Active>,
    /// Number of collectives begun in this term.
    begun: u64,
    /// Latest collective that the next member is known to have begun.
    next_begun: u64,
    past: VecDeque<(u64, String)>,
    early: BTreeMap<u64, Early>,
    early_count: usize,
    /// Control messages of terms that have not begun here.
    later: Vec<(usize, Header, Vec<u8>)>,
    messages: Messages,
    /// Failure that ends all operations, if there is one.
    failure: Option<Failure>,
    shrinks: Vec<(Promise, Option<Instant>)>,
    /// Chunk that contradicts the plan: its collective, a description, and the time of its arrival.
    odd: Option<(u64, String, Instant)>,
    /// Settled when all ranks have found each other.
    joins: Option<Promise>,
    began_at: Instant,
    is_closing: bool,
}

impl Progress {
    pub fn new(
        settings: Settings,
        shared: Arc<Mutex<Membership>>,
        listeners: Vec<Private<TcpListener>>,
        orders: Receiver<Order>,
        bell: Arc<Private<EventFd>>,
        joins: Promise,
    ) -> nix::Result<Self> {
        let now = Instant::now();
        let epoll = epoll()?;
        let readable = |ready: Ready| EpollEvent::new(EpollFlags::EPOLLIN, ready.token());
        for listener in &listeners {
            epoll.add(listener, readable(Ready::Listener))?;
        }
        epoll.add(bell.as_fd(), readable(Ready::Bell))?;
        let ranks = settings.cards.len();
        let mut peers = Vec::with_capacity(ranks);
        peers.resize_with(ranks, || Peer {
            words: None,
            pieces: None,
            messages: None,
            words_in: None,
            pieces_in: None,
            messages_in: None,
            unsaid: Vec::new(),
            got: 0,
            heard_at: now,
            said_at: now,
            later_bytes: 0,
            left_after: None,
            broken_at: None,
            calls: false,
        });
        Ok(Self {
            membership: Membership::new(settings.rank, ranks),
            shared,
            peers,
            listeners,
            strangers: BTreeMap::new(),
            strangers_named: 0,
            accepts_from: None,
            calls: HashMap::new(),
            spare: HashMap::new(),
            orders,
            bell,
            epoll,
            waiting: VecDeque::new(),
            active: None,
            begun: 0,
            next_begun: 0,
            past: VecDeque::new(),
            early: BTreeMap::new(),
            early_count: 0,
            later: Vec::new(),
            messages: Messages::default(),
            failure: None,
            shrinks: Vec::new(),
            odd: None,
            joins: Some(joins),
            began_at: now,
            is_closing: false,
            settings,
        })
    }

    /// Runs until the group is closed.
    pub fn run(mut self) {
        for peer in self.others() {
            self.lane(peer, Lane::Words);
        }
        // A group of one rank is complete at once.
        self.is_joined();
        let mut events = [EpollEvent::empty(); 64];
        let mut turned_at = Instant::now();
        while !self.is_done() {
            self.flush();
            let wait = EpollTimeout::try_from(self.tick()).unwrap_or(EpollTimeout::NONE);
            let count = match self.epoll.wait(&mut events, wait) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => {
                    self.fail(Failure::System(format!("epoll_wait: {error}")));
                    return;
                }
            };
            let now = Instant::now();
            // A process that was stopped has read nothing meanwhile, even if all its peers are
            // alive.
            if now - turned_at > self.stopped() {
                for peer in &mut self.peers {
                    peer.heard_at = now;
                }
            }
            turned_at = now;
            for event in &events[..count] {
                self.handle(Ready::from_token(event.data()), event.events());
            }
            self.take_orders();
            self.advance();
            self.watch(now);
        }
    }

    fn handle(&mut self, ready: Ready, flags: EpollFlags) {
        match ready {
            Ready::Bell => {
                let _ = self.bell.read();
            }
            Ready::Listener => self.accept(),
            Ready::Stranger(name) => self.greet(name),
            Ready::Out(peer, lane) => {
                if flags.contains(EpollFlags::EPOLLOUT) {
                    self.write(peer, lane);
                }
                if flags
                    .intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
                {
                    let out = self.out(peer, lane).as_mut();
                    if out.is_some_and(Out::is_closed) {
                        self.broke(peer, lane);
                    }
                }
            }
            Ready::Call(peer, lane) => self.go_on_calling(peer, lane),
            Ready::In(peer, Lane::Words) => self.read_words(peer),
            Ready::In(peer, Lane::Pieces) => self.read_pieces(peer),
            Ready::In(peer, Lane::Messages) => self.read_messages(peer),
        }
    }

    /// Returns all other ranks that are not lost.
    fn others(&self) -> Vec<usize> {
        let own = self.settings.rank;
        let ranks = 0..self.peers.len();
        let lives = |rank: &usize| *rank != own && !self.membership.is_lost(*rank);
        ranks.filter(lives).collect()
    }

    /// Returns the current rank of a peer, or `None` if it is not a member.
    fn member(&self, peer: usize) -> Option<usize> {
        let members = self.membership.members();
        members.binary_search(&peer).ok()
    }

    fn out(&mut self, peer: usize, lane: Lane) -> &mut Option<Out> {
        let peer = &mut self.peers[peer];
        match lane {
            Lane::Words => &mut peer.words,
            Lane::Pieces => &mut peer.pieces,
            Lane::Messages => &mut peer.messages,
        }
    }

    fn come(&mut self, peer: usize, lane: Lane) -> &mut Option<In> {
        let peer = &mut self.peers[peer];
        match lane {
            Lane::Words => &mut peer.words_in,
            Lane::Pieces => &mut peer.pieces_in,
            Lane::Messages => &mut peer.messages_in,
        }
    }

    /// Writes as much of a connection's queue as the kernel accepts.
    fn write(&mut self, peer: usize, lane: Lane) {
        let Self {
            peers,
            active,
            messages,
            epoll,
            ..
        } = self;
        let of = &mut peers[peer];
        let out = match lane {
            Lane::Words => &mut of.words,
            Lane::Pieces => &mut of.pieces,
            Lane::Messages => &mut of.messages,
        };
        let Some(out) = out else { return };
        let flushed = out.flush(|payload| match payload {
            Payload::Piece(named) => Some(active.as_ref()?.job.out(named)),
            Payload::Message(name, bytes) => {
                let parcel = messages.outgoing(*name)?;
                Some(parcel.memory.out(0, 0, *bytes as usize))
            }
        });
        let watches = flushed.is_ok() && !out.is_idle();
        if watches != out.is_watched {
            out.is_watched = watches;
            let flags = match watches {
                true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
                false => EpollFlags::EPOLLIN,
            };
            let mut event = EpollEvent::new(flags, Ready::Out(peer, lane).token());
            if let Some(stream) = out.stream() {
                let _ = epoll.modify(stream, &mut event);
            }
        }
        match flushed {
            Ok(sent) => {
                for name in sent {
                    if let Some(parcel) = self.messages.sent(name) {
                        parcel.ticket.settle(Ok(Done {
                            from: self.membership.rank(),
                            bytes: parcel.bytes,
                        }));
                    }
                }
            }
            Err(_) => self.broke(peer, lane),
        }
        if lane == Lane::Words {
            self.is_joined();
        }
    }

    /// Queues a control message to a peer for the end of this turn.
    fn say(&mut self, peer: usize, kind: Kind, sequence: u64, number: u64, body: &[u8]) {
        let header = Header {
            kind,
            term: self.membership.term(),
            sequence,
            number,
            bytes: body.len() as u64,
        };
        let unsaid = &mut self.peers[peer].unsaid;
        unsaid.extend_from_slice(&header.bytes());
        unsaid.extend_from_slice(body);
    }

    fn say_to_all(&mut self, kind: Kind, sequence: u64, number: u64, body: &[u8]) {
        for peer in self.others() {
            self.say(peer, kind, sequence, number, body);
        }
    }

    /// Writes the control messages of this turn.
    fn flush(&mut self) {
        for peer in 0..self.peers.len() {
            let got = std::mem::take(&mut self.peers[peer].got);
            if let (true, Some(active)) = (got > 0, &self.active) {
                let sequence = active.sequence;
                self.say(peer, Kind::Got, sequence, got, &[]);
            }
            if self.peers[peer].unsaid.is_empty() {
                continue;
            }
            let words = std::mem::take(&mut self.peers[peer].unsaid);
            self.peers[peer].said_at = Instant::now();
            let Some(out) = self.lane(peer, Lane::Words) else {
                continue;
            };
            if out.waiting_bytes() > WORDS_BYTES_MAX {
                self.lose(peer, "it does not read its control messages".to_owned());
                continue;
            }
            out.push(words, None);
            self.write(peer, Lane::Words);
        }
    }

    fn take_orders(&mut self) {
        loop {
            let order = match self.orders.try_recv() {
                Ok(order) => order,
                Err(std::sync::mpsc::TryRecvError::Empty) => return,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => Order::Close,
            };
            match order {
                Order::Collective(wanted) => self.want(*wanted),
                Order::Send(parcel) => self.send(parcel),
                Order::Receive(parcel) => self.receive(parcel),
                Order::Shrink(ticket, until) => self.shrink(ticket, until),
                Order::Close => {
                    self.close();
                    return;
                }
            }
        }
    }

    fn close(&mut self) {
        if self.is_closing {
            return;
        }
        self.is_closing = true;
        let done = self.begun - u64::from(self.active.is_some());
        self.say_to_all(Kind::Bye, done, 0, &[]);
        self.abandon(&Failure::Closed);
        self.began_at = Instant::now();
    }

    /// Returns whether the group is closed and all peers have acknowledged it, or have had enough
    /// time for that.
    fn is_done(&self) -> bool {
        let is_said = |peer: &Peer| {
            peer.unsaid.is_empty() && peer.words.as_ref().is_none_or(Out::is_acknowledged)
        };
        self.is_closing
            && (self.peers.iter().all(is_said) || self.began_at.elapsed() > self.settings.silence)
    }
}
