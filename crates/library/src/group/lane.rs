//! One unidirectional connection of a group.

use crate::group::frame::{HEADER_BYTES, Header, Lane};
use crate::work::Named;
use kumi_sys::fork::Private;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Queueing priority of control messages on the host (`TC_PRIO_INTERACTIVE`, band 0 of
/// `pfifo_fast`). They overtake data.
const WORDS_PRIORITY: i32 = 6;

/// TOS of control messages (AF41), for switches that honour it. CS6 is for the networks' own
/// control traffic; AF41 is open to applications.
const WORDS_TOS: u32 = 0x88;

/// Floor of the retransmission timeout, in microseconds. A lost control message would otherwise
/// wait for Linux's default of 200 ms, which is longer than most collectives.
const RTO_MIN_US: u32 = 10_000;

/// Connection that a forked child does not inherit.
pub type Stream = Private<TcpStream>;

/// Payload of a frame, by reference.
#[derive(Debug, Clone, Copy)]
pub enum Payload {
    /// Chunk of the active collective.
    Piece(Named),
    /// Point-to-point message, by its name and its length in bytes.
    Message(u64, u64),
}

impl Payload {
    fn bytes(&self) -> usize {
        match self {
            Self::Piece(named) => named.bytes as usize,
            Self::Message(_, bytes) => *bytes as usize,
        }
    }
}

#[derive(Debug)]
struct Chunk {
    head: Vec<u8>,
    payload: Option<Payload>,
    done: usize,
}

impl Chunk {
    fn bytes(&self) -> usize {
        self.head.len() + self.payload.map_or(0, |payload| payload.bytes())
    }
}

/// Connection on which this rank sends.
#[derive(Debug)]
pub struct Out {
    /// `None` until the peer has made the connection.
    stream: Option<Stream>,
    /// True while the first queued frame is the hello.
    is_new: bool,
    chunks: VecDeque<Chunk>,
    /// True if epoll reports when the connection is writable.
    pub is_watched: bool,
}

impl Out {
    /// Starts to connect. The hello is the first frame.
    pub fn connect(to: SocketAddr, lane: Lane, hello: &[u8]) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        set_options(&socket, lane);
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut out = Self {
            stream: Some(Stream::new(socket.into())),
            is_new: true,
            ..Self::awaited()
        };
        out.push(hello.to_vec(), None);
        Ok(out)
    }

    /// Returns a connection that the peer is to make.
    pub fn awaited() -> Self {
        Self {
            stream: None,
            is_new: false,
            chunks: VecDeque::new(),
            is_watched: false,
        }
    }

    /// Sends the queued frames on a connection that the peer has made. A queued hello is dropped.
    pub fn adopt(&mut self, stream: Stream, lane: Lane) {
        set_options(&SockRef::from(&*stream), lane);
        if std::mem::take(&mut self.is_new) {
            self.chunks.pop_front();
        }
        self.stream = Some(stream);
    }

    /// Returns the connection, or `None` before the peer has made it.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// Returns the connection for another use. Queued frames are dropped.
    pub fn into_stream(self) -> Option<Stream> {
        self.stream
    }

    /// Returns whether the peer has been reached.
    pub fn has_begun(&self) -> bool {
        self.stream.is_some() && !self.is_new
    }

    /// Queues a frame.
    pub fn push(&mut self, head: Vec<u8>, payload: Option<Payload>) {
        self.chunks.push_back(Chunk {
            head,
            payload,
            done: 0,
        });
    }

    /// Returns the length of the queued frames, in bytes. It is used for control messages only.
    pub fn waiting_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::bytes).sum()
    }

    /// Returns whether no frame is queued.
    pub fn is_idle(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns whether the peer's kernel has acknowledged all bytes.
    pub fn is_acknowledged(&self) -> bool {
        let Some(stream) = &self.stream else {
            return false;
        };
        let standing = kumi_sys::tcp::standing(stream.as_fd());
        self.is_idle() && standing.is_ok_and(|standing| standing.unacked == 0)
    }

    /// Writes as much as the kernel accepts. Returns the names of the messages that are written
    /// completely.
    pub fn flush<'a>(
        &mut self,
        read: impl Fn(&Payload) -> Option<&'a [u8]>,
    ) -> io::Result<Vec<u64>> {
        let mut sent = Vec::new();
        let Some(stream) = &mut self.stream else {
            return Ok(sent);
        };
        while let Some(chunk) = self.chunks.front_mut() {
            let payload = match &chunk.payload {
                Some(payload) => read(payload).unwrap_or_default(),
                None => &[],
            };
            let head = chunk.head.get(chunk.done..).unwrap_or_default();
            let rest = payload.get(chunk.done.saturating_sub(chunk.head.len())..);
            let parts = [IoSlice::new(head), IoSlice::new(rest.unwrap_or_default())];
            match stream.write_vectored(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(wrote) => chunk.done += wrote,
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
            if chunk.done == chunk.bytes() {
                if let Some(Payload::Message(name, _)) = chunk.payload {
                    sent.push(name);
                }
                self.is_new = false;
                self.chunks.pop_front();
            }
        }
        Ok(sent)
    }

    /// Drops the queued chunks of a collective that has ended. The rest of a chunk that is partly
    /// written becomes zeros, which keeps the framing.
    pub fn forget_pieces(&mut self) {
        let is_piece = |chunk: &Chunk| matches!(chunk.payload, Some(Payload::Piece(_)));
        self.chunks
            .retain(|chunk| !is_piece(chunk) || chunk.done > 0);
        for chunk in self.chunks.iter_mut().filter(|chunk| is_piece(chunk)) {
            let bytes = chunk.bytes();
            chunk.head.resize(bytes, 0);
            chunk.payload = None;
        }
    }

    /// Returns whether the peer has closed its end. A peer never sends on this connection.
    pub fn is_closed(&mut self) -> bool {
        let stream = self.stream.as_mut();
        stream.is_some_and(|stream| take(stream, &mut [0]) != Took::Nothing)
    }

    /// Limits the sending rate, so that packets leave no faster than the path's slowest link passes
    /// them.
    pub fn set_pace(&self, bytes_per_s: u64) {
        // If the kernel refuses, the window alone limits bursts.
        if let Some(stream) = &self.stream {
            let _ = kumi_sys::tcp::set_pacing_rate_max(stream.as_fd(), bytes_per_s);
        }
    }
}

