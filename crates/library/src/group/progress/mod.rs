//! The thread that transports a group's bytes. It reads, writes and watches its peers while the
//! program computes (ADR 019).
//!
//! ```text
//!  program ─commands─► Progress ──► Job: due actions ──► connections out ──► peers
//!     ▲                   ▲  │
//!     └────── tickets ────┼──┘
//!       control messages, chunks, messages ◄── connections in ◄── peers
//! ```
//!
//! - `collectives.rs` executes collectives in order.
//! - `control.rs` handles the control messages of peers.
//! - `data.rs` sends and receives chunks and messages.
//! - `wind.rs` does so for chunks, if they are carried by Wind.
//! - `members.rs` watches the peers and agrees on the membership.
//! - `connections.rs` makes connections.
//! - `strangers.rs` accepts connections and identifies their makers.

mod collectives;
mod connections;
mod control;
mod data;
mod members;
mod strangers;
mod wind;

use crate::group::card::{Card, LocalAddress};
use crate::group::channel::{InConnection, OutConnection, Payload, Stream};
use crate::group::combine::Combine;
use crate::group::frame::{Channel, Header, Kind};
use crate::group::job::Job;
use crate::group::membership::Membership;
use crate::group::memory::Memory;
use crate::group::messages::{Messages, Parcel};
use crate::group::secret::Secret;
use crate::group::ticket::{Completion, Failure, Promise};
use crate::group::wind_links::WindLinks;
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
const CONTROL_BYTES_MAX: usize = 4 << 20;

/// Maximum number of control messages stored for collectives that this rank has not begun.
const EARLY_MAX: usize = 1 << 16;

/// Maximum length of one peer's control messages for a term that has not begun here, in bytes.
/// Those of [`collectives::AHEAD_MAX`] collectives and of
/// [`WINDOW`](crate::group::messages::WINDOW) offers take a twentieth of it.
const LATER_BYTES_MAX: usize = 4 << 20;

/// Command of the program.
pub enum Command {
    /// Starts a collective.
    Collective(Box<QueuedCollective>),
    /// Sends a message.
    Send(Parcel),
    /// Receives a message.
    Receive(Parcel),
    /// Continues without the lost ranks, if all remaining ranks agree in time.
    Shrink(Promise, Option<Instant>),
    /// Leaves the group.
    Close,
}

/// Collective to execute after those queued earlier.
pub struct QueuedCollective {
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
    pub local_addresses: Vec<LocalAddress>,
    /// Time without a sign of life after which a rank counts as lost.
    pub loss_timeout: Duration,
    /// Time limit for the ranks to find each other.
    pub start_timeout: Duration,
    /// Bottleneck rate of the path to each rank, in bytes per second, if it is known.
    pub pace_bytes_per_s: Vec<Option<u64>>,
}

struct Peer {
    control_out: Option<OutConnection>,
    chunks_out: Option<OutConnection>,
    messages_out: Option<OutConnection>,
    control_in: Option<InConnection>,
    chunks_in: Option<InConnection>,
    messages_in: Option<InConnection>,
    /// Control messages to write together at the end of the turn.
    unsent_control: Vec<u8>,
    /// Number of chunks received from it and not acknowledged yet.
    unacked_chunks: u64,
    received_at: Instant,
    sent_at: Instant,
    /// Bytes of its control messages that wait for their term.
    later_bytes: usize,
    /// Number of collectives that it completed before it left; `None` while it has not left.
    leave_sequence: Option<u64>,
    /// Time at which a connection to it broke.
    broken_at: Option<Instant>,
    /// True if this rank cannot connect to it, and it makes the reverse connections.
    is_caller: bool,
}

struct ActiveCollective {
    job: Job,
    sequence: u64,
    text: String,
    ticket: Promise,
}

/// Control messages for a collective that this rank has not begun.
#[derive(Default)]
struct EarlyMessages {
    grants: HashMap<usize, u64>,
    request: Option<(usize, String)>,
    disagreement: Option<String>,
}

/// Source of an epoll event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventSource {
    Listener,
    Wakeup,
    Wind,
    Stranger(u64),
    Out(usize, Channel),
    In(usize, Channel),
    Call(usize, Channel),
}

impl EventSource {
    fn token(self) -> u64 {
        let encode = |kind: u64, peer: usize, channel: Channel| {
            kind << 56 | (peer as u64) << 8 | channel as u64
        };
        match self {
            Self::Listener => 0,
            Self::Wakeup => 1,
            Self::Wind => 2,
            Self::Stranger(name) => 1 << 56 | name,
            Self::Out(peer, channel) => encode(2, peer, channel),
            Self::In(peer, channel) => encode(3, peer, channel),
            Self::Call(peer, channel) => encode(4, peer, channel),
        }
    }

    fn from_token(token: u64) -> Self {
        let channel = Channel::from_number(token & 0xff).unwrap_or(Channel::Messages);
        let peer = (token >> 8 & 0xffff_ffff) as usize;
        match token >> 56 {
            0 if token == 0 => Self::Listener,
            0 if token == 1 => Self::Wakeup,
            0 => Self::Wind,
            1 => Self::Stranger(token & !(1 << 56)),
            2 => Self::Out(peer, channel),
            3 => Self::In(peer, channel),
            _ => Self::Call(peer, channel),
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
    /// Chunks over Wind, in place of connections.
    wind: Option<WindLinks>,
    /// Unidentified connections, in order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    last_stranger_name: u64,
    /// End of the pause in accepting connections that follows a failed `accept`.
    accept_pause_end: Option<Instant>,
    /// Reverse connections that this rank makes, until their hello is written. `spare_calls` holds
    /// reverse connections that peers have made and this rank does not need.
    calls: HashMap<(usize, Channel), OutConnection>,
    spare_calls: HashMap<(usize, Channel), Stream>,
    commands: Receiver<Command>,
    wakeup: Arc<Private<EventFd>>,
    epoll: Private<Epoll>,
    queued_collectives: VecDeque<QueuedCollective>,
    active: Option<ActiveCollective>,
    /// Number of collectives begun in this term.
    begun_count: u64,
    /// Latest collective that the next member is known to have begun.
    next_member_sequence: u64,
    past_requests: VecDeque<(u64, String)>,
    early: BTreeMap<u64, EarlyMessages>,
    early_count: usize,
    /// Control messages of terms that have not begun here.
    later: Vec<(usize, Header, Vec<u8>)>,
    messages: Messages,
    /// Failure that ends all operations, if there is one.
    failure: Option<Failure>,
    shrinks: Vec<(Promise, Option<Instant>)>,
    /// Chunk that contradicts the plan: its collective, a description, and the time of its arrival.
    unexpected_chunk: Option<(u64, String, Instant)>,
    /// Settled when all ranks have found each other.
    join_promise: Option<Promise>,
    began_at: Instant,
    is_closing: bool,
}

impl Progress {
    pub fn new(
        settings: Settings,
        shared: Arc<Mutex<Membership>>,
        listeners: Vec<Private<TcpListener>>,
        wind: Option<WindLinks>,
        commands: Receiver<Command>,
        wakeup: Arc<Private<EventFd>>,
        join_promise: Promise,
    ) -> nix::Result<Self> {
        let now = Instant::now();
        let epoll = epoll()?;
        let readable = |source: EventSource| EpollEvent::new(EpollFlags::EPOLLIN, source.token());
        for listener in &listeners {
            epoll.add(listener, readable(EventSource::Listener))?;
        }
        epoll.add(wakeup.as_fd(), readable(EventSource::Wakeup))?;
        if let Some(wind) = &wind {
            epoll.add(wind, readable(EventSource::Wind))?;
        }
        let ranks = settings.cards.len();
        let mut peers = Vec::with_capacity(ranks);
        peers.resize_with(ranks, || Peer {
            control_out: None,
            chunks_out: None,
            messages_out: None,
            control_in: None,
            chunks_in: None,
            messages_in: None,
            unsent_control: Vec::new(),
            unacked_chunks: 0,
            received_at: now,
            sent_at: now,
            later_bytes: 0,
            leave_sequence: None,
            broken_at: None,
            is_caller: false,
        });
        Ok(Self {
            membership: Membership::new(settings.rank, ranks),
            shared,
            peers,
            listeners,
            wind,
            strangers: BTreeMap::new(),
            last_stranger_name: 0,
            accept_pause_end: None,
            calls: HashMap::new(),
            spare_calls: HashMap::new(),
            commands,
            wakeup,
            epoll,
            queued_collectives: VecDeque::new(),
            active: None,
            begun_count: 0,
            next_member_sequence: 0,
            past_requests: VecDeque::new(),
            early: BTreeMap::new(),
            early_count: 0,
            later: Vec::new(),
            messages: Messages::default(),
            failure: None,
            shrinks: Vec::new(),
            unexpected_chunk: None,
            join_promise: Some(join_promise),
            began_at: now,
            is_closing: false,
            settings,
        })
    }

    /// Runs until the group is closed.
    pub fn run(mut self) {
        for peer in self.live_peers() {
            self.open_connection(peer, Channel::Control);
        }
        // A group of one rank is complete at once.
        self.settle_join();
        let mut events = [EpollEvent::empty(); 64];
        let mut turned_at = Instant::now();
        while !self.is_done() {
            self.flush_control();
            let tick = self.wait_for_wind();
            let timeout = EpollTimeout::try_from(tick).unwrap_or(EpollTimeout::NONE);
            let count = match self.epoll.wait(&mut events, timeout) {
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
            if now - turned_at > self.stop_threshold() {
                for peer in &mut self.peers {
                    peer.received_at = now;
                }
            }
            turned_at = now;
            for event in &events[..count] {
                self.handle(EventSource::from_token(event.data()), event.events());
            }
            self.handle_commands();
            self.advance();
            // What has arrived while this rank sent is announced by no event.
            while self.take_from_node() {
                self.advance();
            }
            self.tell_idle_on_wind();
            self.check_liveness(now);
        }
    }

    fn handle(&mut self, source: EventSource, flags: EpollFlags) {
        match source {
            EventSource::Wakeup => {
                let _ = self.wakeup.read();
            }
            EventSource::Wind => self.turn_wind(),
            EventSource::Listener => self.accept(),
            EventSource::Stranger(name) => self.read_hello(name),
            EventSource::Out(peer, channel) => {
                if flags.contains(EpollFlags::EPOLLOUT) {
                    self.write(peer, channel);
                }
                if flags
                    .intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
                {
                    let connection = self.out_connection(peer, channel).as_mut();
                    if connection.is_some_and(OutConnection::is_closed) {
                        self.handle_broken_connection(peer, channel);
                    }
                }
            }
            EventSource::Call(peer, channel) => self.continue_call(peer, channel),
            EventSource::In(peer, Channel::Control) => self.read_control(peer),
            EventSource::In(peer, Channel::Chunks) => self.read_chunks(peer),
            EventSource::In(peer, Channel::Messages) => self.read_messages(peer),
        }
    }

    /// Returns all other ranks that are not lost.
    fn live_peers(&self) -> Vec<usize> {
        let own = self.settings.rank;
        let ranks = 0..self.peers.len();
        let is_live = |rank: &usize| *rank != own && !self.membership.is_lost(*rank);
        ranks.filter(is_live).collect()
    }

    /// Returns the current rank of a peer, or `None` if it is not a member.
    fn member(&self, peer: usize) -> Option<usize> {
        let members = self.membership.members();
        members.binary_search(&peer).ok()
    }

    fn out_connection(&mut self, peer: usize, channel: Channel) -> &mut Option<OutConnection> {
        let peer = &mut self.peers[peer];
        match channel {
            Channel::Control => &mut peer.control_out,
            Channel::Chunks => &mut peer.chunks_out,
            Channel::Messages => &mut peer.messages_out,
        }
    }

    fn in_connection(&mut self, peer: usize, channel: Channel) -> &mut Option<InConnection> {
        let peer = &mut self.peers[peer];
        match channel {
            Channel::Control => &mut peer.control_in,
            Channel::Chunks => &mut peer.chunks_in,
            Channel::Messages => &mut peer.messages_in,
        }
    }

    /// Writes as much of a connection's queue as the kernel accepts.
    fn write(&mut self, peer: usize, channel: Channel) {
        let Self {
            peers,
            active,
            messages,
            epoll,
            ..
        } = self;
        let state = &mut peers[peer];
        let connection = match channel {
            Channel::Control => &mut state.control_out,
            Channel::Chunks => &mut state.chunks_out,
            Channel::Messages => &mut state.messages_out,
        };
        let Some(connection) = connection else { return };
        let result = connection.flush(|payload| match payload {
            Payload::Chunk(step) => Some(active.as_ref()?.job.source(step)),
            Payload::Message(name, bytes) => {
                let parcel = messages.outgoing(*name)?;
                Some(parcel.memory.source(0, 0, *bytes as usize))
            }
        });
        let needs_watch = result.is_ok() && !connection.is_idle();
        if needs_watch != connection.is_watched {
            connection.is_watched = needs_watch;
            let flags = match needs_watch {
                true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
                false => EpollFlags::EPOLLIN,
            };
            let mut event = EpollEvent::new(flags, EventSource::Out(peer, channel).token());
            if let Some(stream) = connection.stream() {
                let _ = epoll.modify(stream, &mut event);
            }
        }
        match result {
            Ok(names) => {
                for name in names {
                    if let Some(parcel) = self.messages.remove_outgoing(name) {
                        parcel.ticket.settle(Ok(Completion {
                            from: self.membership.rank(),
                            bytes: parcel.bytes,
                        }));
                    }
                }
            }
            Err(_) => self.handle_broken_connection(peer, channel),
        }
        if channel == Channel::Control {
            self.settle_join();
        }
    }

    /// Queues a control message to a peer for the end of this turn.
    fn queue_control(&mut self, peer: usize, kind: Kind, sequence: u64, number: u64, body: &[u8]) {
        let header = Header {
            kind,
            term: self.membership.term(),
            sequence,
            number,
            bytes: body.len() as u64,
        };
        let unsent_control = &mut self.peers[peer].unsent_control;
        unsent_control.extend_from_slice(&header.bytes());
        unsent_control.extend_from_slice(body);
    }

    fn queue_control_to_all(&mut self, kind: Kind, sequence: u64, number: u64, body: &[u8]) {
        for peer in self.live_peers() {
            self.queue_control(peer, kind, sequence, number, body);
        }
    }

    /// Writes the control messages of this turn.
    fn flush_control(&mut self) {
        for peer in 0..self.peers.len() {
            let count = std::mem::take(&mut self.peers[peer].unacked_chunks);
            if let (true, Some(active)) = (count > 0, &self.active) {
                let sequence = active.sequence;
                self.queue_control(peer, Kind::Ack, sequence, count, &[]);
            }
            if self.peers[peer].unsent_control.is_empty() {
                continue;
            }
            let control_messages = std::mem::take(&mut self.peers[peer].unsent_control);
            self.peers[peer].sent_at = Instant::now();
            let Some(connection) = self.open_connection(peer, Channel::Control) else {
                continue;
            };
            if connection.queued_bytes() > CONTROL_BYTES_MAX {
                self.lose(peer, "it does not read its control messages".to_owned());
                continue;
            }
            connection.push(control_messages, None);
            self.write(peer, Channel::Control);
        }
    }

    fn handle_commands(&mut self) {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(std::sync::mpsc::TryRecvError::Empty) => return,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => Command::Close,
            };
            match command {
                Command::Collective(collective) => self.queue_collective(*collective),
                Command::Send(parcel) => self.send(parcel),
                Command::Receive(parcel) => self.receive(parcel),
                Command::Shrink(ticket, deadline) => self.shrink(ticket, deadline),
                Command::Close => {
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
        let completed = self.begun_count - u64::from(self.active.is_some());
        self.queue_control_to_all(Kind::Bye, completed, 0, &[]);
        self.abandon(&Failure::Closed);
        self.began_at = Instant::now();
    }

    /// Returns whether the group is closed and all peers have acknowledged it, or have had enough
    /// time for that.
    fn is_done(&self) -> bool {
        let is_sent = |peer: &Peer| {
            peer.unsent_control.is_empty()
                && peer
                    .control_out
                    .as_ref()
                    .is_none_or(OutConnection::is_acknowledged)
        };
        self.is_closing
            && (self.peers.iter().all(is_sent)
                || self.began_at.elapsed() > self.settings.loss_timeout)
    }
}