/// Sets the socket options of a connection. Options that the kernel refuses are left out.
fn set_options(socket: &Socket, lane: Lane) {
    let _ = socket.set_tcp_nodelay(true);
    let _ = kumi_sys::tcp::set_rto_min_us(socket.as_fd(), RTO_MIN_US);
    if lane == Lane::Words {
        let _ = socket.set_tos_v4(WORDS_TOS);
        let _ = nix::sys::socket::setsockopt(
            socket,
            nix::sys::socket::sockopt::Priority,
            &WORDS_PRIORITY,
        );
    }
}

/// Returns whether an error only means that the call must be repeated later.
fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// Number of bytes read.
    Bytes(usize),
    /// No bytes are available now.
    Nothing,
    /// The peer has closed the connection, or it failed.
    End,
}

/// Connection on which another rank sends.
#[derive(Debug)]
pub struct In {
    stream: Stream,
    /// Kind of the frames that it carries.
    pub lane: Lane,
    /// Term to which it belongs.
    pub term: u32,
    head: [u8; HEADER_BYTES],
    have: usize,
    /// Header of the frame that is being read.
    pub header: Option<Header>,
    /// Bytes of the current body that have been read.
    pub done: usize,
    /// Buffer for bodies that have no destination of their own.
    pub scratch: Vec<u8>,
    /// True if it waits for a destination. It is not polled meanwhile.
    pub is_paused: bool,
    /// Value of `SO_RCVLOWAT`, in bytes; 0 if it is unknown.
    enough: u32,
}

/// Maximum of `SO_RCVLOWAT`, in bytes: half of a connection's initial buffer.
const ENOUGH_BYTES_MAX: u64 = 32 << 10;

impl In {
    pub fn new(stream: Stream, lane: Lane, term: u32) -> Self {
        // Replies use other connections.
        let _ = SockRef::from(&*stream).set_tcp_nodelay(true);
        Self {
            stream,
            lane,
            term,
            head: [0; HEADER_BYTES],
            have: 0,
            header: None,
            done: 0,
            scratch: Vec::new(),
            is_paused: false,
            enough: 1,
        }
    }

    /// Reads more of a header. Returns the bytes as an error if they are not a valid header.
    pub fn read_header(&mut self) -> Result<Took, [u8; HEADER_BYTES]> {
        let took = take(&mut self.stream, &mut self.head[self.have..]);
        if let Took::Bytes(bytes) = took {
            self.have += bytes;
        }
        if self.have == HEADER_BYTES {
            self.have = 0;
            self.done = 0;
            self.header = Some(Header::parse(&self.head, self.lane).ok_or(self.head)?);
        }
        Ok(took)
    }

    /// Sets `SO_RCVLOWAT` so that epoll wakes the thread once per frame, not per packet
    /// (`docs/perf-log.md`, 2026-11-23). It waits for the rest of the current frame, or for the
    /// next frame if `next_bytes` gives its body.
    pub fn wait_for(&mut self, next_bytes: Option<u64>) {
        let rest = match (&self.header, next_bytes) {
            (Some(header), _) => header.bytes - self.done as u64,
            (None, Some(bytes)) => (HEADER_BYTES - self.have) as u64 + bytes,
            (None, None) => 1,
        };
        let enough = rest.clamp(1, ENOUGH_BYTES_MAX) as u32;
        if enough != self.enough {
            let set = kumi_sys::tcp::set_receive_low_water(self.stream.as_fd(), enough);
            self.enough = if set.is_ok() { enough } else { 0 };
        }
    }

    /// Reads more of a body into its destination.
    pub fn read_into(&mut self, place: &mut [u8]) -> Took {
        let took = take(&mut self.stream, &mut place[self.done..]);
        if let Took::Bytes(bytes) = took {
            self.done += bytes;
        }
        took
    }

    /// Reads more of a body into `scratch`.
    pub fn read_scratch(&mut self, bytes: usize) -> Took {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(bytes, 0);
        let took = self.read_into(&mut scratch);
        self.scratch = scratch;
        took
    }

    /// Reads and drops more of a body.
    pub fn discard(&mut self, bytes: u64) -> Took {
        let mut nowhere = [0; 16 << 10];
        let left = (bytes - self.done as u64).min(nowhere.len() as u64) as usize;
        let took = take(&mut self.stream, &mut nowhere[..left]);
        if let Took::Bytes(bytes) = took {
            self.done += bytes;
        }
        took
    }
}

impl AsFd for In {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads the bytes that are available.
pub fn take(stream: &mut TcpStream, place: &mut [u8]) -> Took {
    if place.is_empty() {
        return Took::Bytes(0);
    }
    match stream.read(place) {
        Ok(0) => Took::End,
        Ok(bytes) => Took::Bytes(bytes),
        Err(error) if is_later(&error) => Took::Nothing,
        Err(_) => Took::End,
    }
}
